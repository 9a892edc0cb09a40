"""The demos: the logs that they replay, the machine on simulated time, and the pictures that they draw."""

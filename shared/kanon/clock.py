"""The server's clock, the only source of time. All code below the handlers takes time as an argument."""

import time

now = time.time
sleep = time.sleep

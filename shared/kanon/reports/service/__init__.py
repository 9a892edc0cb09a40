"""Reports as a service: jobs in stages, each of which may run any number of times, at once, late, or crash."""

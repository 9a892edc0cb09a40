"""Reports as a service: jobs in stages. Each stage may run any number of times, at once or late, and may crash."""

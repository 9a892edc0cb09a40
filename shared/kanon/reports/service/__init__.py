"""Reports as a service: jobs in stages. Each stage may run any number of times, concurrently or late, and may crash."""

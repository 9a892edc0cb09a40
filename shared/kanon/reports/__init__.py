"""Reports: encrypted contributions of clients become a noisy histogram with a privacy guarantee."""

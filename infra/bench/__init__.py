"""The benchmark suite: what the service costs, as ratios to the bare libraries, measured in one run."""

"""Published experiments, run again: options and published numbers come from `papers/library`."""

"""Published experiments, run: one file each in `papers/library`."""

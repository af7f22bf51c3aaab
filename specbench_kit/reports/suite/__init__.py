"""Reports on a suite: those of one run, and the board of all results."""

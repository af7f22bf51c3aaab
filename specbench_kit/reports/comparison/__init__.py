"""The report of runs side by side."""

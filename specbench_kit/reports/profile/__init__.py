"""The report of a profiling run."""

"""The report of `skit ab`."""

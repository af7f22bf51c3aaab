"""The report of a sweep over a deployment."""

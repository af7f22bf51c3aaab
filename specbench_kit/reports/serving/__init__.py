"""The report of simulated serving."""

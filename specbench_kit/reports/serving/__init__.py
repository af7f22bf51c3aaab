"""The report of simulated serving and of searches for capacity."""

"""Simulated serving, from options to reports: loads, sweeps over devices and the search for capacity."""

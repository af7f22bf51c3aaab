"""Measure, or derive from a data sheet, how long the steps of a pair take on a device."""

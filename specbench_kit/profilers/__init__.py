"""Latency profiles: workloads, measurement, the fit of a linear model, and the physical limit of
its device.
"""

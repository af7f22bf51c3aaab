"""Sweeps over deployments, options and batch sizes, and the points where methods stop paying for
themselves.
"""

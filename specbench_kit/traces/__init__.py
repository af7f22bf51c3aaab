"""Traces: what target and draft model say over recorded requests, and how methods are replayed on
that.
"""

"""Servers of others, as verifiers: one adapter a file."""

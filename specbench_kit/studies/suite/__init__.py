"""Frozen suites: cells of a pair, a deployment and a batch size, and results of policies that
anyone can check.
"""

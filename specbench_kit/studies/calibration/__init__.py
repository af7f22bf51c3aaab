"""Fits what a step costs to the log of a real server."""

"""Replays of one trace over a grid of deployments and options, and where methods stop paying for themselves."""

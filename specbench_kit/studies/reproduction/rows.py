"""The rows of an experiment's results."""

from specbench_kit.core.typed_json import JsonObject

Rows = list[JsonObject]
"""Rows of figures: each has the label of its series, its point of the grid, and figures as `{"mean": ...}`."""

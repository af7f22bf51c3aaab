"""The types of what reports read from a run's folder, whose formats `docs/formats.md` describes."""

from collections.abc import Mapping
from typing import Any

RunFile = Mapping[str, Any]
"""The content of `run.json`, or a part of it."""
Summary = Mapping[str, Any]
"""The content of `summary.json`, or a part of it."""
Row = Mapping[str, Any]
"""The metrics of one method, or of the baseline, over the same requests."""

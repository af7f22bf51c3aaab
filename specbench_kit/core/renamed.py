"""Metric names of earlier releases: still read, never written."""

import sys
from typing import Any

RENAMED = {
    "tokens_per_verify": "acceptance_length",
    "tokens_per_verify_sd": "acceptance_length_sd",
    "tokens_per_verify_request_mean": "acceptance_length_request_mean",
    "expected_per_verify": "expected_accepted_length",
    "accepted_per_verify": "accepted_length",
}
"""Today's name of every metric that had another one."""
_WARNED = set[str]()
"""The renamings that this process has mentioned."""


def current_name(name: str, source: str) -> str:
    """Return the metric's name of today; an earlier name is accepted with a warning line that mentions `source`.

    `name` may be a path whose last part is the metric, as in `figures.overall.tokens_per_verify`. Both spellings of a
    name are read: with underscores, and with hyphens as on a command line.
    """
    prefix, dot, metric = name.rpartition(".")
    today = RENAMED.get(metric) or RENAMED.get(metric.replace("-", "_"), "").replace("_", "-")
    if not today:
        return name
    _warn(source, {metric: today})
    return f"{prefix}{dot}{today}"


def with_current_names(content: object, source: str) -> Any:
    """Return parsed JSON in which every key that is an earlier metric name is replaced by today's name.

    All earlier names of one document are reported in a single warning line.
    """
    replaced: dict[str, str] = {}
    content = _replace(content, replaced)
    if replaced:
        _warn(source, replaced)
    return content


def _replace(content: object, replaced: dict[str, str]) -> object:
    if isinstance(content, list):
        return [_replace(item, replaced) for item in content]
    if not isinstance(content, dict):
        return content
    replaced |= {name: RENAMED[name] for name in content if name in RENAMED}
    return {RENAMED.get(name, name): _replace(value, replaced) for name, value in content.items()}


def _warn(source: str, replaced: dict[str, str]) -> None:
    """Print one line for every set of names: a folder of thirty earlier runs gets one line and not thirty."""
    names = ", ".join(f"{old} is now called {new}" for old, new in sorted(replaced.items()))
    if names not in _WARNED:
        _WARNED.add(names)
        print(f"warning: {source}: {names}", file=sys.stderr)

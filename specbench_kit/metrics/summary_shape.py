"""Whether what lies in `summary.json` has the shape that reports read."""

from functools import cache
from typing import Any

from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import request_metrics
from specbench_kit.metrics.vocabulary import METRICS

NUMBER = (int, float)
COMPARED = ("compared", "identical", "ties", "errors")


def is_summary(found: Any) -> bool:
    """Its counts are numbers and so is every metric, overall, by category and of the baseline."""
    if not isinstance(found, dict) or not isinstance(found.get("method"), str):
        return False
    parts = [found.get(name) or {} for name in ("requests", "baseline", "lossless", "sampling")]
    if not all(isinstance(part, dict) for part in parts):
        return False
    requests, baseline, lossless, _ = parts
    counted = all(isinstance(requests.get(name), int) for name in ("planned", "finished", "failed"))
    counted &= not lossless or all(isinstance(lossless.get(name), int) for name in COMPARED)
    return counted and _holds_metrics(found) and (not baseline or _holds_metrics(baseline))


def _holds_metrics(side: dict[str, Any]) -> bool:
    categories = side.get("categories")
    return isinstance(categories, dict) and all(map(_are_metrics, (side.get("overall"), *categories.values())))


def _are_metrics(found: Any) -> bool:
    """Every metric that requests have by themselves, and of the others what is there, with an interval or none."""
    if not isinstance(found, dict) or not isinstance(found.get("intervals"), dict):
        return False
    if not all(map(_is_interval, found["intervals"].values())):
        return False
    scalars = (found.get(metric.name) for metric in METRICS)
    return all(value is None or isinstance(value, NUMBER) for value in scalars) and all(
        name in found and _alike(found[name], pattern) for name, pattern in _pattern().items()
    )


def _is_interval(found: Any) -> bool:
    return found is None or (
        isinstance(found, list) and len(found) == 2 and all(isinstance(bound, NUMBER) for bound in found)
    )


def _alike(value: Any, pattern: Any) -> bool:
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(name in value and _alike(value[name], pattern[name]) for name in pattern)
    if isinstance(pattern, list):
        return isinstance(value, list) and all(one is None or isinstance(one, NUMBER) for one in value)
    return value is None or isinstance(value, NUMBER)


@cache
def _pattern() -> dict[str, Any]:
    """The metrics of no request at all."""
    return request_metrics(RequestGroup([]))

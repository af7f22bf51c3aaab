"""The descriptions of metrics in JSON Schemas: their definitions in `vocabulary.py`, with units."""

from functools import cache

from msgspec import Meta

from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, LISTS, METRICS

UNIT_WORDS = {
    "seconds": "seconds",
    "rate": "tokens per second",
    "times": "a factor",
    "share": "0 to 1",
}
"""The units that are not clear from a definition."""


@cache
def metric_descriptions() -> dict[str, str]:
    """Return the definition of each metric by its name, with its unit where the definition does not
    tell it.
    """
    descriptions = {}
    for metric in METRICS:
        unit = UNIT_WORDS.get(metric.unit)
        descriptions[metric.name] = f"{metric.definition} ({unit})" if unit else metric.definition
    return descriptions | {one.name: one.definition for one in DISTRIBUTIONS} | LISTS


def as_metric(name: str) -> Meta:
    """Return the description of a field of another type than `MetricValues` that holds a metric."""
    return Meta(description=metric_descriptions()[name])

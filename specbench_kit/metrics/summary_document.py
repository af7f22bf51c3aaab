"""The content of a run's `summary.json`: what reports rely on, with types; made from the metrics' vocabulary."""

from functools import cache
from typing import Annotated

from msgspec import NODEFAULT, Meta, Struct, defstruct

from specbench_kit.core.typed_json import Count, JsonObject, convert
from specbench_kit.metrics.latency import PHASES
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import request_metrics
from specbench_kit.metrics.vocabulary import DISTRIBUTIONS, LISTS, METRICS

UNIT_WORDS = {"seconds": "seconds", "rate": "tokens per second", "times": "a factor", "share": "0 to 1"}
"""The units that are not clear from a definition."""


class RequestCounts(Struct):
    """The run's requests; `planned` are those that it was to decode."""

    planned: int
    finished: int
    failed: int


class DistributionValues(Struct):
    """Mean and percentiles in seconds; null if there are no values."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


class LosslessCounts(Struct):
    """The comparison of all outputs with the baseline's, token for token."""

    compared: Count
    identical: Count
    ties: Annotated[Count, Meta(description="outputs whose difference is explained by rounding")]
    errors: Count
    lossless: Annotated[bool | None, Meta(description="true without errors, null if it is not known")] = None
    unjudged: Annotated[Count, Meta(description="outputs that differ where nothing is known of rounding")] = 0


@cache
def summary_document() -> type[Struct]:
    """Return the type of the document; every metric is a field with its definition as description."""
    phases = defstruct("PhaseValues", [(phase, float | None) for phase in PHASES])
    interval = Annotated[list[float], Meta(min_length=2, max_length=2)]
    lists: JsonObject = {
        **dict.fromkeys(("acceptance_at", "acceptance_at_conditional", "slo_attainment"), list[float | None]),
        **dict.fromkeys(("phase_seconds", "phase_share"), phases),
        "intervals": dict[str, interval | None],
    }
    fields: list[tuple[str, object, str]] = []
    for metric in METRICS:
        unit = UNIT_WORDS.get(metric.unit)
        description = f"{metric.definition} ({unit})" if unit else metric.definition
        fields.append((metric.name, int | None if metric.unit == "count" else float | None, description))
    fields += [(name, DistributionValues, definition) for name, definition in DISTRIBUTIONS.items()]
    fields += [(name, lists[name], definition) for name, definition in LISTS.items()]
    # Metrics that need nothing but requests are in every summary; the others need a baseline, a makespan or prices.
    required = {*request_metrics(RequestGroup([])), "intervals"}
    values = defstruct(
        "MetricValues",
        [
            (name, Annotated[kind, Meta(description=text)], NODEFAULT if name in required else None)
            for name, kind, text in sorted(fields, key=lambda field: field[0] not in required)
        ],
        namespace={"__doc__": "The metrics of a group of requests; null if a metric has no value."},
    )
    sides = [("overall", values), ("categories", dict[str, values])]  # type: ignore[valid-type]
    baseline = defstruct("BaselineSummary", sides, namespace={"__doc__": "The same metrics of the baseline."})
    return defstruct(
        "SummaryDocument",
        [
            ("method", str),
            ("requests", RequestCounts),
            *sides,
            ("baseline", baseline | None, None),
            ("lossless", LosslessCounts | None, None),
            ("sampling", JsonObject | None, None),
            ("pipeline", JsonObject | None, None),
            ("hidden_states", JsonObject | None, None),
            ("partial", bool, False),
            ("overlaps", bool, False),
        ],
        namespace={"__doc__": "The content of `summary.json`: every metric of a run, overall and by category."},
    )


def check_summary(content: JsonObject) -> None:
    """Raise ValueError if a parsed `summary.json` lacks what reports rely on, or has a field of a wrong type."""
    convert(summary_document(), content)

"""Conditions on a comparison of two servers, such as `speedup<1.1` or `ttft.p99>200ms`, under which it fails."""

from collections.abc import Mapping
from dataclasses import dataclass

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.ab.summary import AbSummary, Distribution, Figure, LoadSummary, ServerFigures
from specbench_kit.metrics.condition_terms import ConditionTerms, parse_terms
from specbench_kit.metrics.vocabulary import Unit

SPEEDUPS: Mapping[str, Figure] = {
    "speedup": "e2e",
    "throughput_speedup": "throughput",
    "ttft_speedup": "ttft",
    "tpot_speedup": "tpot",
    "acceptance_ratio": "acceptance",
}
"""The metrics that compare the servers."""
LATENCIES = ("ttft", "tpot", "itl", "e2e")
BOUNDS = ("low", "high")
PERCENTILES = ("mean", "p50", "p95", "p99")
UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(SPEEDUPS, "times"),
    **dict.fromkeys(LATENCIES, "seconds"),
    "throughput": "rate",
    "goodput": "rate",
    "attainment": "share",
    "acceptance_length": "number",
    "acceptance_rate": "share",
    "failed": "count",
    "identical": "share",
}
"""Every metric of a condition: those that compare, those of the second server, and the share of identical outputs."""
TIMELESS = ("acceptance_ratio", "acceptance_length", "acceptance_rate", "failed", "identical")
"""Metrics without a time in them, which a busy machine does not change."""


@dataclass(frozen=True, slots=True)
class AbCondition:
    """One condition, judged at every load."""

    text: str
    terms: ConditionTerms

    @classmethod
    def parse(cls, text: str) -> "AbCondition":
        """Return the condition that a text states; raise SkitError if it states none."""
        percentiles = dict.fromkeys(LATENCIES, PERCENTILES)
        terms = parse_terms(text, UNITS, percentiles, BOUNDS)
        if terms.detail in BOUNDS and terms.metric not in SPEEDUPS:
            raise SkitError(f"--fail-if '{text}': {terms.metric} has no interval; leave out .{terms.detail}")
        return cls(text, terms)

    @property
    def is_timed(self) -> bool:
        """Return True if the metric depends on the clock."""
        return self.terms.metric not in TIMELESS

    def violations(self, summary: AbSummary) -> list[str]:
        """Return a line for every load at which the condition holds; raise SkitError where it cannot be judged."""
        lines = []
        for load in summary.loads:
            value = self._value(load, load.servers[summary.names[1]])
            if value is None:
                raise SkitError(f"--fail-if '{self.text}': there is no value for it at {load.load}")
            if self.terms.holds(value, self.terms.limit):
                name = ".".join(filter(None, (self.terms.metric, self.terms.detail)))
                lines.append(f"{load.load}: {name} is {value:.4g} ({self.text})")
        return lines

    def _value(self, load: LoadSummary, figures: ServerFigures) -> float | None:
        metric = self.terms.metric
        detail = self.terms.detail
        if metric in SPEEDUPS:
            entry = next((entry for entry in load.comparisons if entry.figure == SPEEDUPS[metric]), None)
            if entry is None or detail is None:
                return entry.ratio if entry else None
            return entry.interval[BOUNDS.index(detail)] if entry.interval else None
        if metric in LATENCIES:
            distribution: Distribution = getattr(figures, metric)
            value: float | None = getattr(distribution, detail or "mean")
            return value
        if metric == "identical":
            return load.outputs.both.share
        if metric in ("acceptance_length", "acceptance_rate"):
            return getattr(figures.speculation, metric) if figures.speculation else None
        plain: float | None = getattr(figures, metric)
        return plain

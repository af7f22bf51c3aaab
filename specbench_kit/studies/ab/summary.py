"""The content of `summary.json` of a run of `skit ab`, as types, and the conditions under which
such a run fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Count, Number
from specbench_kit.metrics.condition_terms import ConditionTerms, parse_terms
from specbench_kit.metrics.vocabulary import DistributionValues, Unit
from specbench_kit.runs.document import OutputAgreement

Figure = Literal["throughput", "ttft", "tpot", "e2e", "acceptance"]
FIGURES: dict[Figure, str] = {
    "throughput": "throughput",
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end to end",
    "acceptance": "acceptance length",
}
"""What the two servers are compared in, and how a report calls it."""
Gate = Literal["identical", "as with itself", "alike in distribution", "different", "not compared"]
"""Whether the servers' outputs agree: all of them; no fewer than when a server is asked twice;
sampled ones, whose distributions show no difference; not; or unknown.
"""


class Speculation(Struct, frozen=True):
    """Acceptance as the server reports it: for each answer, or by its counters over the whole load.

    The acceptance length has its 95% interval over turns. By what answers report it counts the
    tokens that were sent; counters also count those of a last round after the answer's end, so that
    `tokens_per_round`, the tokens that were sent for each round, stands beside it.
    """

    source: Literal["each answer", "counters"]
    acceptance_length: Number | None = None
    acceptance_rate: Number | None = None
    rounds: Count | None = None
    drafted: Count | None = None
    accepted: Count | None = None
    interval: list[Number] | None = None
    tokens_per_round: Number | None = None
    doubts: list[str] = []
    """What the counts say that cannot be right."""


class ServerFigures(Struct, frozen=True):
    """The figures of one server under one load.

    `throughput` and `goodput` are tokens per second, the latter of the requests that met every SLO; `attainment` is
    the share of these among all requests. `in_flight` is the mean number of requests at the server. `retry_reasons`
    counts why requests were sent again.
    """

    finished: Count
    failed: Count
    retried: Count
    tokens: Count
    throughput: Number | None
    in_flight: Number | None
    tokens_per_burst: Number | None
    ttft: DistributionValues
    tpot: DistributionValues
    itl: DistributionValues
    e2e: DistributionValues
    goodput: Number | None = None
    attainment: Number | None = None
    speculation: Speculation | None = None
    counted_by: list[str] = []
    cached_tokens: Count = 0
    late_p99_s: Number | None = None
    retry_reasons: dict[str, Count] = {}


class Lengths(Struct, frozen=True):
    """Mean tokens of the answers to the requests that both servers answered, in the order of their
    names.
    """

    mean_tokens: list[Number]
    pairs: Count
    equal: Count

    @property
    def ratio(self) -> float:
        """How many times as long the second server's answers are."""
        return self.mean_tokens[1] / self.mean_tokens[0]


class FigureComparison(Struct, frozen=True):
    """How much faster the second server is than the first, in one figure, or how much longer its
    acceptance length.

    `ratio` is that of sums over all turns, and `typical` that of a typical turn, which verdicts on times go by. Either
    interval holds together with all others of its kind.
    """

    figure: Figure
    ratio: Number | None
    interval: list[Number] | None
    units: Count
    verdict: str
    typical: Number | None = None
    typical_interval: list[Number] | None = None


class Divergence(Struct, frozen=True):
    """The first place at which two outputs of one prompt differ: a token, or a character where
    tokens are unknown.

    `dialogue_turn` counts the earlier turns of the prompt's dialogue, whose outputs are the same.
    """

    request_id: str
    repeat: Count
    position: Count
    unit: Literal["token", "character"]
    before: str
    first: str
    second: str
    dialogue_turn: Count = 0


class SampleTest(Struct, frozen=True):
    """Sampled outputs compared: the chance that servers with one distribution differ as much in any
    statistic.

    `samples` counts the answers of each server. `level` is the chance below which a difference is shown, with the tests
    of all loads together at 5%; `shown` names what differs.
    """

    prompts: Count
    samples: Count
    chance: Number
    level: Number
    shown: list[str] = []


class OutputCheck(Struct, frozen=True):
    """The outputs of both servers compared, and those of each server with its own, by its name.

    `repeated` compares answers to the same prompt under the same load, `other_loads` those under different loads.
    """

    gate: Gate
    both: OutputAgreement
    repeated: dict[str, OutputAgreement] = {}
    other_loads: dict[str, OutputAgreement] = {}
    divergences: list[Divergence] = []
    sampled: SampleTest | None = None


class LoadSummary(Struct, frozen=True):
    """One load: its figures for each server by name, and their comparison."""

    load: str
    turns: Count
    turn_requests: Count
    servers: dict[str, ServerFigures]
    comparisons: list[FigureComparison]
    outputs: OutputCheck
    lengths: Lengths | None = None


class AbSummary(Struct, frozen=True):
    """All loads of a run; `level` is the confidence of each interval at which all hold together
    with 95%.

    `saturated` holds, by server, the loads at which it is over-saturated, with the reason. `left_out` names the loads
    that were not run for that.
    """

    names: list[str]
    partial: bool
    planned: Count
    finished: Count
    failed: Count
    level: Number
    loads: list[LoadSummary]
    cautions: list[str] = []
    saturated: dict[str, dict[str, str]] = {}
    left_out: list[str] = []


SPEEDUPS: Mapping[str, Figure] = {
    "speedup": "e2e",
    "throughput_speedup": "throughput",
    "ttft_speedup": "ttft",
    "tpot_speedup": "tpot",
    "acceptance_ratio": "acceptance",
}
"""The metrics that compare the servers in all."""
TYPICAL: Mapping[str, Figure] = {
    f"typical_{metric}": figure for metric, figure in SPEEDUPS.items() if figure != "acceptance"
}
"""The metrics that compare them in a typical turn."""
LATENCIES = ("ttft", "tpot", "itl", "e2e")
BOUNDS = ("low", "high")
PERCENTILES = ("mean", "p50", "p95", "p99")
UNITS: Mapping[str, Unit] = {
    **dict.fromkeys([*SPEEDUPS, *TYPICAL], "times"),
    **dict.fromkeys(LATENCIES, "seconds"),
    "throughput": "rate",
    "goodput": "rate",
    "attainment": "share",
    "acceptance_length": "tokens",
    "acceptance_rate": "share",
    "failed": "count",
    "identical": "share",
}
"""Every metric of a condition: those that compare, those of the second server, and the share of
identical outputs.
"""
TIMELESS = ("acceptance_ratio", "acceptance_length", "acceptance_rate", "failed", "identical")
"""Metrics without a time in them, which a busy machine does not change."""


@dataclass(frozen=True, slots=True)
class AbCondition(ConditionTerms):
    """One condition, judged at every load."""

    @classmethod
    def parse(cls, text: str) -> "AbCondition":
        """Return the condition that a text states; raise SkitError if it states none."""
        percentiles = dict.fromkeys(LATENCIES, PERCENTILES)
        condition = parse_terms(cls, text, UNITS, percentiles, BOUNDS)
        if condition.detail in BOUNDS and condition.metric not in {**SPEEDUPS, **TYPICAL}:
            raise SkitError(
                f"--fail-if '{text}': {condition.metric} has no interval; leave out .{condition.detail}"
            )
        return condition

    @property
    def is_timed(self) -> bool:
        """Return True if the metric depends on the clock."""
        return self.metric not in TIMELESS

    def violations(self, summary: AbSummary) -> list[str]:
        """Return a line for every load at which the condition holds; raise SkitError where it
        cannot be judged.
        """
        lines = []
        for load in summary.loads:
            value = self._value(load, load.servers[summary.names[1]])
            if value is None:
                raise SkitError(f"--fail-if '{self.text}': there is no value for it at {load.load}")
            if self.holds(value, self.limit):
                lines.append(f"{load.load}: {self.sentence(value)}")
        return lines

    def _value(self, load: LoadSummary, figures: ServerFigures) -> float | None:
        metric = self.metric
        detail = self.detail
        if figure := {**SPEEDUPS, **TYPICAL}.get(metric):
            entry = next((entry for entry in load.comparisons if entry.figure == figure), None)
            if entry is None:
                return None
            value, bounds = entry.ratio, entry.interval
            if metric in TYPICAL:
                value, bounds = entry.typical, entry.typical_interval
            if detail is None:
                return value
            return bounds[BOUNDS.index(detail)] if bounds else None
        if metric in LATENCIES:
            distribution: DistributionValues = getattr(figures, metric)
            latency: float | None = getattr(distribution, detail or "mean")
            return latency
        if metric == "identical":
            return load.outputs.both.share
        if metric in ("acceptance_length", "acceptance_rate"):
            return getattr(figures.speculation, metric) if figures.speculation else None
        plain: float | None = getattr(figures, metric)
        return plain

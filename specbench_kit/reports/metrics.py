"""The metric vocabulary, computed from request records.

Every metric is over finished requests: one that ended in an error counts in `failed` and nowhere else. A metric
without a meaning for the records at hand (an acceptance rate with nothing submitted) is None. All times are in
seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import isfinite
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.errors import SkitError
from specbench_kit.metrics import paired
from specbench_kit.metrics.paired import Side, request_seconds
from specbench_kit.metrics.statistics import interval_of_ratio, ratio_of_sums
from specbench_kit.metrics.units import Units, units_of

Array = NDArray[np.float64]
Metrics = dict[str, Any]
T = TypeVar("T")

PHASES = ("prefill", "draft", "policy", "link", "queue", "verify", "commit")
PROACTIVE_RATIOS = {"alignment_rate": ("aligned", "proactive_rounds"), "proactive_hit_depth": ("reused", "aligned")}
"""The same, where anything was drafted while the target verified."""
RATIOS = {
    "tokens_per_verify": ("committed", "rounds"),
    "acceptance_rate": ("accepted", "submitted"),
    "draft_efficiency": ("accepted", "drafted"),
    "server_tokens_per_busy_second": ("committed", "verify_s"),
}
"""Metrics that are one sum over requests divided by another, which is what has an interval."""
SHARES = ("acceptance_rate", "draft_efficiency", "alignment_rate")
"""Those that cannot be more than 1."""


LISTS = ("commits_s", "parents", "path")
"""Fields of a round that are lists, and no column."""


class Rounds:
    """The rounds of finished requests as columns, one entry per round; `request` says whose round it is."""

    def __init__(self, finished: Sequence[RequestRecord]) -> None:
        rounds = [r for record in finished for r in record.rounds]
        self.count = len(rounds)
        self.requests = len(finished)
        self.request = np.repeat(np.arange(len(finished)), [len(record.rounds) for record in finished])
        self.names = [record.request_id for record in finished]
        self.commits_s = [r.commits_s for r in rounds]
        self._columns = {
            f.name: np.array([getattr(r, f.name) for r in rounds], dtype=np.float64)
            for f in fields(RoundRecord)
            if f.name not in LISTS
        }
        self._columns["rounds"] = np.ones(len(rounds))
        self._columns["proactive_rounds"] = (self["proactive"] > 0).astype(np.float64)

    def __getitem__(self, column: str) -> Array:
        return self._columns[column]

    def sum(self, column: str) -> float:
        return float(self[column].sum())

    def per_request(self, column: str) -> Array:
        """Sums over each request's rounds: shape (requests,)."""
        return np.bincount(self.request, weights=self[column], minlength=self.requests).astype(np.float64)

    def per_unit(self, column: str, units: Units) -> Array:
        """Sums over all rounds of a unit: shape [units of all]."""
        numbers = np.array([units[name] for name in self.names], dtype=np.int64)
        return np.bincount(numbers, weights=self.per_request(column)).astype(np.float64)


@dataclass(frozen=True)
class Group:
    """Requests that are summarised together: a run, or one category of it."""

    records: Sequence[RequestRecord]

    @cached_property
    def finished(self) -> list[RequestRecord]:
        return [r for r in self.records if r.finish_reason != "error"]

    @cached_property
    def rounds(self) -> Rounds:
        return Rounds(self.finished)


def summarise(
    records: Sequence[RequestRecord],
    baseline: Sequence[RequestRecord] | None = None,
    *,
    makespan_s: float | None,
    baseline_makespan_s: float | None = None,
    oracle_throughput: float | None = None,
    slo_tpot_s: float | None = None,
    device_cost: float | None = None,
    baseline_device_cost: float | None = None,
    batch_size: int = 1,
) -> dict[str, Any]:
    """Every metric, as `{"overall": {...}, "categories": {name: {...}}, "baseline": same shape or None}`.

    `goodput` needs `slo_tpot_s`; `cost_efficiency` needs the device costs, sums over devices of price times
    time; `headroom` needs the oracle's throughput on the same requests and a baseline. Metrics per makespan are
    given overall only: categories share the run's time. Intervals are 95% intervals over prompts, or over batches of
    `batch_size` requests that shared their time.
    """
    _require_one_clock([*records, *(baseline or [])])
    reference = None
    if baseline is not None:
        reference = summarise(
            baseline,
            makespan_s=baseline_makespan_s,
            slo_tpot_s=slo_tpot_s,
            device_cost=baseline_device_cost,
            batch_size=batch_size,
        )
        del reference["baseline"]
    units = units_of(records, batch_size)
    overall = _summarise_group(records, baseline, units)
    overall |= per_makespan(Group(records), makespan_s, slo_tpot_s)
    overall |= _optional(overall["throughput"], overall["tokens"], reference, oracle_throughput, device_cost)
    categories = {name: _summarise_group(part, baseline, units) for name, part in by_category(records).items()}
    return {"overall": overall, "categories": categories, "baseline": reference}


def summarise_run(
    records: Sequence[RequestRecord],
    baseline: Sequence[RequestRecord] | None,
    deployment: Metrics | None,
    oracle_throughput: float | None = None,
    timed: bool = True,
    batch_size: int = 1,
) -> dict[str, Any]:
    """Every metric of a run whose records hold all that it did, under the deployment in its `run.json`.

    Not `timed`: an interruption lies within, so that nothing can be said per makespan.
    """
    other = baseline or ()
    found = summarise(
        records,
        baseline,
        makespan_s=makespan_s(records) if timed else None,
        baseline_makespan_s=makespan_s(other) if timed else None,
        oracle_throughput=oracle_throughput,
        device_cost=device_cost(deployment, records) if deployment else None,
        baseline_device_cost=device_cost(deployment, other) if deployment else None,
        batch_size=batch_size,
    )
    if deployment:
        found["overall"] |= idle_shares(deployment, records)
    if deployment and found["baseline"]:
        found["baseline"]["overall"] |= idle_shares(deployment, other)
    return found


def makespan_s(records: Sequence[RequestRecord]) -> float:
    """When the last request of a run finished."""
    return max((record.finished_s or 0.0 for record in records), default=0.0)


def _require_one_clock(records: Sequence[RequestRecord]) -> None:
    if len({r.time_kind for r in Group(records).finished}) > 1:
        raise SkitError("measured and modelled times cannot share a metric: run method and baseline on one clock")


def by_category(records: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """Records by category, in order of first appearance."""
    parts: dict[str, list[RequestRecord]] = {}
    for record in records:
        parts.setdefault(record.category, []).append(record)
    return parts


def _summarise_group(
    records: Sequence[RequestRecord], baseline: Sequence[RequestRecord] | None, units: Units
) -> Metrics:
    group = Group(records)
    metrics = plain(group) | {"intervals": ratio_intervals(group.rounds, units)}
    if baseline is not None:
        side = Side.of(records, baseline)
        found = paired.speedup(side, units)
        metrics |= paired.described(found) | {"speedup_request_mean": paired.request_mean(side)}
        metrics["intervals"]["speedup"] = found.interval() if found else None
    return metrics


def plain(group: Group) -> Metrics:
    """Every metric of requests that needs neither a baseline, nor a makespan, nor an interval."""
    rounds = group.rounds
    found = counts(group) | _ratios(rounds) | acceptance_by_position(rounds)
    return found | wasted_time(rounds) | latency(group) | phases(rounds)


def counts(group: Group) -> Metrics:
    """Requests, rounds and tokens; `wasted_tokens` were drafted and not accepted, sent or not."""
    rounds = group.rounds
    drafted, submitted, accepted, committed = (
        _whole(rounds.sum(column)) for column in ("drafted", "submitted", "accepted", "committed")
    )
    return {
        "finished": len(group.finished),
        "failed": len(group.records) - len(group.finished),
        "rounds": rounds.count,
        "tokens": committed,
        "drafted": drafted,
        "submitted": submitted,
        "accepted": accepted,
        "wasted_tokens": _whole(rounds.sum("drafted") - rounds.sum("accepted")),
    }


def _known(value: float) -> float | None:
    """None for what another tool's records do not say."""
    return value if isfinite(value) else None


def _whole(value: float) -> int | None:
    return int(value) if isfinite(value) else None


def ratios(rounds: Rounds) -> Metrics:
    """The pooled ratios with their intervals, and the means of the requests' own ratios where papers differ on them."""
    prompts = {name: place for place, name in enumerate(dict.fromkeys(rounds.names))}
    return _ratios(rounds) | {"intervals": ratio_intervals(rounds, prompts)}


def _ratios(rounds: Rounds) -> Metrics:
    values: Metrics = {
        name: ratio_of_sums(rounds.sum(top), rounds.sum(base)) for name, (top, base) in _pairs(rounds).items()
    }
    for name in ("tokens_per_verify", "acceptance_rate"):
        values[f"{name}_request_mean"] = _request_mean(*map(rounds.per_request, RATIOS[name]))
    return values


def _pairs(rounds: Rounds) -> dict[str, tuple[str, str]]:
    return RATIOS | (PROACTIVE_RATIOS if rounds.sum("proactive") else {})


def _request_mean(numerator: Array, denominator: Array) -> float | None:
    defined = denominator > 0
    return _known(float((numerator[defined] / denominator[defined]).mean())) if defined.any() else None


def ratio_intervals(rounds: Rounds, units: Units) -> Metrics:
    """95% intervals of the pooled ratios, over units."""
    return {name: _ratio_interval(name, top, base, rounds, units) for name, (top, base) in _pairs(rounds).items()}


def _ratio_interval(name: str, top: str, base: str, rounds: Rounds, units: Units) -> list[float] | None:
    found = interval_of_ratio(rounds.per_unit(top, units), rounds.per_unit(base, units))
    return [found[0], min(1.0, found[1])] if found and name in SHARES else found


def acceptance_by_position(rounds: Rounds) -> Metrics:
    """Acceptance of draft position i = 1, 2, ... up to the deepest that a token was submitted at.

    `acceptance_at`: rounds that accepted position i / all rounds. `acceptance_at_conditional`: the same count
    over the rounds that submitted a token at depth i and accepted all i - 1 before. In a tree, position is depth.
    """
    accepted, deepest = rounds["accepted"], _deepest(rounds)
    positions = range(1, int(np.fmax(accepted, deepest).max(initial=0)) + 1)
    hits = [int(np.count_nonzero(accepted >= i)) for i in positions]
    known = not np.isnan(deepest).any()
    reached = [int(np.count_nonzero((accepted >= i - 1) & (deepest >= i))) * known for i in positions]
    return {
        "acceptance_at": [hit / rounds.count for hit in hits],
        "acceptance_at_conditional": [ratio_of_sums(hit, tries) for hit, tries in zip(hits, reached, strict=True)],
    }


def _deepest(rounds: Rounds) -> Array:
    """The depth that each round reached; where its record does not say, that of a chain of what was submitted."""
    pipeline = rounds["steps"] > 0  # of a pipeline's nodes, many have one depth
    chain = np.where(pipeline, rounds["accepted"], rounds["submitted"])
    return np.where(np.isnan(rounds["deepest"]), chain, rounds["deepest"])


def wasted_time(rounds: Rounds) -> Metrics:
    """Drafting seconds spent on wasted tokens, each token at its round's mean drafting time.

    `wdt` counts drafted - accepted, so tokens that were never sent too; `wdt_paper` is WISP Eq. 8 as printed,
    (submitted - accepted)+; `wdt_share` is wdt over all drafting seconds.
    """
    drafted, accepted, draft_s = rounds["drafted"], rounds["accepted"], rounds["draft_s"]
    per_token = np.divide(draft_s, drafted, out=np.zeros_like(draft_s), where=drafted > 0)
    wdt = float((per_token * (drafted - accepted)).sum())
    return {
        "wdt": _known(wdt),
        "wdt_paper": _known(float((per_token * np.maximum(0.0, rounds["submitted"] - accepted)).sum())),
        "wdt_share": ratio_of_sums(wdt, rounds.sum("draft_s")),
    }


def latency(group: Group) -> Metrics:
    """Distributions of ttft and tpot over requests and of itl over gaps; a one-token request has no tpot."""
    return {
        "ttft": distribution(_present([r.ttft_s for r in group.finished])),
        "tpot": distribution(_present([r.tpot_s for r in group.finished])),
        "itl": distribution(inter_token_gaps(group.rounds)),
    }


def inter_token_gaps(rounds: Rounds) -> Array:
    """Gaps between committed tokens: a burst of n tokens, gap seconds after the last, is n gaps of gap / n.

    A request's first burst gives none: the wait for it is ttft, and its tokens arrive together. The tokens of a round
    that knows when each of them was committed are bursts of one.
    """
    bursts = [
        (request, size, end_s)
        for request, moments_s, committed, round_end_s in zip(
            rounds.request, rounds.commits_s, rounds["committed"], rounds["end_s"], strict=True
        )
        for size, end_s in ([(1, moment_s) for moment_s in moments_s] or [(committed, round_end_s)])
        if size
    ]
    request, tokens, end_s = np.array(bursts, dtype=np.float64).reshape(-1, 3).T
    later = (request[1:] == request[:-1]) & np.isfinite(np.diff(end_s))
    sizes = tokens[1:][later]
    return np.repeat(np.diff(end_s)[later] / sizes, sizes.astype(np.int64))


def distribution(values: Sequence[float] | Array) -> Metrics:
    """Mean and percentiles (linear interpolation), each None where there are no values."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "p99"))
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def phases(rounds: Rounds) -> Metrics:
    """Busy seconds of each phase, and their shares, which sum to 1; `prefill` is the draft model's."""
    seconds = {phase: _known(rounds.sum(f"{phase}_s")) for phase in PHASES}
    total = sum(filter(None, seconds.values()))
    return {
        "phase_seconds": seconds,
        "phase_share": {phase: ratio_of_sums(busy or 0.0, total) for phase, busy in seconds.items()},
    }


def per_makespan(group: Group, makespan_s: float | None, slo_tpot_s: float | None = None) -> Metrics:
    """Throughput in tokens per second; with an SLO, goodput: tokens of the requests whose tpot meets it."""
    metrics: Metrics = {"makespan_s": makespan_s, "throughput": _per_second(group.rounds.sum("committed"), makespan_s)}
    if slo_tpot_s is not None:
        met = Rounds([r for r in group.finished if r.tpot_s is None or r.tpot_s <= slo_tpot_s])
        metrics |= {"goodput": _per_second(met.sum("committed"), makespan_s), "slo_tpot_s": slo_tpot_s}
    return metrics


def _per_second(tokens: float, seconds: float | None) -> float | None:
    return ratio_of_sums(tokens, seconds or 0.0)


def _optional(
    throughput: float | None,
    tokens: int,
    reference: dict[str, Any] | None,
    oracle_throughput: float | None,
    device_cost: float | None,
) -> Metrics:
    metrics: Metrics = {}
    if oracle_throughput is not None and reference is not None:
        metrics["headroom"] = headroom(throughput, reference["overall"]["throughput"], oracle_throughput)
    if device_cost is not None:
        metrics["cost_efficiency"] = ratio_of_sums(tokens, device_cost)
    return metrics


def device_cost(deployment: Metrics, records: Sequence[RequestRecord]) -> float | None:
    """What a run costs by the prices per hour in `run.json`: the verifier all along, a drafter while it works."""
    server, edge = (deployment[role]["price_per_hour"] for role in ("verifier", "drafter"))
    if not server and not edge:
        return None
    rounds = Group(records).rounds
    busy_s = sum(rounds.sum(f"{phase}_s") for phase in ("prefill", "draft", "policy"))
    return float(server * makespan_s(records) + edge * busy_s) / 3600


def idle_shares(deployment: Metrics, records: Sequence[RequestRecord]) -> Metrics:
    """Of the verifier over the run, and of the requests' own drafting devices, where they draft, over the requests."""
    rounds = Group(records).rounds
    edge_s = sum(rounds.sum(f"{phase}_s") for phase in ("prefill", "draft", "policy"))
    busy = {"server_idle_share": ratio_of_sums(rounds.sum("verify_s"), makespan_s(records))}
    if deployment["placement"] == "edge" and edge_s:
        busy["edge_idle_share"] = ratio_of_sums(edge_s, sum(request_seconds(records).values()))
    return {name: max(0.0, 1 - share) for name, share in busy.items() if share is not None}


def headroom(method: float | None, autoregressive: float | None, oracle: float) -> float | None:
    """Share of the throughput gap between autoregressive and oracle that the method closes."""
    if method is None or autoregressive is None or oracle <= autoregressive:
        return None
    return (method - autoregressive) / (oracle - autoregressive)


def _present(values: Sequence[T | None]) -> list[T]:
    return [value for value in values if value is not None]

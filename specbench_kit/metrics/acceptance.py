"""How many tokens were drafted, sent, accepted and committed: counts, their ratios, and acceptance by position."""

from math import isfinite

import numpy as np

from specbench_kit.metrics.rounds import Array, Metrics, RequestGroup, RoundColumns, finite_or_none
from specbench_kit.metrics.statistics import interval_of_ratio, ratio_of_sums
from specbench_kit.metrics.units import Units

RATIOS = {
    "acceptance_length": ("committed", "rounds"),
    "acceptance_rate": ("accepted", "submitted"),
    "draft_efficiency": ("accepted", "drafted"),
    "server_tokens_per_busy_second": ("committed", "verify_s"),
}
"""Metrics that are one sum over requests divided by another, which is what has an interval."""
PROACTIVE_RATIOS = {"alignment_rate": ("aligned", "proactive_rounds"), "proactive_hit_depth": ("reused", "aligned")}
"""The same, where anything was drafted while the target verified."""
EXPECTED_RATIOS = {
    "expected_accepted_length": ("expected", "expecting"),
    "accepted_length": ("accepted_expecting", "expecting"),
    "expectation_bias": ("expected", "accepted_expecting"),
}
"""The same, where the policy decides by chances of acceptance."""
SHARES = ("acceptance_rate", "draft_efficiency", "alignment_rate")
"""Those that cannot be more than 1."""


def counts(group: RequestGroup) -> Metrics:
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


def _whole(value: float) -> int | None:
    return int(value) if isfinite(value) else None


def ratios(rounds: RoundColumns) -> Metrics:
    """The pooled ratios with their intervals, and the means of the requests' own ratios where papers differ on them."""
    prompts = {name: place for place, name in enumerate(dict.fromkeys(rounds.names))}
    return pooled(rounds) | {"intervals": ratio_intervals(rounds, prompts)}


def pooled(rounds: RoundColumns) -> Metrics:
    """The pooled ratios, and the means of the requests' own."""
    values: Metrics = {
        name: ratio_of_sums(rounds.sum(top), rounds.sum(base)) for name, (top, base) in _pairs(rounds).items()
    }
    for name in ("acceptance_length", "acceptance_rate"):
        values[f"{name}_request_mean"] = _request_mean(*map(rounds.per_request, RATIOS[name]))
    values["acceptance_length_sd"] = finite_or_none(float(np.std(rounds["committed"]))) if rounds.count else None
    return values


def _pairs(rounds: RoundColumns) -> dict[str, tuple[str, str]]:
    return (
        RATIOS
        | (EXPECTED_RATIOS if rounds.sum("expecting") else {})
        | (PROACTIVE_RATIOS if rounds.sum("proactive") else {})
    )


def _request_mean(numerator: Array, denominator: Array) -> float | None:
    defined = denominator > 0
    return finite_or_none(float((numerator[defined] / denominator[defined]).mean())) if defined.any() else None


def ratio_intervals(rounds: RoundColumns, units: Units) -> Metrics:
    """95% intervals of the pooled ratios, over units."""
    return {name: _ratio_interval(name, top, base, rounds, units) for name, (top, base) in _pairs(rounds).items()}


def _ratio_interval(name: str, top: str, base: str, rounds: RoundColumns, units: Units) -> list[float] | None:
    found = interval_of_ratio(rounds.per_unit(top, units), rounds.per_unit(base, units))
    return [found[0], min(1.0, found[1])] if found and name in SHARES else found


def acceptance_by_position(rounds: RoundColumns) -> Metrics:
    """Acceptance of draft position i = 1, 2, ... up to the deepest that a token was submitted at.

    `acceptance_at`: rounds that accepted position i / all rounds. `acceptance_at_conditional`: the same count
    over the rounds that submitted a token at depth i and accepted all i - 1 before. In a tree, position is depth.
    """
    accepted, deepest = rounds["accepted"], _deepest(rounds)
    positions = range(1, int(np.fmax(accepted, deepest).max(initial=0)) + 1)
    hits = [int(np.count_nonzero(accepted >= i)) for i in positions]
    all_known = not np.isnan(deepest).any()
    reached = [int(np.count_nonzero((accepted >= i - 1) & (deepest >= i))) * all_known for i in positions]
    return {
        "acceptance_at": [hit / rounds.count for hit in hits],
        "acceptance_at_conditional": [ratio_of_sums(hit, tries) for hit, tries in zip(hits, reached, strict=True)],
    }


def _deepest(rounds: RoundColumns) -> Array:
    """The depth that each round reached; where its record does not say, that of a chain of what was submitted."""
    pipeline = rounds["steps"] > 0  # of a pipeline's nodes, many have one depth
    chain = np.where(pipeline, rounds["accepted"], rounds["submitted"])
    return np.where(np.isnan(rounds["deepest"]), chain, rounds["deepest"])

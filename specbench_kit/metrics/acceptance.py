"""Counts of drafted, submitted, accepted and committed tokens, their ratios, and acceptance by
position and drafter.

Those by drafter are of methods that have several to choose from.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Annotated

import numpy as np
from msgspec import Meta

from specbench_kit.core.plain_text import one_line
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Metrics, RequestGroup, RoundColumns, finite_or_none
from specbench_kit.metrics.statistics import Units, interval_of_ratio, ratio_of_sums

RATIOS = {
    "acceptance_length": ("committed", "rounds"),
    "acceptance_rate": ("accepted", "submitted"),
    "draft_efficiency": ("accepted", "drafted"),
    "server_tokens_per_busy_second": ("joined", "verify_s"),
}
"""Metrics that are one sum over requests divided by another; such ratios have confidence
intervals.
"""
OF_VERIFICATIONS = ("acceptance_length", "acceptance_rate", "draft_efficiency")
"""Ratios that a pipeline has not: it feeds a tree without end, and verifies a part of it in every
step.
"""
PIPELINE_RATIOS = {"tokens_per_step": ("committed", "steps"), "hit_rate": ("accepted", "committed")}
"""The ratios that a pipeline has instead."""
PROACTIVE_RATIOS = {
    "alignment_rate": ("aligned", "proactive_rounds"),
    "proactive_hit_depth": ("reused", "aligned"),
}
"""Further ratios if anything was drafted while the target verified."""
PAUSE_RATIOS = {"acceptance_after_pause": ("accepted_after_pause", "after_pause")}
"""Further ratios if a request was drafted for again after a round without a draft."""
EXPECTED_RATIOS = {
    "expected_accepted_length": ("expected", "expecting"),
    "accepted_length": ("accepted_expecting", "expecting"),
    "expectation_bias": ("expected", "accepted_expecting"),
}
"""Further ratios if the policy decides by probabilities of acceptance."""
GRAMMAR_RATIOS = {
    "forbidden_share": ("forbidden", "submitted"),
    "forced_share": ("skipped", "joined"),
    "choice_acceptance_rate": ("accepted_choices", "submitted_choices"),
}
"""Further ratios if outputs had to follow a grammar."""
SHARES = (
    "acceptance_rate",
    "draft_efficiency",
    "alignment_rate",
    "hit_rate",
    "acceptance_after_pause",
    "forbidden_share",
    "forced_share",
    "choice_acceptance_rate",
)
"""Ratios that cannot exceed 1."""


def counts(group: RequestGroup) -> Metrics:
    """Return the numbers of requests, rounds and tokens; a number that the records do not hold is
    None.
    """
    rounds = group.rounds
    sums = {column: rounds.sum(column) for column in ("joined", "drafted", "submitted", "accepted")}
    sums["wasted"] = sums["drafted"] - sums["accepted"]
    tokens = {column: int(total) if isfinite(total) else None for column, total in sums.items()}
    return {
        "finished": len(group.finished),
        "failed": len(group.records) - len(group.finished),
        "rounds": rounds.count,
        "tokens": tokens["joined"],
        "drafted": tokens["drafted"],
        "submitted": tokens["submitted"],
        "accepted": tokens["accepted"],
        "wasted_tokens": tokens["wasted"],
    }


def outcomes(group: RequestGroup) -> Metrics:
    """Return the shares of outputs that follow their grammar to its end, and of those that were cut
    before; empty without a grammar.
    """
    found = [record.grammar for record in group.finished if record.grammar is not None]
    if not found:
        return {}
    return {f"{name}_share": found.count(name) / len(found) for name in ("valid", "cut")}


def ratios(rounds: RoundColumns) -> Metrics:
    """Return the ratios over all requests with their intervals over prompts, and the means of the
    requests' ratios.
    """
    prompts = {name: number for number, name in enumerate(dict.fromkeys(rounds.names))}
    return pooled(rounds) | {"intervals": ratio_intervals(rounds, prompts)}


def pooled(rounds: RoundColumns) -> Metrics:
    """Return the ratios over all requests and, where papers differ on it, the means of the
    requests' own ratios.
    """
    values: Metrics = {
        name: ratio_of_sums(rounds.sum(numerator), rounds.sum(denominator))
        for name, (numerator, denominator) in _applicable_ratios(rounds).items()
    }
    means = ("acceptance_length", "acceptance_rate")
    if _is_pipeline(rounds):
        names = (
            *OF_VERIFICATIONS,
            *(f"{name}_request_mean" for name in means),
            "acceptance_length_sd",
        )
        return values | dict.fromkeys(names)
    for name in means:
        numerators, denominators = map(rounds.per_request, RATIOS[name])
        defined = denominators > 0
        mean = (
            float((numerators[defined] / denominators[defined]).mean()) if defined.any() else None
        )
        values[f"{name}_request_mean"] = None if mean is None else finite_or_none(mean)
    values["acceptance_length_sd"] = (
        finite_or_none(float(np.std(rounds["committed"]))) if rounds.count else None
    )
    return values


def ratio_intervals(rounds: RoundColumns, units: Units) -> Metrics:
    """Return 95% intervals of the ratios over all requests; the units are what varies
    independently.
    """
    intervals: Metrics = {}
    for name, (numerator, denominator) in _applicable_ratios(rounds).items():
        interval = interval_of_ratio(
            rounds.per_unit(numerator, units), rounds.per_unit(denominator, units)
        )
        if interval and name in SHARES:
            interval = [interval[0], min(1.0, interval[1])]
        intervals[name] = interval
    return intervals


def _applicable_ratios(rounds: RoundColumns) -> dict[str, tuple[str, str]]:
    expected = EXPECTED_RATIOS if rounds.sum("expecting") else {}
    if _is_pipeline(rounds):
        return {
            name: ratio for name, ratio in RATIOS.items() if name not in OF_VERIFICATIONS
        } | PIPELINE_RATIOS
    ahead = PROACTIVE_RATIOS if rounds.sum("proactive") else {}
    paused = PAUSE_RATIOS if rounds.sum("after_pause") else {}
    return RATIOS | expected | ahead | paused | (GRAMMAR_RATIOS if rounds.constrained else {})


def _is_pipeline(rounds: RoundColumns) -> bool:
    """Return True for rounds that last until a pipeline is refilled, so that a whole answer may be
    one.
    """
    return rounds.sum("steps") > 0


def acceptance_by_position(rounds: RoundColumns) -> Metrics:
    """Return acceptance at draft positions i = 1, 2, ... up to the deepest at which a token was
    submitted.

    `acceptance_at` is the share of all rounds that accepted position i, `acceptance_at_conditional` the share of the
    rounds that submitted a token at position i and accepted all i - 1 before it. In a tree, position is depth.
    """
    accepted = rounds["accepted"]
    # A record that does not say its largest depth is taken for a chain. In a pipeline many nodes
    # share a depth, so that the number of submitted nodes says nothing about it.
    chain = np.where(rounds["steps"] > 0, accepted, rounds["submitted"])
    deepest = np.where(np.isnan(rounds["deepest"]), chain, rounds["deepest"])
    positions = range(1, int(np.fmax(accepted, deepest).max(initial=0)) + 1)
    hits = [int(np.count_nonzero(accepted >= i)) for i in positions]
    depths_known = not np.isnan(deepest).any()
    reached = [
        int(np.count_nonzero((accepted >= i - 1) & (deepest >= i))) * depths_known
        for i in positions
    ]
    return {
        "acceptance_at": [hit / rounds.count for hit in hits],
        "acceptance_at_conditional": [
            ratio_of_sums(hit, tries) for hit, tries in zip(hits, reached, strict=True)
        ],
    }


NO_DRAFT = "none"
"""Stands for the rounds in which no drafter had a token."""


@dataclass(slots=True)
class DrafterRounds:
    """The rounds of one drafter."""

    name: Annotated[
        str,
        Meta(
            description="name of the drafter that the rounds state; 'none' for rounds in which none drafted"
        ),
    ]
    rounds: Annotated[int, Meta(description="number of its rounds")] = 0
    share: Annotated[float, Meta(description="its rounds / all rounds")] = 0.0
    submitted: Annotated[
        int, Meta(description="drafted tokens that were sent to be verified in its rounds")
    ] = 0
    accepted: Annotated[
        int, Meta(description="drafted tokens that the target accepted in its rounds")
    ] = 0
    committed: Annotated[int, Meta(description="tokens that joined outputs in its rounds")] = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Return accepted over submitted tokens; None if nothing was submitted."""
        return ratio_of_sums(self.accepted, self.submitted)

    @property
    def acceptance_length(self) -> float | None:
        """Return committed tokens per verification."""
        return ratio_of_sums(self.committed, self.rounds)


def by_drafter(records: Iterable[RequestRecord]) -> list[DrafterRounds]:
    """Return the rounds by drafter, the most frequent first; empty if no round says who drafted."""
    found: dict[str, DrafterRounds] = {}
    for record in records:
        for step in record.rounds:
            name = one_line(step.drafter) or NO_DRAFT
            part = found.setdefault(name, DrafterRounds(name))
            part.rounds += 1
            part.submitted += step.submitted or 0
            part.accepted += step.accepted
            part.committed += step.committed
    if not set(found) - {NO_DRAFT}:
        return []
    total = sum(part.rounds for part in found.values())
    for part in found.values():
        part.share = part.rounds / total
    return sorted(found.values(), key=lambda part: -part.rounds)

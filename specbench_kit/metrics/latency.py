"""Where the time of requests went: until tokens came, by phase, and into drafts that were wasted."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from specbench_kit.metrics.rounds import Array, Metrics, RequestGroup, RoundColumns, finite_or_none
from specbench_kit.metrics.statistics import ratio_of_sums

T = TypeVar("T")

PHASES = ("prefill", "draft", "policy", "link", "queue", "verify", "commit")


def latency(group: RequestGroup) -> Metrics:
    """Distributions of ttft and tpot over requests and of itl over gaps; a one-token request has no tpot."""
    return {
        "ttft": distribution(_present([r.ttft_s for r in group.finished])),
        "tpot": distribution(_present([r.tpot_s for r in group.finished])),
        "itl": distribution(inter_token_gaps(group.rounds)),
    }


def inter_token_gaps(rounds: RoundColumns) -> Array:
    """Gaps between committed tokens: a burst of n tokens, gap seconds after the last, is n gaps of gap / n.

    A request's first burst gives none: the wait for it is ttft, and its tokens arrive together. The tokens of a round
    that knows when each of them was committed are bursts of one.
    """
    request, tokens, end_s = _bursts(rounds)
    later = (request[1:] == request[:-1]) & np.isfinite(np.diff(end_s))
    sizes = tokens[1:][later]
    return np.repeat(np.diff(end_s)[later] / sizes, sizes.astype(np.int64))


def _bursts(rounds: RoundColumns) -> tuple[Array, Array, Array]:
    """Request, tokens and moment of everything that was committed at once."""
    committed, ended_s = rounds["committed"], rounds["end_s"]
    if not any(rounds.commits_s):
        some = committed != 0
        return rounds.request[some], committed[some], ended_s[some]
    bursts = [
        (request, size, end_s)
        for request, moments_s, tokens, round_end_s in zip(
            rounds.request, rounds.commits_s, committed, ended_s, strict=True
        )
        for size, end_s in ([(1, moment_s) for moment_s in moments_s] or [(tokens, round_end_s)])
        if size
    ]
    request, sizes, moments_s = np.array(bursts, dtype=np.float64).reshape(-1, 3).T
    return request, sizes, moments_s


def distribution(values: Sequence[float] | Array) -> Metrics:
    """Mean and percentiles (linear interpolation), each None where there are no values."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "p99"))
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def _present(values: Sequence[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def phases(rounds: RoundColumns) -> Metrics:
    """Busy seconds of each phase, and their shares, which sum to 1; `prefill` is the draft model's."""
    seconds = {phase: finite_or_none(rounds.sum(f"{phase}_s")) for phase in PHASES}
    total = sum(filter(None, seconds.values()))
    return {
        "phase_seconds": seconds,
        "phase_share": {phase: ratio_of_sums(busy or 0.0, total) for phase, busy in seconds.items()},
    }


def wasted_time(rounds: RoundColumns) -> Metrics:
    """Drafting seconds spent on wasted tokens, each token at its round's mean drafting time.

    `wdt` counts drafted - accepted, so tokens that were never sent too; `wdt_paper` is WISP Eq. 8 as printed,
    (submitted - accepted)+; `wdt_share` is wdt over all drafting seconds.
    """
    drafted, accepted, draft_s = rounds["drafted"], rounds["accepted"], rounds["draft_s"]
    per_token = np.divide(draft_s, drafted, out=np.zeros_like(draft_s), where=drafted > 0)
    wdt = float((per_token * (drafted - accepted)).sum())
    return {
        "wdt": finite_or_none(wdt),
        "wdt_paper": finite_or_none(float((per_token * np.maximum(0.0, rounds["submitted"] - accepted)).sum())),
        "wdt_share": ratio_of_sums(wdt, rounds.sum("draft_s")),
    }

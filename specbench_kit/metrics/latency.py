"""The times of requests: until tokens were committed, by phase, in drafts that were wasted, and
against an SLO.

The SLO is a time per output token that follows from plain decoding.
"""

from collections.abc import Sequence

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Array, Metrics, RequestGroup, RoundColumns, finite_or_none
from specbench_kit.metrics.statistics import Interval, interval_of_estimate, ratio_of_sums

PHASES = ("prefill", "draft", "policy", "link", "queue", "verify", "commit")


def latency(group: RequestGroup) -> Metrics:
    """Return the distributions of TTFT and TPOT over requests and of ITL over gaps; a one-token
    request has no TPOT.
    """
    return {
        "ttft": distribution([r.ttft_s for r in group.finished if r.ttft_s is not None]),
        "tpot": distribution([r.tpot_s for r in group.finished if r.tpot_s is not None]),
        "itl": distribution(inter_token_gaps(group.rounds)),
    }


def inter_token_gaps(rounds: RoundColumns) -> Array:
    """Return the gaps between committed tokens in seconds.

    n tokens that are committed together are n gaps of 1/n of the time since the commit before. A
    request's first commit gives no gap: the wait for it is TTFT. The tokens of a round that knows
    the moment of each commit are taken one by one.
    """
    return gaps_of_bursts(*commits(rounds))


def gaps_of_bursts(owner: Array, sizes: Array, moments_s: Array) -> Array:
    """Return a gap for every token of every burst but each owner's first; the bursts of one owner
    are in a row.
    """
    later = (owner[1:] == owner[:-1]) & np.isfinite(np.diff(moments_s))
    tokens = sizes[1:][later]
    return np.repeat(np.diff(moments_s)[later] / tokens, tokens.astype(np.int64))


def commits(rounds: RoundColumns) -> tuple[Array, Array, Array]:
    """Return request, number of tokens and moment of every commit, forced tokens included."""
    committed = rounds["joined"]
    ended_s = rounds["end_s"]
    if not any(rounds.commits_s):
        nonempty = committed != 0
        return rounds.request[nonempty], committed[nonempty], ended_s[nonempty]
    commits: list[tuple[np.number, float, float]] = []
    by_round = zip(rounds.request, rounds.commits_s, committed, ended_s, strict=True)
    for owner, round_moments_s, tokens, round_end_s in by_round:
        if round_moments_s:
            commits += [(owner, 1, moment_s) for moment_s in round_moments_s]
        elif tokens:
            commits.append((owner, tokens, round_end_s))
    request, sizes, moments_s = np.array(commits, dtype=np.float64).reshape(-1, 3).T
    return request, sizes, moments_s


def distribution(values: Sequence[float] | Array) -> Metrics:
    """Return mean and percentiles (linear interpolation), each None if there are no values."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "p99"))
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


STRETCHES = 10
"""Stretches of a run, whose spread says how far its 99th percentile is to be trusted."""


def p99(values: Array, stretches: Array) -> tuple[float, Interval | None]:
    """Return the 99th percentile of values, with its 95% interval over the stretches of the run
    that they are in, from 0 to `STRETCHES` - 1; None if there are too few.
    """
    value = float(np.percentile(values, 99))
    weights = np.bincount(stretches, minlength=STRETCHES).astype(np.float64)
    # Where one stretch holds all values, nothing is left without it.
    left = [values[stretches != stretch] for stretch in range(STRETCHES)]
    without = np.array([np.percentile(rest, 99) if len(rest) else np.nan for rest in left])
    return value, interval_of_estimate(value, without, weights)


def phases(rounds: RoundColumns) -> Metrics:
    """Return the busy seconds of each phase, and their shares, which sum to 1; `prefill` is the
    draft model's.
    """
    seconds = {phase: finite_or_none(rounds.sum(f"{phase}_s")) for phase in PHASES}
    total = sum(filter(None, seconds.values()))
    return {
        "phase_seconds": seconds,
        "phase_share": {
            phase: ratio_of_sums(busy or 0.0, total) for phase, busy in seconds.items()
        },
    }


def wasted_time(rounds: RoundColumns) -> Metrics:
    """Return the drafting seconds spent on wasted tokens, each token at its round's mean drafting
    time, and the bytes.

    `wdt` counts drafted - accepted tokens, including those that were never sent; `wdt_paper` counts
    (submitted - accepted)+ as WISP Eq. 8 does; `wdt_share` is wdt over all drafting seconds. The bytes of drafts are
    those of drafts to a server; no other run has them.
    """
    drafted = rounds["drafted"]
    accepted = rounds["accepted"]
    draft_s = rounds["draft_s"]
    per_token = np.divide(draft_s, drafted, out=np.zeros_like(draft_s), where=drafted > 0)
    wdt = float((per_token * (drafted - accepted)).sum())
    return {
        "wdt": finite_or_none(wdt),
        "wdt_paper": finite_or_none(
            float((per_token * np.maximum(0.0, rounds["submitted"] - accepted)).sum())
        ),
        "wdt_share": ratio_of_sums(wdt, rounds.sum("draft_s")),
        **_draft_bytes(rounds),
    }


def _draft_bytes(rounds: RoundColumns) -> Metrics:
    sent = rounds.sum("sent_bytes")
    if not sent:
        return {}
    return {
        "draft_bytes": int(sent),
        "stale_bytes_share": ratio_of_sums(rounds.sum("stale_bytes"), sent),
    }


SCALES = (0.8, 0.9, 1.0, 1.1, 1.2)
"""Factors on the SLO."""
PROMISE = 90
"""The percentile of plain decoding's TPOT that is the SLO (AdaSpec, section 5)."""


def _known_tpots_s(group: RequestGroup) -> Array:
    return np.array([record.tpot_s for record in group.finished if record.tpot_s is not None])


def attainment(group: RequestGroup, baseline: Sequence[RequestRecord]) -> Metrics:
    """Return the share of requests whose TPOT meets the SLO, at every scale; empty if no TPOT is
    known.
    """
    tpots_s = _known_tpots_s(group)
    baseline_tpots_s = _known_tpots_s(RequestGroup(baseline))
    if not len(tpots_s) or not len(baseline_tpots_s):
        return {}
    slo_s = float(np.percentile(baseline_tpots_s, PROMISE))
    return {"slo_attainment": [float((tpots_s <= scale * slo_s).mean()) for scale in SCALES]}

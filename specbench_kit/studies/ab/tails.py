"""The time between tokens of a server that drafts and one that does not: from which load on drafts
make its 99th percentile longer.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import UNSET, UnsetType

from specbench_kit.live.engines.answers import AnswerRecord
from specbench_kit.metrics.latency import STRETCHES, p99
from specbench_kit.reports.document import code
from specbench_kit.serving.figures import Interval
from specbench_kit.studies.ab.figures import gaps_s
from specbench_kit.studies.ab.summary import AbSummary, ServerFigures
from specbench_kit.studies.tail_latency import TailPair, tail_verdict

FEW_TOGETHER = 0.25
SHARE_TOGETHER = 0.5
"""Tokens of a burst besides its first, and their share of those at a server that drafts, up to
which another one that says nothing of drafts is taken for one without: a busy client finds some
tokens together at any server.
"""


def tails(
    records: Sequence[AnswerRecord], servers: Mapping[str, ServerFigures]
) -> dict[str, Interval] | UnsetType:
    """Return the 99th percentile of the time between tokens of each server under a load, with its
    interval over stretches of turns; UNSET unless one server drafts and the other does not.
    """
    if drafting_server(servers) is None:
        return UNSET
    turns = 1 + max(record.turn for record in records)
    found = {}
    for name in servers:
        own = [record for record in records if record.key.server == name and record.answer]
        gaps = [gaps_s([record.answer]) for record in own if record.answer is not None]
        stretches = [
            np.full(len(gap), record.turn * STRETCHES // turns)
            for record, gap in zip(own, gaps, strict=True)
        ]
        if not sum(map(len, gaps)):
            return UNSET
        value, bounds = p99(np.concatenate(gaps), np.concatenate(stretches))
        found[name] = Interval(value, *(bounds or ()))
    return found


def drafting_server(servers: Mapping[str, ServerFigures]) -> str | None:
    """Return the server that drafts; None unless the other one does not, as far as they and their
    streams tell.
    """
    drafting = [name for name, figures in servers.items() if _reports_drafts(figures)]
    if len(drafting) != 1:
        return None
    together = {name: (own.tokens_per_burst or 1.0) - 1.0 for name, own in servers.items()}
    most = max(FEW_TOGETHER, SHARE_TOGETHER * together[drafting[0]])
    others = [together[name] for name in servers if name not in drafting]
    return drafting[0] if all(other <= most for other in others) else None


def _reports_drafts(figures: ServerFigures) -> bool:
    counts = figures.speculation
    return counts is not None and bool(
        counts.drafted or counts.accepted or (counts.acceptance_length or 1.0) > 1.0
    )


def _height(load: str) -> float:
    """Return the number at the end of a load's name; 0 without one, which keeps the order."""
    try:
        return float(load.rpartition(" ")[2])
    except ValueError:
        return 0.0


def tail_sentences(summary: AbSummary) -> list[str]:
    """Return from which load on the server that drafts has the longer gaps; nothing where both
    draft, or neither.
    """
    pairs: dict[str, list[TailPair]] = {}
    for load in summary.loads:
        name = drafting_server(load.servers)
        if name is None or load.itl_p99 is UNSET:
            continue
        (other,) = (server for server in load.itl_p99 if server != name)
        pairs.setdefault(name, []).append(
            TailPair(load.load, load.itl_p99[name], load.itl_p99[other])
        )
    lines = []
    for name, own in pairs.items():
        rising = sorted(own, key=lambda pair: _height(pair.load))
        (other,) = (server for server in summary.names if server != name)
        verdict = tail_verdict(rising, code(name), code(other), "lower loads")
        lines.append(f"The P99 of the time between tokens (ITL): {verdict}.")
    return lines

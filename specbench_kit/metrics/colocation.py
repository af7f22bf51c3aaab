"""Drafting beyond a link held against the same drafting beside the target: times, and round trips that decide it.

A round drafts k tokens, in t_e each at the edge or t_s beside the target; verifying them takes t_v, decoding one token
plainly t_1, and a round commits N tokens. With a round trip r, a response of R rounds takes R (k t_e + r + t_v) from
the edge, R (k t_s + t_v) + r with both models on the server, and R N t_1 + r decoded plainly, since prompt and answer
cross the link once. So the edge is faster

- than plain decoding where r < (N t_1 - t_v - k t_e) R / (R - 1),
- than the same method beside the target where r < k (t_s - t_e) R / (R - 1): nowhere unless the edge drafts faster.

For R towards infinity, t_v = t_1 and N = (1 - a^(k+1)) / (1 - a) at an acceptance of a per token, the first is the
window of "Speculation at a Distance" (Lyu, Irukulapati and Champati 2026, arXiv 2606.25091),
r < a (1 - a^k) / (1 - a) t_1 - k t_e. Drafting while the target verifies hides drafting at most, so that no overlap
wins against a co-located method beyond r = k t_s (ibid.). A server that drafts, too, is busy for k t_s + t_v per round
instead of t_v: relieved of it, it serves 1 + k t_s / t_v times as many clients if they keep it busy (ibid.).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics import paired
from specbench_kit.metrics.paired import Side, request_seconds
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.units import Units

Records = Sequence[RequestRecord]


ROUNDING_S = 1e-9
"""What sums of many seconds may leave where nothing should be left."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds of a run's requests at a round trip of `rtt_s`, over which the edge crosses the link `rounds` times.

    `plain_s` is what they take decoded plainly, if that is known; `drafting_s` and `verifying_s` are the server's where
    it does both.
    """

    requests: int
    rounds: int
    rtt_s: float
    edge_s: float
    colocated_s: float
    drafting_s: float
    verifying_s: float
    plain_s: float | None = None

    def window_s(self, rival_s: float) -> float:
        """The round trip below which the edge takes less time than a rival that crosses the link once per request."""
        crossings = self.rounds - self.requests
        found = self.rtt_s + (rival_s - self.edge_s) / crossings if crossings else 0.0
        return found if found > ROUNDING_S else 0.0

    @property
    def overlapped_s(self) -> float:
        """The round trip beyond which no overlap can hide it: the drafting of a round."""
        return self.drafting_s / self.rounds

    @property
    def capacity(self) -> float | None:
        """How many times as many clients a busy server can verify for that does not draft for them."""
        return 1 + self.drafting_s / self.verifying_s if self.verifying_s else None


def colocation(records: Records, baseline: Records, units: Units, deployment: Mapping[str, Any]) -> Metrics:
    """The metrics that hold an edge against a co-located draft model; none where nothing was drafted beyond a link.

    `deployment` is what `run.json` says of it.
    """
    timed = [one for one in records if one.finish_reason != "error" and one.colocated_s is not None]
    if not timed:
        return {}
    own, plain = request_seconds(timed), request_seconds(baseline)
    beside = {one.key: one.colocated_s for one in timed if one.colocated_s}
    if plain and not own.keys() & plain.keys():
        return {}
    totals = _totals(timed, plain, float(deployment["link"]["rtt_s"]))
    ratio = paired.speedup(Side(own, beside), units)
    speedup = paired.speedup(Side(beside, plain), units) if plain else None
    windows = {"rtt_window_s": totals.window_s(totals.colocated_s), "rtt_window_overlapped_s": totals.overlapped_s}
    if totals.plain_s is not None:
        windows["rtt_window_autoregressive_s"] = totals.window_s(totals.plain_s)
    compared = {"colocated_ratio": ratio, "colocated_speedup": speedup}
    known = {name: one for name, one in compared.items() if one is not None}
    return {
        **{name: one.ratio.value for name, one in known.items()},
        **windows,
        "capacity_factor": totals.capacity,
        "intervals": {name: one.interval() for name, one in known.items()},
    }


def _totals(timed: Records, plain: paired.Seconds, rtt_s: float) -> Totals:
    shared = [one for one in timed if one.key in plain] if plain else timed
    return Totals(
        requests=len(shared),
        rounds=sum(len(one.rounds) for one in shared),
        rtt_s=rtt_s,
        edge_s=sum(one.e2e_s or 0.0 for one in shared),
        colocated_s=sum(one.colocated_s or 0.0 for one in shared),
        drafting_s=sum(one.colocated_draft_s or 0.0 for one in shared),
        verifying_s=sum(step.verify_s for one in shared for step in one.rounds),
        plain_s=sum(plain[one.key] for one in shared) if plain else None,
    )

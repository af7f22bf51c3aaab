"""Drafting beyond a link compared with the same drafting beside the target: times, and break-even
round trips.

A round drafts k tokens, in t_e each at the edge or t_s beside the target; verifying them takes t_v,
decoding one token plainly t_1, and a round commits N tokens. With a round trip r, a response of R
rounds takes R (k t_e + r + t_v) from the edge, R (k t_s + t_v) + r with both models on the server,
and R N t_1 + r decoded plainly, since prompt and answer cross the link once. So the edge is faster

- than plain decoding if r < (N t_1 - t_v - k t_e) R / (R - 1),
- than the same method beside the target if r < k (t_s - t_e) R / (R - 1): never, unless the edge drafts faster.

For R towards infinity, t_v = t_1 and N = (1 - a^(k+1)) / (1 - a) at an acceptance of a per token,
the first is the window of "Speculation at a Distance" (Lyu, Irukulapati and Champati 2026, arXiv
2606.25091), r < a (1 - a^k) / (1 - a) t_1 - k t_e. Drafting while the target verifies hides
drafting at most, so that no overlap is faster than a co-located method beyond r = k t_s (ibid.). A
server that also drafts is busy for k t_s + t_v per round instead of t_v: without drafting, it
serves 1 + k t_s / t_v times as many clients if they keep it busy (ibid.).
"""

from dataclasses import dataclass

from specbench_kit.decoding.records import Records
from specbench_kit.metrics import paired
from specbench_kit.metrics.paired import Side, request_seconds, request_tokens
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.metrics.statistics import Units
from specbench_kit.runs.deployment import DeploymentDescription

ROUNDING_S = 1e-9
"""Largest difference of two sums of many seconds that counts as zero."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds of a run's requests at a round trip of `rtt_s`, with `rounds` round trips from the
    edge.

    `plain_s` is the time of plain decoding, if it is known; `drafting_s` and `verifying_s` are the server's if it does
    both.
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
        """Return the round trip below which the edge is faster than a rival with one round trip per
        request.
        """
        # Only the round trips that the rival does not have can make the edge slower.
        crossings = self.rounds - self.requests
        window_s = self.rtt_s + (rival_s - self.edge_s) / crossings if crossings else 0.0
        return window_s if window_s > ROUNDING_S else 0.0

    @property
    def overlapped_s(self) -> float:
        """Drafting time per round: no overlap can hide a longer round trip."""
        return self.drafting_s / self.rounds

    @property
    def capacity(self) -> float | None:
        """The factor by which a busy server serves more clients if it does not draft for them."""
        return 1 + self.drafting_s / self.verifying_s if self.verifying_s else None


def colocation(
    records: Records, baseline: Records, units: Units, deployment: DeploymentDescription | None
) -> Metrics:
    """Return the metrics that compare an edge with a co-located draft model; empty if nothing was
    drafted at an edge.

    `deployment` is the field of that name in `run.json`, None for a live run, whose round trip is not known.
    """
    timed = [
        record
        for record in records
        if record.finish_reason != "error" and record.colocated_s is not None
    ]
    if not timed:
        return {}
    edge_seconds = request_seconds(timed)
    plain_seconds = request_seconds(baseline)
    if plain_seconds and not edge_seconds.keys() & plain_seconds.keys():
        return {}
    colocated_seconds = {record.key: record.colocated_s for record in timed if record.colocated_s}
    rtt_s = deployment.link.rtt_s if deployment else 0.0
    plain_tokens = request_tokens(baseline)
    totals = _totals(timed, plain_seconds, plain_tokens, rtt_s)
    speeds = {"colocated_ratio": paired.speedup(Side(edge_seconds, colocated_seconds), units)}
    windows = {"rtt_window_overlapped_s": totals.overlapped_s}
    if deployment:
        windows["rtt_window_s"] = totals.window_s(totals.colocated_s)
    if totals.plain_s is not None:
        own_tokens = request_tokens(timed)
        beside = Side(
            colocated_seconds, plain_seconds, own_tokens=own_tokens, baseline_tokens=plain_tokens
        )
        speeds["colocated_speedup"] = paired.speedup(beside, units)
        if deployment:
            windows["rtt_window_autoregressive_s"] = totals.window_s(totals.plain_s)
    defined = {name: speed for name, speed in speeds.items() if speed is not None}
    return {
        **{name: speed.ratio.value for name, speed in defined.items()},
        **windows,
        "capacity_factor": totals.capacity,
        "intervals": {name: speed.interval() for name, speed in defined.items()},
    }


def _totals(
    timed: Records, plain_seconds: paired.Seconds, plain_tokens: paired.Tokens, rtt_s: float
) -> Totals:
    shared = [record for record in timed if record.key in plain_seconds] if plain_seconds else timed
    plain_s = None
    if plain_seconds:
        # Sampled answers differ in length: plain decoding is given as many tokens as were committed
        # here.
        tokens = sum(len(record.output_ids) for record in shared) / sum(
            plain_tokens[record.key] for record in shared
        )
        plain_s = sum(plain_seconds[record.key] for record in shared) * tokens
    return Totals(
        requests=len(shared),
        rounds=sum(len(record.rounds) for record in shared),
        rtt_s=rtt_s,
        edge_s=sum(record.e2e_s or 0.0 for record in shared),
        colocated_s=sum(record.colocated_s or 0.0 for record in shared),
        drafting_s=sum(record.colocated_draft_s or 0.0 for record in shared),
        verifying_s=sum(step.verify_s for record in shared for step in record.rounds),
        plain_s=plain_s,
    )

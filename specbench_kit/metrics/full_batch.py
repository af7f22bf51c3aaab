"""The speed of a batch while all of its places are taken, without its beginning and its end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.latency import commits
from specbench_kit.metrics.rounds import RequestGroup


@dataclass(frozen=True, slots=True)
class FullBatch:
    """What a batch did in the time in which it was full, which is a `share` of the run's.

    `throughput` is in tokens per second. `tpot_s` is the mean over the requests that ended in that time, None if none
    of them has two tokens.
    """

    throughput: float
    tpot_s: float | None
    share: float


def full_batch(records: Sequence[RequestRecord], batch_size: int) -> FullBatch | None:
    """Return what a batch did while it was full; None if it never was, or not for long enough.

    It is full from when the first requests have all begun to answer until the last one is admitted:
    from then on places stay empty. The prompts of the first requests are left out, as are those of
    the requests that are last.
    """
    group = RequestGroup(records)
    timed = [
        record
        for record in group.finished
        if record.finished_s is not None and record.e2e_s is not None
    ]
    if len(timed) < len(group.finished) or len(timed) <= batch_size:
        return None
    admitted_s = np.array([(record.finished_s or 0.0) - (record.e2e_s or 0.0) for record in timed])
    first = np.argsort(admitted_s, kind="stable")[:batch_size]
    began_s = max(admitted_s[place] + (timed[place].ttft_s or 0.0) for place in first)
    ended_s = admitted_s.max()
    if ended_s <= began_s:
        return None
    owner, tokens, after_s = commits(group.rounds)
    moments_s = admitted_s[owner.astype(np.int64)] + after_s
    whole_s = max(record.finished_s or 0.0 for record in timed) - admitted_s.min()
    ended = [record for record in timed if began_s < (record.finished_s or 0.0) <= ended_s]
    tpots_s = [record.tpot_s for record in ended if record.tpot_s is not None]
    return FullBatch(
        throughput=float(
            tokens[(moments_s > began_s) & (moments_s <= ended_s)].sum() / (ended_s - began_s)
        ),
        tpot_s=float(np.mean(tpots_s)) if tpots_s else None,
        share=float((ended_s - began_s) / whole_s),
    )

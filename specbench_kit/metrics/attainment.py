"""SLO attainment: the share of requests that keep a time per output token derived from plain decoding."""

from collections.abc import Sequence

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Metrics, RequestGroup

SCALES = (0.8, 0.9, 1.0, 1.1, 1.2)
"""Factors on the SLO."""
PROMISE = 90
"""The percentile of plain decoding's TPOT that is the SLO (AdaSpec, section 5)."""


def attainment(group: RequestGroup, baseline: Sequence[RequestRecord]) -> Metrics:
    """Return the share of requests whose TPOT meets the SLO, at every scale; empty if no TPOT is known."""
    tpots_s, baseline_tpots_s = (
        np.array([record.tpot_s for record in records if record.tpot_s is not None])
        for records in (group.finished, RequestGroup(baseline).finished)
    )
    if not len(tpots_s) or not len(baseline_tpots_s):
        return {}
    slo_s = float(np.percentile(baseline_tpots_s, PROMISE))
    return {"slo_attainment": [float((tpots_s <= scale * slo_s).mean()) for scale in SCALES]}

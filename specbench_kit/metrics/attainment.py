"""Which requests keep a promised time per token, where plain decoding sets the promise."""

from collections.abc import Sequence

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Metrics, RequestGroup

SCALES = (0.8, 0.9, 1.0, 1.1, 1.2)
"""Times the promise."""
PROMISE = 90
"""The percentile of plain decoding's time per token that is promised (AdaSpec, section 5)."""


def attainment(group: RequestGroup, baseline: Sequence[RequestRecord]) -> Metrics:
    """Shares of the requests that are as fast as promised, at every scale; nothing where no time is known."""
    ours, plain = (
        np.array([one.tpot_s for one in requests if one.tpot_s is not None])
        for requests in (group.finished, RequestGroup(baseline).finished)
    )
    if not len(ours) or not len(plain):
        return {}
    promised_s = float(np.percentile(plain, PROMISE))
    return {"slo_attainment": [float((ours <= scale * promised_s).mean()) for scale in SCALES]}

"""What a drafter beyond a link is sent besides tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Metrics, RequestGroup


def summarise_states(records: Sequence[RequestRecord], sent: Mapping[str, Any]) -> Metrics:
    """Bytes of hidden states that went down the link; `sent` is `hidden_states` of `run.json`.

    A verdict brings those of the token before the draft and of the accepted ones, the first one those of the prompt
    too; a pipeline's answers bring one token's each.
    """
    group = RequestGroup(records)
    rounds, each = group.rounds, sent["bytes_per_token"]
    kept = np.where(rounds["steps"] > 0, rounds["committed"], rounds["accepted"] + 1).sum()
    prompts = each * sum(len(record.prompt_ids) - 1 for record in group.finished)
    return {
        "layers": list(sent["layers"]),
        "bytes_per_token": each,
        "bytes": prompts + each * float(kept),
        "prompt_bytes": prompts,
    }

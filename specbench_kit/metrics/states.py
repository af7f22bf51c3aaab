"""Hidden states that a server sends to a drafter beyond a link."""

from collections.abc import Sequence

import numpy as np

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Metrics, RequestGroup


def summarise_states(records: Sequence[RequestRecord], hidden_states: JsonObject) -> Metrics:
    """Return the bytes of hidden states that went down the link; `hidden_states` is that field of `run.json`.

    A verdict brings the states of the token before the draft and of the accepted tokens, the first verdict also those
    of the prompt; each answer of a pipeline brings the states of one token.
    """
    group = RequestGroup(records)
    rounds, bytes_per_token = group.rounds, hidden_states["bytes_per_token"]
    sent_tokens = np.where(rounds["steps"] > 0, rounds["committed"], rounds["accepted"] + 1).sum()
    prompt_bytes = bytes_per_token * sum(len(record.prompt_ids) - 1 for record in group.finished)
    return {
        "layers": list(hidden_states["layers"]),
        "bytes_per_token": bytes_per_token,
        "bytes": prompt_bytes + bytes_per_token * float(sent_tokens),
        "prompt_bytes": prompt_bytes,
    }

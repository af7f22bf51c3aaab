"""What a drafter beyond a link is sent besides tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import Group, Metrics
from specbench_kit.metrics.statistics import ratio_of_sums


def summarise_states(records: Sequence[RequestRecord], sent: Mapping[str, Any]) -> Metrics:
    """Bytes of hidden states that went down the link; `sent` is `hidden_states` of `run.json`.

    The first verdict of a request brings those of its prompt, any other those of the token before the draft, and each
    those of the accepted tokens.
    """
    group = Group(records)
    prompts, rounds = sum(len(record.prompt_ids) for record in group.finished), group.rounds
    tokens = prompts + rounds.sum("accepted") + rounds.count - rounds.requests
    after = tokens - prompts - sum(record.rounds[0].accepted for record in group.finished)
    each = sent["bytes_per_token"]
    return {
        "layers": list(sent["layers"]),
        "bytes_per_token": each,
        "bytes": each * tokens,
        "bytes_per_later_verdict": ratio_of_sums(each * after, rounds.count - rounds.requests),
    }

"""What a trace keeps of its requests where others must not read them."""

from dataclasses import replace

import numpy as np

from specbench_kit.traces.chain_replay import right_tokens
from specbench_kit.traces.conversations import Conversations
from specbench_kit.traces.outcome_traces import UNNAMED
from specbench_kit.traces.trace import RequestTrace


class Redactor:
    """Takes the token ids out of requests, which come in order.

    What stays: how many tokens there are, the statistics of the drafted ones and which of them the answer has, and
    which requests are turns of one dialogue.
    """

    def __init__(self) -> None:
        self._conversations = Conversations()

    def without_text(self, trace: RequestTrace) -> RequestTrace:
        """The request with ids that stand for any token."""
        dialogue = UNNAMED + 1 + self._conversations.index(trace)
        return replace(
            trace,
            prompt_ids=[dialogue] * len(trace.prompt_ids),
            output_ids=[UNNAMED] * len(trace.output_ids),
            continuation=[UNNAMED] * len(trace.continuation),
            drafted=np.where(right_tokens(trace), UNNAMED, 0).astype(np.int32),
        )

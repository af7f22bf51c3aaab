"""Removes the text from traces that others may read."""

from dataclasses import replace

import numpy as np

from specbench_kit.traces.chain_replay import correct_tokens
from specbench_kit.traces.conversations import Conversations
from specbench_kit.traces.outcome_traces import ANY_TOKEN
from specbench_kit.traces.trace import RequestTrace


class Redactor:
    """Replaces the token ids of requests, which come in order.

    What stays is the number of tokens, the statistics of the drafted ones, which of them are right, and which requests
    are turns of one conversation.
    """

    def __init__(self) -> None:
        self._conversations = Conversations()

    def redact(self, trace: RequestTrace) -> RequestTrace:
        """Return the request with ids that stand for any token."""
        # Prompts of one conversation keep a common beginning, by which its turns are recognised.
        conversation = ANY_TOKEN + 1 + self._conversations.index(trace)
        return replace(
            trace,
            prompt_ids=[conversation] * len(trace.prompt_ids),
            output_ids=[ANY_TOKEN] * len(trace.output_ids),
            continuation=[ANY_TOKEN] * len(trace.continuation),
            drafted=np.where(correct_tokens(trace), ANY_TOKEN, np.minimum(trace.drafted, 0)).astype(np.int32),
        )

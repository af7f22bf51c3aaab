"""How the server's answers relate to the trace whose drafts the devices send."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.protocol.verification_pb2 import Verdict
from specbench_kit.live.wire import Status
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.traces.trace import RequestTrace


@dataclass(slots=True)
class AnswerCounts:
    """Counts of a server's answers.

    `differing` answers accept other tokens than the recorded target, or go on with another one; `left_trace` counts the
    responses with at least one of them. `degraded` answers come from an overloaded server that did not verify the
    draft, `refusals` from one that asked for the same draft later.
    """

    rounds: int = 0
    differing: int = 0
    degraded: int = 0
    refusals: int = 0
    responses: int = 0
    left_trace: int = 0

    def describe(self) -> JsonObject:
        """Return counts and shares for JSON; a share is None if there is nothing to count."""
        return {
            "rounds": self.rounds,
            "responses": self.responses,
            "differing": ratio_of_sums(self.differing, self.rounds),
            "left_trace": ratio_of_sums(self.left_trace, self.responses),
            "degraded": ratio_of_sums(self.degraded, self.rounds),
            "refusals": self.refusals,
        }


def is_recorded(request: RequestTrace, offset: int, tokens: Sequence[int], verdict: Verdict) -> bool:
    """Return True if the recorded target gives the same verdict on `tokens` after `offset` tokens of output.

    A bonus token behind the end of what was recorded counts as the same.
    """
    recorded = [*request.output_ids, *request.continuation][offset:]
    accepted = 0
    if verdict.status != Status.DEGRADED:
        matches = [token == right for token, right in zip(tokens, recorded, strict=False)]
        accepted = [*matches, False].index(False)
    return len(verdict.path) == accepted and recorded[accepted : accepted + 1] in ([], [verdict.bonus])

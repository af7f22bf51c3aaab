"""Recorded answers with the draft at every place in them, for a server whose policy decides how far
to draft.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specbench_kit.deployments.drafting_work import RoundWork
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.round_sources import CHAIN, RecordedAnswers, RecordedRounds, RoundArrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specbench_kit.traces.trace import RequestTrace, TraceHeader


class DraftedChain(NamedTuple):
    """What a draft model drafts at one place: the statistics of each token [tokens, 5].

    `begins` is true in the first round of a response, and `room` says how many tokens its context has room for.
    """

    statistics: "NDArray[np.float32]"
    begins: bool
    room: int


class TracedDrafts(RecordedAnswers):
    """Recorded answers that know at every place what was drafted, how much of it is right, and how
    sure of it it was.

    Averages are those of the rounds of one request `alone`. A response that is longer than its
    record goes on with the next one.
    """

    def __init__(
        self, header: "TraceHeader", traces: Iterable["RequestTrace"], alone: RecordedRounds
    ) -> None:
        from specbench_kit.traces.chain_replay import correct_tokens

        answers = [trace for trace in traces if trace.output_ids]
        self.costs = alone.costs
        self.works: Sequence[RoundWork] = ()
        self.typical = alone.typical._replace(longest=header.max_draft)
        self.colocated_ratio = alone.colocated_ratio
        lengths = [(len(trace.prompt_ids), len(trace.output_ids)) for trace in answers]
        ends = np.cumsum([output for _, output in lengths])
        super().__init__(lengths, ends - [output for _, output in lengths])
        right = [correct_tokens(trace).cumprod(axis=1).sum(axis=1) for trace in answers]
        self._right: Integers = np.concatenate(right).astype(np.int64)
        self._drafted: Integers = np.concatenate(
            [trace.draft_lengths() for trace in answers]
        ).astype(np.int64)
        self._statistics = [row for trace in answers for row in trace.statistics]
        rooms = [
            header.token_limit(trace) - len(trace.prompt_ids) - np.arange(len(trace.output_ids))
            for trace in answers
        ]
        self._room = np.concatenate(rooms)

    def rounds(self, cursor: Integers, uniform: Floats) -> tuple[RoundArrays, Integers]:
        """Return all that can be drafted at the cursors' places; a round moves on by what it
        commits.
        """
        places = cursor % len(self._right)
        drafted = self._drafted[places]
        none = np.zeros_like(drafted)
        right = np.minimum(self._right[places], drafted)
        return RoundArrays(drafted, drafted, right, none, none + CHAIN, none + 1), cursor

    def chain(self, place: int, *, begins: bool) -> DraftedChain:
        """Return what is drafted at a place."""
        place %= len(self._right)
        return DraftedChain(
            self._statistics[place][: self._drafted[place]], begins, int(self._room[place])
        )

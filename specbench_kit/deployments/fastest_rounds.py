"""The rounds in which a whole answer takes the least time, where it is known beforehand what a
draft has right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from specbench_kit.decoding.drafter import PlannedRound
from specbench_kit.decoding.latency import Row
from specbench_kit.runs.deployment import Link

UNREAD = 0
"""Stands, where tokens are counted that the draft model has not read, for a prompt that it has not
read either.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTimes:
    """The seconds of the rounds of one request that has edge, link and server to itself.

    The request has `context` tokens, of which `draft_cached` and `target_cached` are in KV.
    `step_s` and `pass_s` return the seconds of a forward of the draft model and of the target.
    Drafts cross the link `on_edge`. A drafter that reads hidden states forwards accepted tokens
    again; `state_bytes` is the size of those of a token on the link, None for other drafters.
    Messages take their expected time, whatever jitter and loss a run draws.
    """

    context: int
    draft_cached: int
    target_cached: int
    prompt_sent: bool
    step_s: Callable[[Row], float]
    pass_s: Callable[[Row], float]
    decision_s: float
    link: Link
    on_edge: bool
    state_bytes: float | None

    @property
    def lacking(self) -> int:
        """The number of tokens that the draft model has to read before it drafts the first one, or
        `UNREAD`.
        """
        return self.context - self.draft_cached if self.draft_cached else UNREAD

    def lacking_after(self, drafted: int) -> int:
        """Return the number of tokens that it has to read after a round whose drafted tokens were
        all accepted.
        """
        return 2 if self.state_bytes is None else drafted + 1

    def first_s(self, offset: int, lacking: int) -> float:
        """Return the seconds until the first token of a draft is known."""
        context = self.context + offset
        if lacking != UNREAD:
            return self.step_s((lacking, context - lacking))
        prefill_s = self.step_s((context - 1, 0)) if context > 1 else 0.0
        return prefill_s + self.step_s((1, context - 1))

    def next_s(self, offset: int, drafted: int) -> float:
        """Return the seconds of the forward that adds a token to `drafted` ones."""
        return self.step_s((1, self.context + offset + drafted - 1))

    def verify_s(self, offset: int, drafted: int) -> float:
        """Return the seconds of a verification."""
        context = self.context + offset
        cached = self._target_cached(offset)
        return self.pass_s((context - cached + drafted, cached))

    def link_s(self, offset: int, drafted: int) -> float:
        """Return the expected seconds of both messages of a round that waits for its draft."""
        brings_prompt = not self.prompt_sent and offset == 0
        if not (self.on_edge or brings_prompt):
            return 0.0
        sent = drafted if self.on_edge else 0
        up = (self.context if brings_prompt else 0) + sent
        up_s = self._message_s(up, self.link.up_bytes_per_s, sent * self.link.draft_bytes)
        states = self.context + offset - self._target_cached(offset) + drafted
        down_s = self._message_s(
            drafted + 1, self.link.down_bytes_per_s, states * (self.state_bytes or 0.0)
        )
        return up_s + down_s

    def _target_cached(self, offset: int) -> int:
        return self.context + offset - 1 if offset else self.target_cached

    def _message_s(self, tokens: int, bytes_per_s: float | None, more_bytes: float) -> float:
        link = self.link
        seconds = link.nominal_s(tokens, bytes_per_s, more_bytes)
        if (
            seconds < link.jitter_s
        ):  # no message takes less than no time, so that its mean is above the nominal time
            seconds = (seconds + link.jitter_s) ** 2 / (4 * link.jitter_s)
        return seconds + link.retry_s * link.loss / (1 - link.loss)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best decisions of a round at one offset, by the number of tokens that the draft model
    lacks.

    `seconds` remain until the end of the answer. Without a wait for the device the server `streams`; otherwise the
    round `drafts`, which is then best with `drafted` tokens.
    """

    seconds: NDArray[np.float64]
    streams: NDArray[np.bool_]
    drafts: NDArray[np.bool_]
    drafted: int


def fastest_rounds(
    times: AnswerTimes, right: Sequence[int], *, server_decodes: bool
) -> dict[int, PlannedRound]:
    """Return the fastest rounds of an answer by the number of its tokens before each.

    `right[i]` tokens of a draft at offset i are right; a longer one is never faster. With `server_decodes`, rounds may
    be left to the server, which then does not wait for the device. This is dynamic programming from the end of the
    answer over all offsets, all lengths of a draft, and all that the draft model may have in KV: no other lengths are
    faster, under a link without jitter and loss. With them, none are faster on average that do not foresee the draws.
    """
    end = len(right)
    width = times.lacking + end + max(right, default=0) + 3
    best = [_Best(np.zeros(width), np.zeros(width, bool), np.zeros(width, bool), 0)]
    for offset in range(end - 1, -1, -1):
        best.append(
            _best_round(times, offset, right[offset], best[::-1], server_decodes and offset > 0)
        )
    best.reverse()
    rounds: dict[int, PlannedRound] = {}
    offset, lacking, streams = 0, times.lacking, False
    while offset < end:
        chosen = best[offset]
        drafted = chosen.drafted if chosen.drafts[lacking] and not streams else 0
        start = offset
        offset += drafted + 1
        lacking = times.lacking_after(drafted) if drafted else lacking + (lacking != UNREAD)
        streams = bool(best[offset].streams[lacking])
        rounds[start] = PlannedRound(drafted, streams)
    return rounds


def _best_round(
    times: AnswerTimes, offset: int, right: int, later: Sequence[_Best], may_stream: bool
) -> _Best:
    """Return the best decisions at an offset; `later[i]` are those i + 1 tokens further on."""
    after = later[0].seconds
    # Without a draft the draft model lacks one more token, or still the whole prompt.
    plain_s = times.verify_s(offset, 0) + np.concatenate((after[:1], after[2:], [inf]))
    drafted, behind_first_s = 0, inf
    drafting_s = 0.0
    for length in range(1, min(right, len(later) - 1) + 1):
        drafting_s += times.decision_s + (times.next_s(offset, length - 1) if length > 1 else 0.0)
        round_s = drafting_s + times.link_s(offset, length) + times.verify_s(offset, length)
        seconds = round_s + float(later[length].seconds[times.lacking_after(length)])
        if seconds < behind_first_s:
            drafted, behind_first_s = length, seconds
    waits_s = plain_s + times.link_s(offset, 0)
    drafts_s = np.full(len(after), inf)
    if drafted:
        most = min(len(after) - 1, times.context + offset)
        first_s = [times.first_s(offset, lacking) for lacking in range(most + 1)]
        drafts_s[: most + 1] = np.array(first_s) + behind_first_s
    crossing_s = np.minimum(waits_s, drafts_s)
    streams = plain_s < crossing_s if may_stream else np.zeros(len(after), bool)
    return _Best(np.where(streams, plain_s, crossing_s), streams, drafts_s < waits_s, drafted)

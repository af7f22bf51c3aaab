"""The draft length with the least time per token, learned for each batch size by a bandit that may
stop drafting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.methods.base import Capability, Group, Latencies, Policy, methods
from specbench_kit.methods.latency_aware import LatencyAware
from specbench_kit.methods.round_costs import RoundTime, forward_s

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter
    from specbench_kit.decoding.verification import Verdict


@methods.register("nightjar")
@dataclass(frozen=True)
class Nightjar(LatencyAware):
    """Draft the number of tokens, 0 to `max_draft`, with the least time per token at the present
    batch size.

    Each batch size learns by itself. It keeps a length for `bin` rounds. Bins form blocks of 1, 2,
    4 and so on; bin b of a block takes a length at random with probability 1/b, and otherwise the
    one with the least mean time per token so far. After rounds without a draft, a length counts as
    slower by what its draft model takes to read the tokens that it missed, over the length, so that
    drafting is not taken up again for a small gain. A round with a prefill does not count.

    The paper also moves the draft model out of the card's memory while it is not used, for room for
    more requests; here the batch is given. `max_draft` and `bin` are ours, and so is keeping what
    was learned from block to block.
    """

    max_draft: int = 5
    bin: int = 8
    source = "Nightjar, arXiv 2512.22420"
    reported_result = "up to 27.3% more tokens per second than no speculation under changing load"
    group: ClassVar[Group] = "bandit"
    is_folded: ClassVar[bool] = True
    grid = MappingProxyType({"max_draft": (3, 5, 8), "bin": (4, 8, 16)})
    required_capability = Capability.TOKENS

    def __post_init__(self) -> None:
        self.require_at_least(1, "max_draft", "bin")

    def policy_with(self, latencies: Latencies) -> Policy:
        return _NightjarPolicy(self, latencies)


class Bins:
    """What is known of one batch size: the mean seconds per token of each length, and the length of
    the present bin.
    """

    def __init__(self, lengths: int, rounds: int, random: Random) -> None:
        self.counts = [0] * lengths
        self.means_s = [0.0] * lengths
        self.rounds = rounds
        """The rounds of a bin."""
        self.random = random
        self.length = 0
        self.left = 0
        """The rounds that are left of the present bin."""
        self.block = 1
        """The bins of the present block."""
        self.bin = 0
        """The present bin of the block, from 1."""

    def play(self, switch_s: float) -> int:
        """Return the length of this round; `switch_s` is what taking up drafting again costs."""
        if not self.left:
            self._next_bin(switch_s)
        self.left -= 1
        return self.length

    def learn(self, length: int, seconds_per_token: float) -> None:
        """Add a round."""
        self.counts[length] += 1
        self.means_s[length] += (seconds_per_token - self.means_s[length]) / self.counts[length]

    def best(self, switch_s: float) -> int:
        """Return the length with the least time per token, among those that were tried."""

        def cost_s(length: int) -> float:
            if not self.counts[length]:
                return inf
            return self.means_s[length] + (switch_s / length if length else 0.0)

        return min(range(len(self.counts)), key=cost_s)

    def _next_bin(self, switch_s: float) -> None:
        self.left = self.rounds
        if self.bin == self.block:
            self.block *= 2
            self.bin = 0
        self.bin += 1
        explores = self.random.random() < 1 / self.bin
        self.length = self.random.randrange(len(self.counts)) if explores else self.best(switch_s)


class _NightjarPolicy(Policy):
    def __init__(self, options: Nightjar, latencies: Latencies) -> None:
        self.options = options
        self.latencies = latencies
        self.sizes: dict[int, Bins] = {}
        self.missed: dict[str, int] = {}
        """By request, the tokens that it committed since it last drafted."""
        self.time: RoundTime | None = None
        self.switch_s = 0.0
        """The seconds in which the draft model reads what it missed before this round."""
        self.length = 0

    def draft(self, drafter: "Drafter") -> None:
        drafts = drafter.drafts
        self.switch_s = self._reading_s(drafts)
        self.length = self.bins(len(drafts)).play(self.switch_s)
        self.time = RoundTime(drafter)
        for _ in range(self.length):
            drafter.extend(drafts)

    def observe(self, verdicts: "Sequence[Verdict]") -> None:
        for verdict in verdicts:
            name = verdict.draft.request_id
            committed = len(verdict.path) + 1
            self.missed[name] = 0 if self.length else self.missed.get(name, 0) + committed
        if self.time is None or not self.time.typical:
            return
        # What was read after a pause is the price of taking drafting up, and none of the length.
        seconds = self.time.seconds() - (self.switch_s if self.length else 0.0)
        tokens = sum(len(verdict.path) + 1 for verdict in verdicts)
        self.bins(len(verdicts)).learn(self.length, max(0.0, seconds) / tokens)

    def forget(self, request_id: str) -> None:
        self.missed.pop(request_id, None)

    def bins(self, size: int) -> Bins:
        """Return what is known of a batch size."""
        if size not in self.sizes:
            random = Random(f"nightjar/{size}")
            self.sizes[size] = Bins(self.options.max_draft + 1, self.options.bin, random)
        return self.sizes[size]

    def _reading_s(self, drafts: "Sequence[Draft]") -> float:
        """Return the seconds that the draft model takes longer for its first forward than if it had
        drafted in every round.
        """
        missed = [self.missed.get(draft.request_id, 0) for draft in drafts]
        if not any(missed):
            return 0.0
        cached = [draft.context_length - 1 for draft in drafts]
        all_read = forward_s(self.latencies, [(1, before) for before in cached])
        some_missed = forward_s(
            self.latencies,
            [(1 + behind, before - behind) for behind, before in zip(missed, cached, strict=True)],
        )
        return some_missed - all_read

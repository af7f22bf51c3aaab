"""How many tokens enter a pipeline with one step, and how the requests of a batch share them."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import ceil
from typing import Literal

Share = Literal["equal", "greedy"]
Prefill = Literal["first", "mixed"]


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Of the nodes of all levels that enter together; `rows` None sets no limit. SpecPipe's paper says none of this.

    `share`: as many rows for each request as it can use, or one for each and the rest to the likeliest nodes. Prompts
    enter in chunks: `first`, of `chunk` tokens in steps of their own, or `mixed` with levels, of a request's share of
    the rows. The requests are spread over at most `groups`, whose roots enter one after the other.
    """

    rows: int | None = None
    share: Share = "equal"
    prefill: Prefill = "first"
    chunk: int = 512
    groups: float = 1

    def roots(self, batch_size: int) -> int:
        """Requests of a group, whose roots may enter together."""
        return ceil(batch_size / min(self.groups, batch_size))

    def piece(self, requests: int) -> int:
        """Tokens of a prompt that enter with the levels of others."""
        return self.chunk if self.rows is None else min(self.chunk, max(1, self.rows // requests))

    def allot(self, levels: Sequence[Sequence[float]], taken: int) -> list[int]:
        """Rows for each of the levels, given their nodes' scores; none goes without, `taken` are not to be had."""
        sizes = list(map(len, levels))
        if self.rows is None or sum(sizes) + taken <= self.rows:
            return sizes
        left = max(0, self.rows - taken)
        return _equal(sizes, left) if self.share == "equal" else _greedy(levels, left)


def _equal(sizes: Sequence[int], rows: int) -> list[int]:
    """Narrow levels first, so that what they leave goes to the others."""
    shares = [0] * len(sizes)
    narrow_first = sorted(range(len(sizes)), key=lambda place: sizes[place])
    for done, place in enumerate(narrow_first):
        shares[place] = min(sizes[place], max(1, rows // (len(sizes) - done)))
        rows -= shares[place]
    return shares


def _greedy(levels: Sequence[Sequence[float]], rows: int) -> list[int]:
    shares = [min(1, len(level)) for level in levels]
    others = [(score, -place) for place, level in enumerate(levels) for score in sorted(level)[:-1]]
    for _, place in nlargest(max(0, rows - sum(shares)), others):
        shares[-place] += 1
    return shares

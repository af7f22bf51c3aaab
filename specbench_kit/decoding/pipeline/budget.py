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
    """Limits what enters with one step to `rows` nodes over all requests; None sets no limit.

    `share` divides the rows: `equal` gives each request as many as it can use up to an equal share, `greedy` gives one
    to each and the rest to the likeliest nodes. Prompts enter in chunks: with `first`, `chunk` tokens in steps of their
    own; with `mixed`, together with levels, as large as a request's share of the rows. The requests are spread over at
    most `groups`, whose roots enter one group after the other. SpecPipe's paper specifies none of this.
    """

    rows: int | None = None
    share: Share = "equal"
    prefill: Prefill = "first"
    chunk: int = 512
    groups: float = 1

    def roots(self, batch_size: int) -> int:
        """Return the number of requests in a group, whose roots may enter together."""
        return ceil(batch_size / min(self.groups, batch_size))

    def piece(self, requests: int) -> int:
        """Return how many tokens of a prompt enter together with levels of other requests."""
        return self.chunk if self.rows is None else min(self.chunk, max(1, self.rows // requests))

    def allot(self, levels: Sequence[Sequence[float]], used: int) -> list[int]:
        """Return the rows for each level, given its nodes' scores; `used` rows go to prompts and
        roots.

        Every level gets at least one row, even if the budget is exceeded by that.
        """
        sizes = list(map(len, levels))
        if self.rows is None or sum(sizes) + used <= self.rows:
            return sizes
        rows = max(0, self.rows - used)
        if self.share == "equal":
            shares = [0] * len(sizes)
            # Narrow levels first, so that what they do not need goes to the wider ones.
            for done, index in enumerate(sorted(range(len(sizes)), key=lambda index: sizes[index])):
                shares[index] = min(sizes[index], max(1, rows // (len(sizes) - done)))
                rows -= shares[index]
            return shares
        shares = [min(1, len(level)) for level in levels]
        # Ties go to the request that came first: hence the negative index.
        nodes = [
            (score, -index) for index, level in enumerate(levels) for score in sorted(level)[:-1]
        ]
        for _, negative in nlargest(max(0, rows - sum(shares)), nodes):
            shares[-negative] += 1
        return shares

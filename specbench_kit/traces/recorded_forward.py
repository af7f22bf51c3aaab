"""A draft forward whose distributions are candidates of a trace."""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import Candidate, DraftForward, NodeStats
from specbench_kit.decoding.records import UNLIMITED
from specbench_kit.traces.candidate_trees import BeyondRecord, Candidates, CandidateSource


class RecordedForward(DraftForward):
    """The distributions after some nodes, as far as they are recorded; greedy.

    Answers are those of the draft model itself, up to the rounding of one addition of float32
    numbers.
    """

    sampled = False

    def __init__(self, nodes: Sequence[tuple[CandidateSource, int]]) -> None:
        # Not the base class's: there are no logits.
        self.nodes = nodes

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("forward", "logits", "probabilities"):
            raise SkitError(
                f"a trace holds the most probable tokens of a draft model and no whole distributions ({name}): run it "
                "live"
            )
        raise AttributeError(name)

    @property
    def greedy(self) -> bool:
        return True

    def likeliest(
        self,
        rows: Sequence[int],
        bases: Sequence[float],
        branch: int,
        count: int,
        floor: float = -inf,
    ) -> list[Candidate]:
        known = [self.candidates(row) for row in rows]
        weights = np.asarray(bases, np.float32)
        scores = [
            own.logprobs[:branch] + weight for own, weight in zip(known, weights, strict=True)
        ]
        values = np.concatenate(scores)
        tokens = np.concatenate([own.tokens[:branch] for own in known])
        owners = np.repeat(np.arange(len(rows)), [len(own) for own in scores])
        order = np.lexsort((tokens, owners, -values))[:count]
        order = order[values[order].astype(np.float64) > floor]
        # Whatever is better than `least`, or as good, has to be known; a floor itself has to be
        # exceeded.
        is_full = len(order) == count
        least = float(values[order[-1]]) if is_full else float(np.nextafter(floor, inf))
        rests = [own.rest if len(own.tokens) < branch else -inf for own in known]
        unknown = (np.asarray(rests, np.float32) + weights).astype(np.float64)
        doubtful = np.flatnonzero((unknown > -inf) & (unknown >= least))
        if len(doubtful):
            self.need(
                [rows[index] for index in doubtful[np.argsort(-unknown[doubtful], kind="stable")]]
            )
            return self.likeliest(rows, bases, branch, count, floor)
        for row, own in zip(rows, scores, strict=True):
            self._tell(row, int((own.astype(np.float64) >= least).sum()))
        return [(float(values[i]), int(owners[i]), int(tokens[i])) for i in order]

    def need(self, rows: Sequence[int]) -> None:
        """Raise BeyondRecord: an answer depends on tokens of these rows, the likeliest first, that
        are not recorded.
        """
        raise BeyondRecord(self.nodes[rows[0]][0].recorded_for)

    def best_tokens(self) -> list[int]:
        return [tokens[0] for tokens in self.top_tokens(1)]

    def top_tokens(self, count: int) -> list[list[int]]:
        return [self.top(row, count).tokens.tolist() for row in range(len(self.nodes))]

    def top(self, row: int, count: int) -> Candidates:
        """Return the `count` likeliest tokens of one row, or all tokens if there are fewer."""
        known = self.candidates(row)
        if len(known.tokens) < count and known.rest > -inf:
            self.need([row])
            return self.top(row, count)
        self._tell(row, count)
        return Candidates(known.tokens[:count], known.logprobs[:count], known.rest)

    def probability(self, row: int, token: int) -> float:
        known = self.candidates(row)
        for candidate in np.flatnonzero(known.tokens == token):
            return float(np.exp(known.logprobs[candidate]))
        raise BeyondRecord(self.nodes[row][0].recorded_for)

    def stats(self, row: int, token: int) -> NodeStats:
        raise SkitError("a trace holds no statistics of the tokens of trees: run the method live")

    @property
    def probabilities(self) -> Any:
        return [RecordedDistribution(self, row) for row in range(len(self.nodes))]

    def candidates(self, row: int) -> Candidates:
        """Return what is recorded of one row."""
        source, node = self.nodes[row]
        return source.candidates(node)

    def _tell(self, row: int, count: int) -> None:
        source, node = self.nodes[row]
        source.told(node, count)


class RecordedDistribution:
    """One row's distribution, of which the likeliest tokens are known."""

    def __init__(self, forward: RecordedForward, row: int) -> None:
        self._forward = forward
        self._row = row

    def __len__(self) -> int:
        known = self._forward.candidates(self._row)
        return len(known.tokens) if known.rest == -inf else UNLIMITED

    def topk(self, count: int) -> "TopTokens":
        """Return the `count` highest probabilities with their tokens, as a tensor's method of this
        name does.
        """
        best = self._forward.top(self._row, count)
        return TopTokens(
            torch.from_numpy(np.exp(best.logprobs)), torch.from_numpy(best.tokens.astype(np.int64))
        )

    def __getattr__(self, name: str) -> Any:
        raise SkitError(
            "a trace holds no whole distributions, which this method reads: run it live"
        )


class TopTokens(NamedTuple):
    """The highest probabilities of a distribution, and their tokens."""

    values: Tensor
    indices: Tensor

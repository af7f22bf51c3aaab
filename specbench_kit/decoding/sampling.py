"""From logits to tokens: the processors that both models share, and random numbers that can be
addressed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from specbench_kit.core.temperature import require_temperature

Purpose = Literal["draft", "accept", "target"]


@dataclass(frozen=True, slots=True)
class Sampler:
    """Applies temperature, then top-k, then top-p. Temperature 0 is greedy; top_k 0 and top_p 1
    keep all tokens.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        require_temperature(self.temperature, "temperature")

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def cuts(self) -> bool:
        """True if some tokens are removed before one is drawn."""
        return (self.top_k > 0 or self.top_p < 1) and not self.greedy

    def of_likeliest(self, most: int) -> "Sampler":
        """Return this sampler with at most so many tokens to draw from; 0 changes nothing."""
        return replace(self, top_k=min(most, self.top_k or most)) if most else self

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the processed distribution, float32, of logits [..., vocabulary]; greedy decoding
        only normalises.

        Sums over a vocabulary depend on the processor in their last bits. Where the same result is
        wanted on all, logits are float64, of whose sums that is rounded away.
        """
        precise = logits if logits.dtype == torch.float64 else logits.float()
        if self.greedy:
            return precise.softmax(-1).float()
        scores = precise / self.temperature
        if self.top_k:
            lowest = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1:]
            scores = scores.masked_fill(scores < lowest, -torch.inf)
        if self.top_p < 1:
            ordered, order = scores.sort(descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            drop = torch.zeros_like(scores, dtype=torch.bool).scatter(
                -1, order, before >= self.top_p
            )
            scores = scores.masked_fill(drop, -torch.inf)
        return scores.softmax(-1).float()


def draw(probabilities: Tensor, uniforms: Sequence[float]) -> list[int]:
    """Return one token per row of [rows, vocabulary] by inversion, so that equal numbers give equal
    tokens.

    Rows need not sum to 1.
    """
    levels = torch.tensor(uniforms, dtype=torch.float64, device=probabilities.device)[:, None]
    tokens: list[int] = _by_inversion(probabilities.double(), levels)[:, 0].tolist()
    return tokens


def draw_several(
    probabilities: Tensor, uniforms: Sequence[Sequence[float]], *, replacement: bool
) -> list[list[int]]:
    """Return one token per row of [rows, vocabulary] and per number of `uniforms` [rows, tokens],
    by inversion.

    Without `replacement` a row's tokens are distinct, and no more than its tokens with a positive
    probability. The host waits for all tokens at once.
    """
    remaining = probabilities.double()
    levels = torch.tensor(uniforms, dtype=torch.float64, device=remaining.device)
    if replacement:
        with_replacement: list[list[int]] = _by_inversion(remaining, levels).tolist()
        return with_replacement
    vocabulary = remaining.shape[1]
    drawn = []
    for column in range(levels.shape[1]):
        token = _by_inversion(remaining, levels[:, column : column + 1])
        drawn.append(token)  # the one behind the last where nothing is left
        remaining = remaining.scatter(1, token.clamp(max=vocabulary - 1), 0.0)
    rows = []
    for tokens in torch.cat(drawn, dim=1).tolist():
        distinct = [token for token in tokens if token < vocabulary]
        rows.append(distinct)
    return rows


def _by_inversion(weights: Tensor, levels: Tensor) -> Tensor:
    """Return the tokens [rows, columns] at `levels` [rows, columns] in [0, 1) of `weights` [rows,
    vocabulary].
    """
    cumulative = weights.cumsum(-1)
    return torch.searchsorted(cumulative, levels * cumulative[:, -1:], right=True)


class UniformNumbers(Protocol):
    """A source of random numbers for verification rules."""

    def uniform(self, purpose: Purpose) -> float:
        """Return the next number in [0, 1) of a purpose's stream."""


class RequestRandom:
    """One request's random numbers: a stream per purpose, whose n-th number depends on the key and
    n alone.

    Streams are seeded by (seed, request id, purpose), so neither the batch's composition nor the
    order of rounds can change a draw. Numbers are counted, not just drawn in turn: a round reads
    the ones at its position in the output, and a run that was resumed or a draft that was made
    again sees the same numbers.
    """

    def __init__(self, seed: int | str, request_id: str) -> None:
        self._key = f"{seed}/{request_id}"
        self._streams: dict[Purpose, _Stream] = {}
        self._used: dict[Purpose, int] = {}

    def uniform(self, purpose: Purpose) -> float:
        """Return the next number in [0, 1) of a purpose's stream."""
        index = self._used.get(purpose, 0)
        self._used[purpose] = index + 1
        return self.number(purpose, index)

    def number(self, purpose: Purpose, index: int) -> float:
        """Return the number at an index of a purpose's stream, whatever was drawn before."""
        if purpose not in self._streams:
            self._streams[purpose] = _Stream(f"{self._key}/{purpose}")
        return self._streams[purpose].number(index)

    def from_position(self, position: int) -> UniformNumbers:
        """Return the streams from a position of the output on: decoding again from there draws the
        same numbers.
        """
        return _PositionedRandom(self, position)

    def substream(self, name: str) -> "RequestRandom":
        """Return independent streams for a part of the same request."""
        return RequestRandom(self._key, name)


class _Stream:
    """Keeps the numbers it has generated, so that they can be read again."""

    def __init__(self, key: str) -> None:
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._numbers: list[float] = []

    def number(self, index: int) -> float:
        while len(self._numbers) <= index:
            self._numbers.append(float(self._generator.random()))
        return self._numbers[index]


class _PositionedRandom:
    def __init__(self, random: RequestRandom, position: int) -> None:
        self._random = random
        self._position = position
        self._used: dict[Purpose, int] = {}

    def uniform(self, purpose: Purpose) -> float:
        index = self._used.get(purpose, 0)
        self._used[purpose] = index + 1
        return self._random.number(purpose, self._position + index)

"""Logits to tokens: the processors both models share, and one random generator per request and purpose."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

Purpose = Literal["draft", "accept", "target"]


@dataclass(frozen=True, slots=True)
class Sampler:
    """Temperature, then top-k, then top-p; temperature 0 is greedy. top_k 0 and top_p 1 keep everything."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def cuts(self) -> bool:
        """Whether some tokens are left out before one is drawn."""
        return (self.top_k > 0 or self.top_p < 1) and not self.greedy

    def probabilities(self, logits: Tensor) -> Tensor:
        """Processed distribution, float32, of logits [..., vocabulary]; greedy decoding leaves it unprocessed."""
        if self.greedy:
            return logits.float().softmax(-1)
        scores = logits.float() / self.temperature
        if self.top_k:
            kept = scores.topk(min(self.top_k, scores.shape[-1])).values[..., -1:]
            scores = scores.masked_fill(scores < kept, -torch.inf)
        if self.top_p < 1:
            ordered, order = scores.sort(descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            drop = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, before >= self.top_p)
            scores = scores.masked_fill(drop, -torch.inf)
        return scores.softmax(-1)


def draw(probabilities: Tensor, uniforms: Sequence[float]) -> list[int]:
    """One token per row of [rows, vocabulary] by inversion: equal numbers give equal tokens. Rows need not sum to 1."""
    ladder = probabilities.double().cumsum(-1)
    wanted = torch.tensor(uniforms, dtype=torch.float64, device=ladder.device)[:, None] * ladder[:, -1:]
    tokens: list[int] = torch.searchsorted(ladder, wanted, right=True)[:, 0].tolist()
    return tokens


class UniformNumbers(Protocol):
    """What a rule draws from."""

    def uniform(self, purpose: Purpose) -> float:
        """The next number in [0, 1) of a purpose's stream."""


class RequestRandom:
    """Independent streams per purpose, seeded by (seed, request id, purpose): batch composition cannot matter."""

    def __init__(self, seed: int | str, request_id: str) -> None:
        self._key = f"{seed}/{request_id}"
        self._streams: dict[Purpose, _Stream] = {}
        self._taken: dict[Purpose, int] = {}

    def uniform(self, purpose: Purpose) -> float:
        """The next number in [0, 1) of a purpose's stream."""
        place = self._taken.get(purpose, 0)
        self._taken[purpose] = place + 1
        return self.number(purpose, place)

    def number(self, purpose: Purpose, place: int) -> float:
        """The number at a place of a purpose's stream, whatever was drawn before."""
        if purpose not in self._streams:
            self._streams[purpose] = _Stream(f"{self._key}/{purpose}")
        return self._streams[purpose].number(place)

    def at(self, position: int) -> UniformNumbers:
        """The streams from a position of the output on: whoever goes on there draws what he would have drawn."""
        return _From(self, position)

    def apart(self, name: str) -> "RequestRandom":
        """Streams of their own, for a part of the same request."""
        return RequestRandom(self._key, name)


class _Stream:
    """Numbers that can be drawn again."""

    def __init__(self, key: str) -> None:
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._drawn: list[float] = []

    def number(self, place: int) -> float:
        while len(self._drawn) <= place:
            self._drawn.append(float(self._generator.random()))
        return self._drawn[place]


class _From:
    def __init__(self, random: RequestRandom, position: int) -> None:
        self._random, self._position = random, position
        self._taken: dict[Purpose, int] = {}

    def uniform(self, purpose: Purpose) -> float:
        place = self._taken.get(purpose, 0)
        self._taken[purpose] = place + 1
        return self._random.number(purpose, self._position + place)

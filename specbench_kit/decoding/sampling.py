"""Logits to tokens: the processors both models share, and one random generator per request and purpose."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

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


class RequestRandom:
    """Independent streams per purpose, seeded by (seed, request id, purpose): batch composition cannot matter."""

    def __init__(self, seed: int | str, request_id: str) -> None:
        self._key = f"{seed}/{request_id}"

    def uniform(self, purpose: Purpose) -> float:
        """The next number in [0, 1) of a purpose's stream."""
        return float(self._streams[purpose].random())

    def apart(self, name: str) -> "RequestRandom":
        """Streams of their own, for a part of the same request."""
        return RequestRandom(self._key, name)

    @cached_property
    def _streams(self) -> dict[Purpose, np.random.Generator]:
        purposes: tuple[Purpose, ...] = ("draft", "accept", "target")
        return {purpose: np.random.Generator(np.random.Philox(self._seed(purpose))) for purpose in purposes}

    def _seed(self, purpose: str) -> int:
        return int.from_bytes(hashlib.blake2b(f"{self._key}/{purpose}".encode(), digest_size=8).digest())

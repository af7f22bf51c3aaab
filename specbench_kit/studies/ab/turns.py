"""The order of a load: turns of requests, which both servers take one after the other, ABBA."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from random import Random
from typing import NamedTuple

from specbench_kit.datasets.base import Prompt
from specbench_kit.studies.ab.settings import Load

SEED_BYTES = 4


class Turn(NamedTuple):
    """The prompts that one server gets before the other gets the same ones, and which server begins (0 or 1)."""

    load: Load
    repeat: int
    number: int
    prompts: Sequence[Prompt]
    first: int

    @property
    def order(self) -> tuple[int, int]:
        """The positions of both servers in the order in which they get the turn."""
        return self.first, 1 - self.first


def turns_of(load: Load, prompts: Sequence[Prompt], repeats: int) -> Iterator[Turn]:
    """Yield the turns of a load: AB, BA, AB, ... over the prompts, and the other way round in the next repeat.

    A machine that slows down or warms up meets both servers alike: each begins as often as the other, with any prompt.
    """
    for repeat in range(repeats):
        for number, begin in enumerate(range(0, len(prompts), load.turn)):
            yield Turn(load, repeat, number, prompts[begin : begin + load.turn], (number + repeat) % 2)


def arrivals_s(turn: Turn, seed: int) -> list[float]:
    """Return when each request of a turn arrives, in seconds since its first: the same for both servers and repeats."""
    rate = turn.load.rate
    if rate is None:
        return [0.0] * len(turn.prompts)
    random = Random(f"{seed}/{turn.load.label}/{turn.number}")
    return [0.0, *accumulate(random.expovariate(rate) for _ in turn.prompts[1:])]


def request_seed(seed: int, request_id: str, repeat: int, dialogue_turn: int = 0) -> int:
    """Return the seed of a request's sampler, the same for both servers; servers take 31 bits."""
    text = f"{seed}/{request_id}" + (f"/{repeat}" if repeat or dialogue_turn else "")
    text += f"/{dialogue_turn}" if dialogue_turn else ""
    return int.from_bytes(blake2b(text.encode(), digest_size=SEED_BYTES).digest()) >> 1

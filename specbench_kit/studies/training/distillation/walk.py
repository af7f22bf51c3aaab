"""Acceptance on recorded answers: where each round of drafting would start, and how far it would get."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from specbench_kit.studies.training.answers.store import Answer

HELD_OUT_SHARE = 0.05
"""Share of the prompts whose answers are never trained on."""


def is_held_out(index: int) -> bool:
    """Return whether the answer to a prompt is kept for evaluation; depends on the prompt's index alone."""
    return (index * 2654435761 % 2**32) / 2**32 < HELD_OUT_SHARE


def is_greedy(answer: Answer) -> bool:
    """Return whether an answer is the target's likeliest token at every position."""
    return answer.top_tokens[:, 0].tolist() == list(answer.output)


def accepted_counts(hits: Tensor, start: int) -> Iterator[int]:
    """Yield the number of accepted tokens of each round over one greedy answer.

    `hits` [steps, answer tokens] says whether the draft's token is the answer's, as step s of a round that began s
    tokens earlier. The first round begins at `start` (1 for a head, which has to see the prompt's states first), and
    each later one behind the bonus token of the one before: teacher forcing at every position would flatter a draft
    whose hits come in runs.
    """
    table: list[list[bool]] = hits.tolist()
    steps, length = len(table), len(table[0])
    while start + steps <= length:
        accepted = 0
        while accepted < steps and table[accepted][start + accepted]:
            accepted += 1
        yield accepted
        start += accepted + 1


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance length of some rounds, and the share of rounds that accept at least n + 1 tokens of n accepted."""

    length: float
    by_position: list[float]

    @classmethod
    def of(cls, counts: Iterable[int], steps: int) -> "Acceptance":
        """Return the acceptance of rounds of `steps` drafted tokens."""
        rounds: Sequence[int] = list(counts)
        reached = [sum(count >= position for count in rounds) for position in range(steps + 1)]
        rates = [after / before if before else 0.0 for before, after in pairwise(reached)]
        return cls(1 + sum(rounds) / max(1, len(rounds)), rates)

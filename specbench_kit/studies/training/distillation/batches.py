"""Batches of a target's answers, read a few shards at a time, to train on or to measure a draft's
acceptance on.
"""

import random
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from specbench_kit.studies.training.distillation.answers import Answer, TrainingAnswerStore

PADDING = 0
POOLED_SHARDS = 4
"""Shards in memory at a time: texts of similar length are batched among them."""


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Answers of similar length, padded at their ends.

    `tokens` is [texts, width]. `rows` and `columns` say where each token of the answers stands, all answers one after
    the other, as do `top_tokens` and `top_logits` [answer tokens, kept]. `states` is [texts, width - 1, layers x width
    of the target], or None.
    """

    tokens: Tensor
    rows: Tensor
    columns: Tensor
    top_tokens: Tensor
    top_logits: Tensor
    states: Tensor | None

    @classmethod
    def of(cls, answers: Sequence[Answer], device: torch.device) -> "TextBatch":
        """Return the batch of some answers."""
        width = max(map(len, answers))
        tokens = torch.full((len(answers), width), PADDING)
        first = answers[0].states
        states = (
            None
            if first is None
            else torch.zeros(len(answers), width - 1, first.shape[-1], dtype=first.dtype)
        )
        for row, answer in enumerate(answers):
            tokens[row, : len(answer)] = torch.tensor(answer.tokens)
            if states is not None and answer.states is not None:
                states[row, : len(answer) - 1] = answer.states
        rows = torch.cat(
            [torch.full((len(answer.output),), row) for row, answer in enumerate(answers)]
        )
        columns = torch.cat([torch.arange(len(answer.prompt), len(answer)) for answer in answers])
        return cls(
            tokens.to(device),
            rows.to(device),
            columns.to(device),
            torch.cat([answer.top_tokens for answer in answers]).long().to(device),
            torch.cat([answer.top_logits for answer in answers]).float().to(device),
            None if states is None else states.to(device),
        )


def epoch(
    store: TrainingAnswerStore,
    left_out: Collection[int],
    tokens: int,
    states: bool,
    rng: random.Random,
) -> Iterator[list[Answer]]:
    """Yield all answers of a store but those to the prompts `left_out` once, in batches of at most
    `tokens`.
    """
    shards = store.shards
    rng.shuffle(shards)
    for first in range(0, len(shards), POOLED_SHARDS):
        pool = [
            answer
            for path in shards[first : first + POOLED_SHARDS]
            for answer in store.read(path, states)
            if answer.index not in left_out and teaches(answer)
        ]
        yield from batches(pool, tokens, rng)


def batches(pool: Sequence[Answer], tokens: int, rng: random.Random) -> Iterator[list[Answer]]:
    """Yield answers of similar length together, in random order, with at most `tokens` per batch,
    padding included.
    """
    # Similar prompts too, since all draft steps but the first skip the rows that are prompt in the
    # whole batch.
    ordered = sorted(
        pool, key=lambda answer: (len(answer.prompt) // 16, len(answer.output), rng.random())
    )
    done = list[list[Answer]]()
    batch = list[Answer]()
    for answer in ordered:
        if batch and (len(batch) + 1) * max(map(len, (*batch, answer))) > tokens:
            done.append(batch)
            batch = []
        batch.append(answer)
    if batch:
        done.append(batch)
    rng.shuffle(done)
    yield from done


def teaches(answer: Answer) -> bool:
    """Return whether an answer has a token to draft: its first comes from the prompt's own
    forward.
    """
    return len(answer.output) > 1 and bool(answer.prompt)


HELD_OUT_SHARE = 0.05
"""Share of the prompts whose answers are never trained on."""


def is_held_out(index: int) -> bool:
    """Return whether the answer to a prompt is kept for evaluation; depends on the prompt's index
    alone.
    """
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
    steps = len(table)
    length = len(table[0])
    while start + steps <= length:
        accepted = 0
        while accepted < steps and table[accepted][start + accepted]:
            accepted += 1
        yield accepted
        start += accepted + 1


@dataclass(frozen=True, slots=True)
class RoundAcceptance:
    """The acceptance length of some rounds, and the share of rounds that accept at least n + 1
    tokens of n accepted.
    """

    length: float
    by_position: list[float]

    @classmethod
    def of(cls, counts: Iterable[int], steps: int) -> "RoundAcceptance":
        """Return the acceptance of rounds of `steps` drafted tokens."""
        rounds = sorted(counts)
        reached = [len(rounds) - bisect_left(rounds, position) for position in range(steps + 1)]
        rates = [after / before if before else 0.0 for before, after in pairwise(reached)]
        return cls(1 + sum(rounds) / max(1, len(rounds)), rates)

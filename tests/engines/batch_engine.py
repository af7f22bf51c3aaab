"""An engine's scheduler around answers that are known: it calls a proposer the way vLLM does.

Requests are admitted, take their prompts in chunks, change places, wait a step, lose their KV and come back, and of a
draft only a part may be verified. What was really verified is written down, to be compared with a proposer's records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

Propose = Callable[[list[list[int]], "np.ndarray", "np.ndarray"], list[list[int]]]


@dataclass
class Running:
    """A request of the engine, and the rounds that it really had, as accepted and committed tokens."""

    prompt: list[int]
    answer: list[int]
    output: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    computed: int = 0
    rounds: list[tuple[int, int]] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        return self.prompt + self.output

    @property
    def done(self) -> bool:
        return len(self.output) >= len(self.answer)

    def step(self, chunk: int, verified: int) -> list[int]:
        """The new tokens of one step: none while the text is being processed."""
        if self.computed < len(self.text) - 1 or not self.output:
            self.computed = min(self.computed + chunk, len(self.text))
            self.draft = []
            if self.computed < len(self.text):
                return []
        draft, remaining = self.draft[:verified], self.answer[len(self.output) :]
        accepted = next(
            (i for i, (d, t) in enumerate(zip(draft, remaining, strict=False)) if d != t),
            min(len(draft), len(remaining)),
        )
        # Behind the end of the answer the engine samples on, and cuts it off later.
        new = [*remaining[: accepted + 1], *([self.answer[-1]] * (accepted + 1 - len(remaining)))]
        self.output, self.draft = self.output + new, []
        self.computed = len(self.text) - 1
        self.rounds.append((accepted, len(new)))
        return new


@dataclass
class BatchEngine:
    """Runs requests to their ends; `trouble` is the chance per step of everything that can happen to a request."""

    propose: Propose
    slots: int = 4
    chunk: int = 1000
    trouble: float = 0.0
    seed: int = 0
    calls: int = 0

    def run(self, requests: Sequence[Running]) -> None:
        random, waiting, batch = Random(self.seed), list(requests), list[Running]()
        while waiting or batch:
            while waiting and len(batch) < self.slots:
                batch.append(waiting.pop(0))
            if random.random() < self.trouble:
                random.shuffle(batch)
            if (
                len(batch) > 1 and random.random() < self.trouble
            ):  # preempted: its KV and its draft are gone
                victim = batch.pop()
                victim.computed, victim.draft = 0, []
                waiting.insert(random.randint(0, len(waiting)), victim)
            absent = [batch[0]] if len(batch) > 1 and random.random() < self.trouble else []
            rows = [request for request in batch if request not in absent]
            verified = random.randint(0, 4) if random.random() < self.trouble else 100
            sampled = [request.step(self.chunk, verified) for request in rows]
            counts = np.array([len(request.text) for request in rows])
            tokens = np.zeros((len(rows), counts.max()), dtype=np.int32)
            for row, request in enumerate(rows):
                tokens[row, : counts[row]] = request.text
            drafts = self.propose(sampled, counts, tokens)
            self.calls += 1
            for request, draft in zip(rows, drafts, strict=True):
                assert not draft or not request.done or request.output, (
                    "a draft for an unprocessed prompt"
                )
                if draft:
                    request.draft = draft
            batch = [request for request in batch if not request.done]

"""What a pipeline's loop asks of whatever drafts its levels, and the draft model's answer."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.pipeline.stages import Feed, VirtualStages
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.models.runner import Runner


class LevelSource(Protocol):
    """Drafts below the levels that are fed."""

    reads: Sequence[int]
    """Layers of the target whose hidden states it is told, of every token that this keeps."""

    def step(self, streams: Sequence[RequestStream]) -> Mapping[int, Tensor]:
        """By slot, distributions [nodes, vocabulary] after the last level of those that it can draft for."""

    def forwards(self) -> Sequence[Sequence[Row]] | None:
        """What it forwarded for the last step, one batch after the other; None: each level that entered, at once."""

    def tell(self, session: Session, states: Tensor) -> None:
        """What the target made of further tokens of a request, [tokens, layers x width], in the order of its text."""

    def release(self, session: Session) -> None:
        """Forget a request."""


class LevelDrafter:
    """The draft model forwards every level that is fed, those of all requests at once."""

    reads: Sequence[int] = ()

    def __init__(self, runner: Runner, sampler: Sampler, clock: Clock) -> None:
        self._trees, self._sampler, self._clock = VirtualStages(runner), sampler, clock
        self._slots: dict[str, int] = {}

    def step(self, streams: Sequence[RequestStream]) -> Mapping[int, Tensor]:
        """Distributions of all that have nodes in flight."""
        feeds = list[Feed]()
        phase: Phase = "draft"
        for stream in streams:
            feeds.append(Feed(self._slot(stream.session.request.id), stream.level, stream.prune))
            phase = "prefill" if stream.level.prefix else phase
        growing = [stream for stream in streams if stream.flight.tokens]
        with self._clock.phase(phase):
            self._trees.step(feeds)
            found = [self._trees.answers(self._slots[one.session.request.id], one.flight.bottom) for one in growing]
            return dict(zip((one.slot for one in growing), together(self._sampler, found), strict=True))

    def forwards(self) -> Sequence[Sequence[Row]] | None:
        """Each level at once."""
        return None

    def tell(self, session: Session, states: Tensor) -> None:
        """It reads none."""

    def release(self, session: Session) -> None:
        """Forget a request."""
        slot = self._slots.pop(session.request.id, None)
        if slot is not None:
            self._trees.release(slot)

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            self._slots[name] = self._trees.acquire()
        return self._slots[name]


def together(sampler: Sampler, logits: Sequence[Tensor]) -> Sequence[Tensor]:
    """Distributions [nodes, vocabulary] of several requests, made at once."""
    if len(logits) < 2:
        return [sampler.probabilities(one) for one in logits]
    found: Sequence[Tensor] = sampler.probabilities(torch.cat(list(logits))).split([len(one) for one in logits])
    return found

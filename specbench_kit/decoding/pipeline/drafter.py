"""What a pipeline's loop asks of whatever drafts its levels, and the draft model's way to do it."""

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
    """Drafts the nodes below the levels that are fed."""

    state_layers: Sequence[int]
    """The target's layers whose hidden states it reads, of every token that the target commits."""

    def step(self, streams: Sequence[RequestStream]) -> Mapping[int, Tensor]:
        """Return, by slot, distributions [nodes, vocabulary] after the last level, for all that it
        can draft for.
        """

    def forwards(self) -> Sequence[Sequence[Row]] | None:
        """Return the forwards of the last step in order; None if it forwards each level that
        enters, at once.
        """

    def add_states(self, session: Session, states: Tensor) -> None:
        """Take the target's hidden states [tokens, layers x width] of a request's next committed
        tokens.
        """

    def release(self, session: Session) -> None:
        """Free what a finished request held."""


class LevelDrafter:
    """Drafts with the draft model, which forwards the levels of all requests at once as they are
    fed.
    """

    state_layers: Sequence[int] = ()

    def __init__(self, runner: Runner, sampler: Sampler, clock: Clock) -> None:
        self._trees = VirtualStages(runner)
        self._sampler = sampler
        self._clock = clock
        self._slots: dict[str, int] = {}

    def step(self, streams: Sequence[RequestStream]) -> Mapping[int, Tensor]:
        """Return distributions for all requests that have nodes in flight."""
        feeds = list[Feed]()
        phase: Phase = "draft"
        for stream in streams:
            name = stream.session.request.id
            if name not in self._slots:
                self._slots[name] = self._trees.acquire()
            feeds.append(Feed(self._slots[name], stream.level, stream.prune))
            phase = "prefill" if stream.level.prefix else phase
        growing = [stream for stream in streams if stream.flight.tokens]
        with self._clock.phase(phase):
            self._trees.step(feeds)
            logits = [
                self._trees.logits(self._slots[stream.session.request.id], stream.flight.bottom)
                for stream in growing
            ]
            distributions = batched_probabilities(self._sampler, logits)
            return dict(zip((stream.slot for stream in growing), distributions, strict=True))

    def forwards(self) -> Sequence[Sequence[Row]] | None:
        """Return None: each level is forwarded at once, as it enters."""
        return None

    def add_states(self, session: Session, states: Tensor) -> None:
        """Do nothing: a draft model reads no hidden states."""

    def release(self, session: Session) -> None:
        """Free a finished request's slot."""
        slot = self._slots.pop(session.request.id, None)
        if slot is not None:
            self._trees.release(slot)


def batched_probabilities(sampler: Sampler, logits: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the distributions [nodes, vocabulary] of several requests, computed in one
    operation.
    """
    if len(logits) < 2:
        return [sampler.probabilities(request_logits) for request_logits in logits]
    sizes = [len(request_logits) for request_logits in logits]
    distributions: Sequence[Tensor] = sampler.probabilities(torch.cat(list(logits))).split(sizes)
    return distributions

"""The draft model of a pipeline."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.pipeline.stages import Feed, VirtualStages
from specbench_kit.decoding.pipeline.stream import Stream
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.models.runner import Runner


class LevelDrafter:
    """Forwards every level that is fed, those of all requests at once, and says what it expects after it."""

    def __init__(self, runner: Runner, sampler: Sampler, clock: Clock) -> None:
        self._trees, self._sampler, self._clock = VirtualStages(runner), sampler, clock
        self._slots: dict[str, int] = {}

    def step(self, streams: Sequence[Stream], growing: Sequence[Stream]) -> Sequence[Tensor]:
        """Distributions [nodes, vocabulary] after the last level of those that have nodes in flight."""
        feeds = list[Feed]()
        phase: Phase = "draft"
        for stream in streams:
            feeds.append(Feed(self._slot(stream.session.request.id), stream.level, stream.prune))
            phase = "prefill" if stream.level.prefix else phase
        with self._clock.phase(phase):
            self._trees.step(feeds)
            found = [self._trees.answers(self._slots[one.session.request.id], one.flight.bottom) for one in growing]
            if not found:
                return []
            if len(found) == 1:
                return [self._sampler.probabilities(found[0])]
            parts: Sequence[Tensor] = self._sampler.probabilities(torch.cat(found)).split([len(one) for one in found])
            return parts

    def release(self, session: Session) -> None:
        """Forget a request."""
        slot = self._slots.pop(session.request.id, None)
        if slot is not None:
            self._trees.release(slot)

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            self._slots[name] = self._trees.acquire()
        return self._slots[name]

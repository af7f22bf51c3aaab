"""The stages of a pipeline as rank 0 sees them, when each is a process of its own."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import accumulate
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.pipeline.stages import ExitingTokens, Feed, StageOutput
from specbench_kit.decoding.processes.channel import Channel
from specbench_kit.decoding.processes.group import LOOPBACK, join, meeting_place
from specbench_kit.decoding.processes.launch import LAST_WORDS_S, Workers
from specbench_kit.decoding.processes.rank import Rank, by_torchrun
from specbench_kit.models.executors.stage import require_cuttable
from specbench_kit.models.pair import LoadedModel

KEPT = "finished requests are kept, --resume continues with the others"


class ProcessStages:
    """Sends every command to all stages; the last one sends back logits.

    Every call raises one clear error when a stage has died. `sizes` are slots, capacity of a slot and vocabulary.
    """

    def __init__(self, stages: int, loaded: LoadedModel, sizes: dict[str, int]) -> None:
        require_cuttable(loaded.model, stages)
        self._ranks = range(1, stages + 1)
        self._vocabulary, self._width = sizes["vocabulary"], int(loaded.text_config.hidden_size)
        self._free = list(range(sizes["slots"]))[::-1]
        self._workers: Workers | None = None
        self._broken = False
        self._channel = self._open(stages, loaded.model.device)
        dtype = str(loaded.model.dtype).removeprefix("torch.")
        try:
            self._tell({"source": asdict(loaded.source), "dtype": dtype, "sizes": sizes})
            for rank in self._ranks:
                self._hear_ready(rank)
        except BaseException:
            self.close()
            raise

    @property
    def are_children(self) -> bool:
        """Whether this process started the others."""
        return self._workers is not None

    def acquire(self) -> int:
        """An empty slot."""
        slot = self._free.pop()
        self._tell({"do": "admit", "slot": slot})
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back, with all that is in flight."""
        self._tell({"do": "release", "slot": slot})
        self._free.append(slot)

    def step(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Let every stage prune, hand on and work, and add hidden states to what it hands on; returns while they do."""
        levels = [(feed.slot, asdict(feed.level)) for feed in feeds if feed.level.weight]
        prunes = [(feed.slot, feed.prune) for feed in feeds if feed.prune is not None]
        self._tell({"do": "step", "prunes": prunes, "layers": sorted(set(layers))}, {"levels": levels})

    def answer(self, dues: Sequence[ExitingTokens], layers: Sequence[int] = ()) -> StageOutput:
        """What the last stage gives, as soon as it has it."""
        if not layers:
            return StageOutput(self.answers(len(dues)))
        weights, wanted = [due.prefix + due.root for due in dues], sorted(set(layers))
        logits, states = self.split(self.answers(sum(weights), wanted), wanted)
        roots = [end - 1 for end, due in zip(accumulate(weights), dues, strict=True) if due.root]
        return StageOutput(logits[roots], torch.cat([states[layer] for layer in layers], dim=-1).split(weights))

    def answers(self, tokens: int, layers: Sequence[int] = ()) -> Tensor:
        """Of the levels in the last stage, in the order in which they were fed: logits and, beside them, hidden states.

        [tokens, vocabulary + layers x hidden], of nodes or, with hidden states, of all tokens.
        """
        with self._talking():
            width = self._vocabulary + len(layers) * self._width
            return self._channel.receive_tensor(self._ranks[-1], (tokens, width), torch.float32)

    def pass_through(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Send one level of each slot through the empty pipeline; `answers` waits for what comes out.

        `layers`, in rising order, are those whose hidden states are wanted.
        """
        self.step(feeds, layers)
        for _ in self._ranks[1:]:
            self.step([], layers)

    def split(self, found: Tensor, layers: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """What `answers` gave: logits, and hidden states by layer."""
        logits, states = found.split((self._vocabulary, len(layers) * self._width), dim=-1)
        return logits, dict(zip(layers, states.split(self._width, dim=-1), strict=True)) if layers else {}

    def trace(self) -> list[tuple[int, int, list[int]]]:
        """What every stage worked on, as each of them tells it: a step, the stage, and the ids of the nodes."""
        self._tell({"do": "tell"})
        with self._talking():
            told = {rank: self._channel.receive(rank) for rank in self._ranks}
        return sorted((step, rank, ids) for rank, steps in told.items() for step, ids in steps)

    def close(self) -> None:
        """End the processes that were started."""
        if not self._broken:  # a wait for what a dead process was sent would not end
            with suppress(SkitError):
                self._tell({"do": "stop"})
        if self._workers is not None:
            self._workers.close()
        dist.destroy_process_group()

    def _open(self, stages: int, device: torch.device) -> Channel:
        place = by_torchrun()
        if place is None:
            return self._start(stages, device)
        if place.stages != stages:
            raise SkitError(f"{stages} stages need {stages + 1} processes, but torchrun has started {place.world}")
        return join(place, device)

    def _start(self, stages: int, device: torch.device) -> Channel:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        store = meeting_place(world=stages + 1)
        workers = self._workers = Workers(stages, device.type, store.port)
        joined: list[Channel] = []
        joining = Thread(target=lambda: joined.append(join(Rank(0, stages + 1, 0), device, store)), daemon=True)
        joining.start()
        while joining.is_alive() and not workers.died.wait(0.05):
            pass
        if not joined:
            raise SkitError(f"the pipeline could not be started: {workers.death}")
        return joined[0]

    def _hear_ready(self, rank: int) -> None:
        with self._talking():
            answer = self._channel.receive(rank)
        if "error" in answer:
            raise SkitError(f"stage {rank} of {len(self._ranks)}: {answer['error']}")

    def _tell(self, command: dict[str, Any], for_first: dict[str, Any] | None = None) -> None:
        with self._talking():
            self._channel.settle()
            for rank in self._ranks:
                self._channel.send(rank, command | (for_first or {}) if rank == 1 else command)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self._broken = True
            raise SkitError(f"the pipeline broke: {self._reason(error)}; {KEPT}") from error

    def _reason(self, error: RuntimeError) -> str:
        """What the dead stage said, once that is known; else what its connection says."""
        if self._workers is not None and self._workers.died.wait(LAST_WORDS_S):
            return self._workers.death
        return f"a stage has ended ({str(error).splitlines()[0]})"

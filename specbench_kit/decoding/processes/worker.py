"""What a rank that holds a stage does: load its slice, then serve rank 0's commands until it says stop."""

import os
import sys
from collections.abc import Iterable, Sequence
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.decoding.processes.channel import Channel
from specbench_kit.decoding.processes.group import device_of, join, meeting_place
from specbench_kit.decoding.processes.rank import Rank
from specbench_kit.decoding.processes.stage import CarriedLevel, Stage

Prunes = Sequence[tuple[int, list[list[int]]]]
"""By slot, path and kept places."""
Levels = Sequence[tuple[int, dict[str, Any]]]
"""By slot, the fields of a level."""


def serve(place: Rank, device_name: str, store: Any = None) -> None:
    """Take part in the pipeline until rank 0 ends it; without a store, by what torchrun has left in the environment."""
    from specbench_kit.models.pair import resolve_device

    device = device_of(place, resolve_device(device_name))
    channel = join(place, device, store)
    try:
        stage = _load(channel.receive(0), place, device)
    except SkitError as error:
        channel.send(0, {"error": str(error)})
    else:
        channel.send(0, {"ready": place.rank})
        _Server(stage, place, channel, device).run()
    channel.settle()
    dist.destroy_process_group()


def _load(setup: dict[str, Any], place: Rank, device: torch.device) -> Stage:
    from specbench_kit.models.catalogue import ModelSource
    from specbench_kit.models.pair import load_model

    loaded = load_model(ModelSource(**setup["source"]), device="cpu", dtype=setup["dtype"])
    return Stage(loaded.model, place.rank, place.stages, device, **setup["sizes"])


class _Server:
    """One stage at rank 0's service."""

    def __init__(self, stage: Stage, place: Rank, channel: Channel, device: torch.device) -> None:
        self._stage, self._channel = stage, channel
        self._before = place.rank - 1 if place.rank > 1 else None
        self._after = place.rank + 1 if place.rank < place.stages else None
        self._trace: list[list[Any]] = []
        self._steps = 0

    def run(self) -> None:
        """Serve."""
        while (command := self._channel.receive(0))["do"] != "stop":
            getattr(self, f"_{command.pop('do')}")(**command)

    def _admit(self, slot: int) -> None:
        self._stage.admit(slot)

    def _release(self, slot: int) -> None:
        self._stage.release(slot)

    def _tell(self) -> None:
        self._channel.send(0, self._trace)

    def _step(self, prunes: Prunes, layers: Sequence[int], levels: Levels = ()) -> None:
        self._steps += 1
        self._channel.settle()
        for slot, prune in prunes:
            self._stage.prune(slot, Prune(*prune))
        with torch.inference_mode():
            self._stage.work(
                self._hand_on({slot: CarriedLevel(Level(**level)) for slot, level in levels}, layers), layers
            )
        held = list(self._stage.held.values())
        fed = [load for load in held if load.level.tokens]
        self._trace += [[self._steps, load.level.ids] for load in fed]
        if self._after is None:
            states = _joined(held if layers else fed)
            if states is not None:
                self._channel.send_tensor(0, states.float())
            self._stage.held = {}

    def _hand_on(self, loads: dict[int, CarriedLevel], layers: Sequence[int]) -> dict[int, CarriedLevel]:
        """Give what is held to the next stage, and take what the one before it held; the first is given `loads`."""
        channel, held, stage = self._channel, self._stage.held, self._stage
        if self._after is not None:
            described = [
                (slot, load.level.ids, load.level.parents, len(load.level.prefix)) for slot, load in held.items()
            ]
            channel.send(self._after, described)
        if self._before is not None:
            loads = {
                slot: CarriedLevel(Level(ids, [0] * len(ids), parents, [0] * prefix))
                for slot, ids, parents, prefix in channel.receive(self._before)
            }
        states = _joined(held.values())
        outgoing = (self._after, states) if self._after is not None and states is not None else None
        incoming, weights = None, [load.level.weight for load in loads.values()]
        if self._before is not None and loads:
            seen = sum(layer < stage.executor.layers[0] for layer in layers)
            incoming = (self._before, (sum(weights), (1 + seen) * stage.hidden_size), stage.dtype)
        received = channel.exchange(outgoing, incoming)
        if received is not None:
            for load, part in zip(loads.values(), received.split(weights), strict=True):
                load.states = part[:, : stage.hidden_size]
                load.seen = part[:, stage.hidden_size :] if part.shape[1] > stage.hidden_size else None
        return loads


def _joined(loads: Iterable[CarriedLevel]) -> Tensor | None:
    """What levels carry, token by token: their states, and those that a drafter reads beside them."""
    parts = [
        load.states if load.seen is None else torch.cat((load.states, load.seen), dim=-1)
        for load in loads
        if load.states is not None
    ]
    return torch.cat(parts) if parts else None


def main() -> None:
    """Serve as rank 0 started it, and end with it."""
    Thread(target=_end_with_parent, daemon=True).start()
    port, device_name = sys.argv[1:]
    serve(Rank.given(), device_name, meeting_place(int(port)))


def _end_with_parent() -> None:
    """Rank 0 holds the other end of the standard input and never writes to it."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()

"""A rank that holds a stage of a pipeline: it loads its slice of the target, and serves rank 0
until it says stop.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.decoding.pipeline.stages import TreeSlot
from specbench_kit.decoding.processes.group import Channel, device_of, join, meeting_point
from specbench_kit.decoding.processes.rank import Rank
from specbench_kit.models.executors.stage import StageExecutor
from specbench_kit.models.runner import Runner


@dataclass(slots=True)
class CarriedLevel:
    """A level on its way, with the hidden states [tokens, hidden] that the last stage to work on it
    computed.

    `drafter_states` [tokens, layers x hidden] are those that a drafter reads, of the layers passed so far.
    """

    level: Level = field(default_factory=Level)
    states: Tensor | None = None
    drafter_states: Tensor | None = None


class Stage:
    """Computes a slice of the target for levels; rank 0 keeps the books and tells the stage what to
    prune.
    """

    def __init__(
        self,
        model: Any,
        stage: int,
        stages: int,
        device: torch.device,
        *,
        slots: int,
        capacity: int,
        vocabulary: int,
    ) -> None:
        self.executor = StageExecutor(model, stage, stages, device, slots, capacity, vocabulary)
        self.dtype: torch.dtype = model.dtype
        self.hidden_size: int = model.config.hidden_size
        self.runner = Runner(self.executor)
        self.output: dict[int, CarriedLevel] = {}
        """By slot, what goes to the next stage with the next step, or is the last stage's
        answer.
        """
        self.trees: dict[int, TreeSlot] = {}

    def admit(self, slot: int) -> None:
        """Begin with a new request."""
        self.trees[slot] = TreeSlot(self.runner)

    def release(self, slot: int) -> None:
        """Free a finished request's slot."""
        self.trees.pop(slot).release()
        self.output.pop(slot, None)

    def prune(self, slot: int, prune: Prune) -> None:
        """Drop nodes from KV and from the stage's output."""
        tree = self.trees[slot]
        carried = self.output.get(slot, CarriedLevel())
        # The stage has computed the flight's first nodes, and the newest of them are those of its
        # output.
        first = len(tree) - len(carried.level.tokens)
        computed = tree.prune(prune)
        rows = [node - first for node in computed if node >= first]
        if rows and carried.states is not None:
            staying = [len(carried.level.prefix) + row for row in rows]
            drafter_states = (
                None if carried.drafter_states is None else carried.drafter_states[staying]
            )
            # The slot keeps its position in the dictionary, since answers go out in this order.
            self.output[slot] = CarriedLevel(
                carried.level.pick(rows, computed), carried.states[staying], drafter_states
            )
        else:
            self.output.pop(slot, None)

    def work(self, levels: Mapping[int, CarriedLevel], layers: Sequence[int] = ()) -> None:
        """Compute the levels of all slots as one batch, from tokens or the hidden states of the
        stage before.

        Of the `layers` that a drafter reads, those of this stage's join what the levels carry.
        """
        self.output = {}
        if not levels:
            return
        pairs = [(self.trees[slot], carried) for slot, carried in levels.items()]
        all_tokens = bool(layers) or not self.executor.last
        rows = [tree.append(carried.level, whole=all_tokens) for tree, carried in pairs]
        self.executor.received = {
            tree.index: carried.states for tree, carried in pairs if carried.states is not None
        }
        own = [layer for layer in layers if layer in self.executor.layers]
        forward = self.runner.forward(rows, own)
        for row, (slot, carried) in enumerate(levels.items()):
            parts = [carried.drafter_states, forward.states(row, own) if own else None]
            states = [part for part in parts if part is not None]
            self.output[slot] = CarriedLevel(
                carried.level, forward[row], torch.cat(states, dim=-1) if states else None
            )


Prunes = Sequence[tuple[int, list[list[int]]]]
"""By slot, the path and the nodes to keep."""
Levels = Sequence[tuple[int, Mapping[str, Any]]]
"""By slot, the fields of a level."""


def serve(rank: Rank, device_name: str, store: Store | None = None) -> None:
    """Load this rank's stage and work for rank 0 until it ends the pipeline.

    Without a store, the ranks meet by what torchrun has left in the environment.
    """
    from specbench_kit.models.catalogue import ModelSource
    from specbench_kit.models.pair import load_model, resolve_device

    device = device_of(rank, resolve_device(device_name))
    channel = join(rank, device, store)
    try:
        setup = channel.receive(0)
        loaded = load_model(ModelSource(**setup["source"]), device="cpu", dtype=setup["dtype"])
        stage = Stage(loaded.model, rank.rank, rank.stages, device, **setup["sizes"])
    except SkitError as error:
        channel.send(0, {"error": str(error)})
    else:
        channel.send(0, {"ready": rank.rank})
        StageServer(stage, rank, channel).run()
    channel.settle()
    dist.destroy_process_group()


class StageServer:
    """Does with one stage what rank 0 commands; a command's `do` names the method."""

    def __init__(self, stage: Stage, rank: Rank, channel: Channel) -> None:
        self._stage = stage
        self._channel = channel
        self._previous = rank.rank - 1 if rank.rank > 1 else None
        self._next = rank.rank + 1 if rank.rank < rank.stages else None
        self._trace: list[tuple[int, list[int]]] = []
        self._steps = 0

    def run(self) -> None:
        """Serve until rank 0 says stop."""
        commands: dict[str, Callable[..., None]] = {
            "admit": self._stage.admit,
            "release": self._stage.release,
            "step": self.step,
            "tell": self.tell,
        }
        while (command := self._channel.receive(0))["do"] != "stop":
            commands[command.pop("do")](**command)

    def tell(self) -> None:
        """Send rank 0 the ids of the nodes that each step worked on."""
        self._channel.send(0, self._trace)

    def step(self, prunes: Prunes, layers: Sequence[int], levels: Levels = ()) -> None:
        """Prune, hand on the last step's output, take in the next levels, and compute them."""
        self._steps += 1
        self._channel.settle()
        for slot, prune in prunes:
            self._stage.prune(slot, Prune(*prune))
        with torch.inference_mode():
            fed = {slot: CarriedLevel(Level(**level)) for slot, level in levels}
            self._stage.work(self._hand_on(fed, layers), layers)
        output = list(self._stage.output.values())
        with_nodes = [carried for carried in output if carried.level.tokens]
        self._trace += [(self._steps, carried.level.ids) for carried in with_nodes]
        if self._next is None:
            states = _joined(output if layers else with_nodes)
            if states is not None:
                self._channel.send_tensor(0, states.float())
            self._stage.output = {}

    def _hand_on(
        self, fed: dict[int, CarriedLevel], layers: Sequence[int]
    ) -> dict[int, CarriedLevel]:
        """Give the stage's output to the next stage, and return what the previous one gave; the
        first gets `fed`.

        Every stage sends before it receives, and sending does not wait: so no two stages wait for
        each other.
        """
        channel = self._channel
        stage = self._stage
        output = self._stage.output
        if self._next is not None:
            # The next stage needs no tokens, only how many there are: it computes from hidden
            # states.
            shapes = [
                (slot, carried.level.ids, carried.level.parents, len(carried.level.prefix))
                for slot, carried in output.items()
            ]
            channel.send(self._next, shapes)
        arriving = fed
        if self._previous is not None:
            arriving = {
                slot: CarriedLevel(Level(ids, [0] * len(ids), parents, [0] * prefix))
                for slot, ids, parents, prefix in channel.receive(self._previous)
            }
        states = _joined(output.values())
        outgoing = (self._next, states) if self._next is not None and states is not None else None
        incoming = None
        counts = [carried.level.token_count for carried in arriving.values()]
        if self._previous is not None and arriving:
            passed = sum(layer < stage.executor.layers[0] for layer in layers)
            incoming = (
                self._previous,
                (sum(counts), (1 + passed) * stage.hidden_size),
                stage.dtype,
            )
        received = channel.exchange(outgoing, incoming)
        if received is not None:
            for carried, part in zip(arriving.values(), received.split(counts), strict=True):
                carried.states = part[:, : stage.hidden_size]
                carried.drafter_states = (
                    part[:, stage.hidden_size :] if part.shape[1] > stage.hidden_size else None
                )
        return arriving


def _joined(levels: Iterable[CarriedLevel]) -> Tensor | None:
    """Return what levels carry, token by token: their states, and beside them those that a drafter
    reads.
    """
    parts = [
        carried.states
        if carried.drafter_states is None
        else torch.cat((carried.states, carried.drafter_states), dim=-1)
        for carried in levels
        if carried.states is not None
    ]
    return torch.cat(parts) if parts else None


def main() -> None:
    """Serve as rank 0 started this process, and end with rank 0."""

    def end_with_parent() -> None:
        # Rank 0 holds the other end of the standard input and never writes to it: reading returns
        # when it is gone. Not by sys.stdin, whose lock a thread that reads would hold while Python
        # ends, which then aborts.
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()
    port, device_name = sys.argv[1:]
    serve(Rank.from_environment(), device_name, meeting_point(int(port)))


if __name__ == "__main__":
    main()

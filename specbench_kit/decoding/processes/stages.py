"""A pipeline whose stages are processes of their own, as rank 0 sees it.

The loop of a pipeline keeps all stages busy; in verification by rounds, a batch passes through all
of them before the next one begins.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from threading import Event, Thread
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.pipeline.flight import Level, Prune
from specbench_kit.decoding.pipeline.stages import ExitingTokens, Feed, StageOutput
from specbench_kit.decoding.processes.group import LOOPBACK, Channel, join, meeting_point
from specbench_kit.decoding.processes.rank import Rank, rank_by_torchrun
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.executors.stage import require_cuttable
from specbench_kit.models.pair import LoadedModel
from specbench_kit.models.runner import Append

KEPT = "finished requests are kept, --resume continues with the others"
Command = Mapping[str, object]


class ProcessStages:
    """Sends every command to all stages; the last one sends back logits.

    Every call raises one clear SkitError when a stage has died. `sizes` holds the number of slots,
    a slot's capacity and the size of the vocabulary.
    """

    def __init__(self, stages: int, loaded: LoadedModel, sizes: dict[str, int]) -> None:
        require_cuttable(loaded.shell, stages)
        self._ranks = range(1, stages + 1)
        self._vocabulary = sizes["vocabulary"]
        self._width = int(loaded.text_config.hidden_size)
        self._free = list(range(sizes["slots"]))[::-1]
        self._workers: StageWorkers | None = None
        self._broken = False
        self._channel = self._open(stages, loaded.device)
        dtype = str(loaded.dtype).removeprefix("torch.")
        try:
            self._send_all({"source": asdict(loaded.source), "dtype": dtype, "sizes": sizes})
            for rank in self._ranks:
                with self._stages_alive():
                    answer = self._channel.receive(rank)
                if "error" in answer:
                    raise SkitError(f"stage {rank} of {stages}: {answer['error']}")
        except BaseException:
            self.close()
            raise

    @property
    def are_children(self) -> bool:
        """True if this process started the others; false if torchrun did."""
        return self._workers is not None

    def acquire(self) -> int:
        """Return an empty slot."""
        slot = self._free.pop()
        self._send_all({"do": "admit", "slot": slot})
        return slot

    def release(self, slot: int) -> None:
        """Free a slot, with all that is in flight."""
        self._send_all({"do": "release", "slot": slot})
        self._free.append(slot)

    def step(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Let every stage prune, hand on and compute, with the hidden states of `layers`; return
        while they do.
        """
        levels = [(feed.slot, asdict(feed.level)) for feed in feeds if feed.level.token_count]
        prunes = [(feed.slot, feed.prune) for feed in feeds if feed.prune is not None]
        self._send_all(
            {"do": "step", "prunes": prunes, "layers": sorted(set(layers))}, {"levels": levels}
        )

    def answer(self, exiting: Sequence[ExitingTokens], layers: Sequence[int] = ()) -> StageOutput:
        """Wait for the last stage's output, and return it."""
        if not layers:
            return StageOutput(self.receive_output(len(exiting)))
        counts = [tokens.prefix + tokens.root for tokens in exiting]
        read = sorted(set(layers))
        logits, states = self.split(self.receive_output(sum(counts), read), read)
        # A request's root is the last of its tokens.
        roots = [
            end - 1 for end, tokens in zip(accumulate(counts), exiting, strict=True) if tokens.root
        ]
        return StageOutput(
            logits[roots], torch.cat([states[layer] for layer in layers], dim=-1).split(counts)
        )

    def receive_output(self, tokens: int, layers: Sequence[int] = ()) -> Tensor:
        """Wait for the last stage's output, and return it: [tokens, vocabulary + layers x hidden].

        It holds logits and, beside them, hidden states, in the order in which levels were fed; of
        the nodes alone, or of all tokens if there are `layers`.
        """
        with self._stages_alive():
            width = self._vocabulary + len(layers) * self._width
            return self._channel.receive_tensor(self._ranks[-1], (tokens, width), torch.float32)

    def pass_through(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        """Send one level of each slot through the empty pipeline; `receive_output` waits for what
        comes out.

        `layers`, in rising order, are those whose hidden states are needed.
        """
        self.step(feeds, layers)
        for _ in self._ranks[1:]:
            self.step([], layers)

    def split(self, output: Tensor, layers: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Split what `receive_output` gave into logits, and hidden states by layer."""
        logits, states = output.split((self._vocabulary, len(layers) * self._width), dim=-1)
        return logits, dict(
            zip(layers, states.split(self._width, dim=-1), strict=True)
        ) if layers else {}

    def trace(self) -> list[tuple[int, int, list[int]]]:
        """Return what every stage worked on, as it says itself: the step, the stage, and the ids of
        the nodes.
        """
        self._send_all({"do": "tell"})
        with self._stages_alive():
            traces = {rank: self._channel.receive(rank) for rank in self._ranks}
        return sorted((step, rank, ids) for rank, steps in traces.items() for step, ids in steps)

    def close(self) -> None:
        """End the processes that were started."""
        if not self._broken:  # else the wait for what a dead process was sent would not end
            with suppress(SkitError):
                self._send_all({"do": "stop"})
        if self._workers is not None:
            self._workers.close()
        dist.destroy_process_group()

    def _open(self, stages: int, device: torch.device) -> Channel:
        """Meet the ranks that torchrun has started, or start one process per stage and meet
        those.
        """
        if rank := rank_by_torchrun():
            if rank.stages != stages:
                raise SkitError(
                    f"{stages} stages need {stages + 1} processes, but torchrun has started {rank.world}"
                )
            return join(rank, device)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        store = meeting_point(world=stages + 1)
        worker = "specbench_kit.decoding.processes.worker"
        command = [sys.executable, "-m", worker, str(store.port), device.type]
        workers = self._workers = StageWorkers(stages, command)
        channels: list[Channel] = []
        # In a thread, since the meeting waits for all ranks, and would wait forever for one that
        # died on its way.
        joining = Thread(
            target=lambda: channels.append(join(Rank(0, stages + 1, 0), device, store)), daemon=True
        )
        joining.start()
        while joining.is_alive() and not workers.died.wait(0.05):
            pass
        if not channels:
            raise SkitError(f"the pipeline could not be started: {workers.death}")
        return channels[0]

    def _send_all(self, command: Command, for_first: Command | None = None) -> None:
        """Send a command to all stages, and to the first with some fields more."""
        with self._stages_alive():
            self._channel.settle()
            for rank in self._ranks:
                self._channel.send(rank, {**command, **(for_first or {})} if rank == 1 else command)

    @contextmanager
    def _stages_alive(self) -> Iterator[None]:
        """Turn the error of a broken connection into one that says which stage died, and of
        what.
        """
        try:
            yield
        except RuntimeError as error:
            self._broken = True
            reason = f"a stage has ended ({str(error).splitlines()[0]})"
            if self._workers is not None and self._workers.died.wait(LAST_WORDS_S):
                reason = self._workers.death
            raise SkitError(f"the pipeline broke: {reason}; {KEPT}") from error


LAST_WORDS_S = 3.0
"""Time for a process to end by itself, and for the news of its death to arrive."""


class StageWorkers:
    """The processes that hold the stages. When one dies, the others are ended, which breaks every
    wait for them.

    Each runs the `command`, and reads in its environment which stage it is.
    """

    def __init__(self, stages: int, command: Sequence[str]) -> None:
        self.died = Event()
        self.death = ""
        self._deaths: list[_Death] = []
        self._closing = False
        threads = max(1, torch.get_num_threads() // (stages + 1))
        self._processes = []
        for rank in range(1, stages + 1):
            settings = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": stages + 1,
                "OMP_NUM_THREADS": threads,
            }
            environment = {name: str(value) for name, value in settings.items()} | {
                "GLOO_SOCKET_IFNAME": LOOPBACK
            }
            process = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdin=subprocess.PIPE,  # never written to: a worker ends when it closes
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,  # Ctrl-C is for rank 0 alone, which then ends the others in order
            )
            self._processes.append(process)
        for rank, process in enumerate(self._processes, 1):
            Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def close(self) -> None:
        """Wait for the stages to end, and kill those that do not."""
        self._closing = True
        for process in self._processes:
            try:
                process.wait(LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until a process ends; if it was not told to, note why and kill the others."""
        assert process.stderr is not None
        lines = process.stderr.read().decode(errors="replace").strip().splitlines()
        code = process.wait()
        self._deaths.append(_Death(rank, process.pid, code, lines))
        if self._closing:
            return
        self._closing = True  # the others die of the kill below, which is not worth a message
        self.died.wait(SETTLING_S)
        # Whoever loses its neighbour may abort before that one has ended, whose own error is the
        # reason.
        cause = next((death for death in self._deaths if death.code > 0), self._deaths[0])
        self.death = cause.told(len(self._processes))
        self.died.set()
        for worker in self._processes:
            worker.kill()


SETTLING_S = 0.5
"""Time in which processes that fail for one reason have ended."""


class _Death(NamedTuple):
    """How a process has ended, and what it said last."""

    rank: int
    pid: int
    code: int
    lines: Sequence[str]

    def told(self, stages: int) -> str:
        """Return it in words."""
        reason = (
            f"was ended by signal {-self.code}"
            if self.code < 0
            else f"ended with exit code {self.code}"
        )
        said = f": {telling_line(self.lines)}" if self.lines else ""
        return f"stage {self.rank} of {stages} (process {self.pid}) {reason}{said}"


NAMES_AN_ERROR = re.compile(r"^(\[rank\d+\]: )?(\S*(Error|Exception)\b|\s*what\(\)):")
"""torch.distributed puts the rank before every line of a traceback."""


def telling_line(lines: Sequence[str]) -> str:
    """Return the line of a dead process's last words that says why: the last that names an error,
    or the last.
    """
    return next(
        (line.strip() for line in reversed(lines) if NAMES_AN_ERROR.match(line)), lines[-1].strip()
    )


@dataclass(slots=True)
class _Slot:
    length: int = 0
    prefix: int = 0
    """Provisional tokens at the beginning, which the stages have joined to their prefix already."""
    nodes: int = 0
    prune: Prune | None = None
    """What the last commit decided; the stages hear of it with the next pass."""


class PipelineTarget:
    """Does for a pipeline what a runner does for a model.

    A forward's first tokens, whose logits are not requested, must form a chain.
    """

    asynchronous = True
    takes_pending = False
    states_apart = False

    def __init__(self, stages: "ProcessStages") -> None:
        self._stages = stages
        self._slots: dict[int, _Slot] = {}

    def acquire(self) -> int:
        """Return an empty slot."""
        slot = self._stages.acquire()
        self._slots[slot] = _Slot()
        return slot

    def release(self, slot: int) -> None:
        """Free a slot."""
        del self._slots[slot]
        self._stages.release(slot)

    def length(self, slot: int) -> int:
        """Return the number of committed tokens."""
        return self._slots[slot].length

    def provisional(self, slot: int) -> int:
        """Return the number of appended tokens that are not yet committed."""
        return self._slots[slot].prefix + self._slots[slot].nodes

    def begin(self, rows: Sequence[Append], layers: Sequence[int] = ()) -> Callable[[], Forward]:
        """Start one pass of all rows; the function returned waits for its result."""
        layers = sorted(set(layers))
        counts = [len(row.tokens) if layers else row.keep for row in rows]
        feeds = []
        for row in rows:
            slot = self._slots[row.slot]
            slot.prefix = len(row.tokens) - row.keep
            slot.nodes = row.keep
            parents = row.parents or range(-1, len(row.tokens) - 1)
            parents = [max(-1, parent - slot.prefix) for parent in parents[slot.prefix :]]
            nodes = list(row.tokens[slot.prefix :])
            level = Level(list(range(len(nodes))), nodes, parents, row.tokens[: slot.prefix])
            feeds.append(Feed(row.slot, level, slot.prune))
        self._stages.pass_through(feeds, layers)

        def requested(output: Tensor) -> list[Tensor]:
            return [part[-row.keep :] for part, row in zip(output.split(counts), rows, strict=True)]

        def answer() -> Forward:
            logits, states = self._stages.split(
                self._stages.receive_output(sum(counts), layers), layers
            )
            return Forward(
                requested(logits), {layer: requested(hidden) for layer, hidden in states.items()}
            )

        return answer

    def commit(self, slot: int, path: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Make the provisional nodes `path` part of the prefix, and drop the others, with the next
        pass.
        """
        state = self._slots[slot]
        state.prune = Prune([node - state.prefix for node in path if node >= state.prefix], [])
        state.length = state.length + len(path)
        state.prefix = 0
        state.nodes = 0

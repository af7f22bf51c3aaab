"""Helpers of all benchmarks: the setting, timing in turns, and the figures that a benchmark returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import torch

from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.datasets.loading import load
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import executors
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.studies.conversations import Conversation

Item = TypeVar("Item")
Runners = tuple[Runner, Runner]
Seconds = dict[str, list[list[float]]]
"""Seconds by contender, round and item."""

AUTOREGRESSIVE, FIXED_K = "autoregressive", "fixed-k:k=4"


class Skipped(Exception):
    """Raised with a one-line reason if a benchmark cannot run on this machine."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The range in which a figure must lie, in the figure's unit."""

    least: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least:g} – {self.most:g}"
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number; over several rounds, `value` is the median and `spread` the minimum and the maximum."""

    label: str
    value: float
    unit: str
    bound: Bound | None = None
    spread: tuple[float, float] | None = None

    @property
    def passes(self) -> bool | None:
        """True if the value is within the bound; None if there is no bound."""
        return self.bound.holds(self.value) if self.bound else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one benchmark; `notes` are printed below its table, `files` are written next to its JSON."""

    title: str
    figures: Sequence[Figure]
    notes: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


def over_rounds(
    label: str, values: Sequence[float], unit: str, bound: Bound | None = None
) -> Figure:
    """Return the median over rounds as a figure, with the minimum and the maximum."""
    return Figure(label, median(values), unit, bound, (min(values), max(values)))


def round_ratios(seconds: Seconds, above: str, below: str) -> list[float]:
    """Return for each round how many times longer the contender `above` took than `below`."""
    return [sum(a) / sum(b) for a, b in zip(seconds[above], seconds[below], strict=True)]


@dataclass(frozen=True)
class Setting:
    """The models, prompts and sizes of all benchmarks; models are loaded on first use."""

    target: str = "bundled"
    draft: str = "bundled"
    prompts: int = 8
    rounds: int = 5
    max_new_tokens: int = 128
    device: str = "cpu"

    @cached_property
    def pair(self) -> Pair:
        return load_pair(self.target, self.draft, device=self.device)

    @cached_property
    def dataset(self) -> LoadedDataset:
        return load("gsm8k", data_dir=None, allow_sample=True, limit=self.prompts, seed=0)

    def __str__(self) -> str:
        source = f"{len(self.dataset.prompts)} prompts of {self.dataset.location} ({self.dataset.source})"
        sizes = f"up to {self.max_new_tokens} new tokens, {self.rounds} rounds"
        return f"{source}, {sizes}, {torch.get_num_threads()} torch threads"

    @cached_property
    def requests(self) -> list[Request]:
        requests = (
            Conversation(p, self.pair.tokenizer, self.max_new_tokens).next_request()
            for p in self.dataset.prompts
        )
        return [request for request in requests if request is not None]

    @cached_property
    def executor_names(self) -> list[str]:
        """The executors that can run the target, the kit's default first."""
        able = [
            (e.priority, name)
            for name, e in executors.all().items()
            if e.supports(self.pair.target.model)
        ]
        return [name for _, name in sorted(able, reverse=True)]

    def runners(self, executor: str, slots: int = 1, max_new_tokens: int | None = None) -> Runners:
        """Return new runners of target and draft on an executor."""
        longest = max(len(request.prompt_ids) for request in self.requests)
        return self.pair.runners(slots, longest + (max_new_tokens or self.max_new_tokens), executor)

    def decode(
        self,
        runners: Runners,
        method: str,
        requests: Sequence[Request],
        batch_size: int = 1,
        eos_ids: frozenset[int] | None = None,
        deployment: Deployment | None = None,
    ) -> tuple[list[RequestRecord], float]:
        """Decode greedily; return the records in the order of the requests, and the engine's seconds."""
        loop = local_loop(
            parse_method(method),
            *runners,
            setup=DecodingSetup(
                eos_ids=self.pair.eos_ids if eos_ids is None else eos_ids, batch_size=batch_size
            ),
            deployment=deployment,
        )
        for request in requests:
            loop.submit(request)
        records: dict[str, RequestRecord] = {}
        while not loop.idle:
            records |= {record.request_id: record for record in loop.step()}
        return [records[request.id] for request in requests], loop.clock.now_s()


def take_turns(
    contenders: Mapping[str, Callable[[Item], Any]],
    items: Sequence[Item],
    rounds: int,
    clock: Callable[[], float] = perf_counter,
) -> Seconds:
    """Time every contender on every item, in the order A B and then B A, so that drift affects all of them alike.

    An untimed pass over the first item comes before.
    """
    for contender in contenders.values():
        contender(items[0])
    seconds: Seconds = {name: [[] for _ in range(rounds)] for name in contenders}
    for turn in range(rounds):
        for index, item in enumerate(items):
            for name in list(contenders)[:: -1 if (turn + index) % 2 else 1]:
                started_s = clock()
                contenders[name](item)
                seconds[name][turn].append(clock() - started_s)
    return seconds

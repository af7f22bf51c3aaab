"""The event loop of servers in compiled code, with the results of the loop in Python to the last
digit.

It knows pipelines of stages, pools of servers that fail and come back, the built-in routers and
schedulers but one, drafting on devices, on the server as far as each round says, or nowhere, and
devices' own links. `Simulation` runs all other scenes, and all scenes where csrc/core.cpp was not
compiled.
"""

import ctypes
import sys
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int64
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from specbench_kit.decoding.latency import BatchSums
from specbench_kit.runs.deployment import TOKEN_BYTES
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.devices import Devices
from specbench_kit.serving.execution import (
    AlonePiece,
    RoundDrafting,
    SummedExecution,
    VerificationOnly,
)
from specbench_kit.serving.pool_spec import availability_changes
from specbench_kit.serving.result import (
    BATCH_COLUMNS,
    RESPONSE_COLUMNS,
    ROUND_COLUMNS,
    SERVER_COLUMN,
    ColumnTable,
)
from specbench_kit.serving.round_sources import (
    PositionRates,
    RatesByPlace,
    RecordedRounds,
    RoundSource,
    place_of,
)
from specbench_kit.serving.round_table import RoundRows, RoundTable
from specbench_kit.serving.routers.base import Router
from specbench_kit.serving.routers.least_work import LeastWork
from specbench_kit.serving.routers.round_robin import RoundRobin
from specbench_kit.serving.routers.session_affinity import SessionAffinity, weight
from specbench_kit.serving.routers.shortest_expected_time import ShortestExpectedTime
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.base import Scheduler
from specbench_kit.serving.schedulers.chunked import Chunked
from specbench_kit.serving.schedulers.edf import Edf
from specbench_kit.serving.schedulers.fcfs import Fcfs
from specbench_kit.serving.schedulers.prefill_first import PrefillFirst
from specbench_kit.serving.schedulers.static import Static
from specbench_kit.serving.schedulers.wisp_paper import WispPaper
from specbench_kit.serving.schedulers.wisp_promise import WispPromise
from specbench_kit.serving.simulated_server import SimulatedServer

SCHEDULERS: tuple[type[Scheduler], ...] = (
    Fcfs,
    Edf,
    Static,
    PrefillFirst,
    WispPaper,
    WispPromise,
    Chunked,
)
"""In the order of their numbers in core.cpp."""
ROUTERS: tuple[type[Router], ...] = (RoundRobin, SessionAffinity, LeastWork, ShortestExpectedTime)
"""In the order of their numbers there."""
TABLES = (ROUND_COLUMNS, RESPONSE_COLUMNS, (*BATCH_COLUMNS, SERVER_COLUMN))
FEWEST_ROWS = 1000
ROUNDS_PER_S = 4
MOST_ROUNDS_AT_FIRST = 1 << 22
"""Rounds per second of a device for which there is room from the start, and for how many in all."""
GROWTH = 4
"""How many times as many rows as are written a table has room for."""
Counts = tuple[int, ...]
"""The fields of `BatchSums`."""
PROMPT = -1
"""Stands for the number of draft steps where core.cpp asks how long a device takes to read a
prompt.
"""
FIRST_WORK = -2
"""Stands there for the first work of a source; those that follow count down."""


class Settings(ctypes.Structure):
    """The structure `Settings` of core.cpp."""

    _fields_ = [
        *(
            (name, c_int64)
            for name in ("devices", "on_edge", "speculates", "keeps_kv", "scheduler", "has_jitter")
        ),
        *((name, c_int64) for name in ("token_bytes", "drafts", "mixes_prompts", "row_fields")),
        *((name, c_int64) for name in ("is_pool", "router", "routes_rounds")),
        ("longest_response", c_double),
        ("options", c_double * 6),
    ]


class ServerSettings(ctypes.Structure):
    """The structure `ServerSettings` of core.cpp."""

    _fields_ = [
        *((name, c_int64) for name in ("admits", "lru", "additive", "max_requests", "stages")),
        ("longest_draft", c_int64),
        *((name, c_double) for name in ("kv_tokens", "kv_capacity", "idle_s")),
    ]


INTERFACE = 4
"""The number of what `make` and `run` of core.cpp take and return: it changes with them."""


class ServerParts(NamedTuple):
    """What the core knows of a server; core.cpp reads the fields by their names, and calls the
    functions.
    """

    settings: ServerSettings
    isolated_s: Callable[..., float]
    batch_s: Callable[..., tuple[float, float]]
    estimated_s: Callable[..., float]
    ended: Callable[[float, int], float]
    restarted: Callable[[float], float]


class CoreParts(NamedTuple):
    """What a core is made of; core.cpp reads the fields by their names.

    `streams` and `per_device` have a row for each purpose of random numbers and for each of
    `PerDevice`, and a column for each device. The functions are called from there.
    """

    settings: Settings
    streams: NDArray[np.uint64]
    per_device: Floats
    kinds: Integers
    """The kind of each device, [devices]."""
    sources: Sequence[tuple[object, ...]]
    """The tables of the source of each kind, and whether it goes by the context's length."""
    pieces: Integers
    """The pieces of recorded work of a server that drafts by it, one after the other."""
    servers: Sequence[ServerParts]
    changes: Floats
    """When a server fails (0) or comes back (1): time, server and which of both, [changes, 3]."""
    ranks: Integers
    """The order in which each device prefers servers, by its hash, [devices, servers]."""
    draft_s: Callable[[int, int, int, int], float]
    requests: Callable[[int], Floats]
    check_lengths: Callable[[int, int], None]
    make_room: Callable[[int, int], tuple[int, int]]


class ServerCounts(NamedTuple):
    """What the loop counted of a server so far."""

    refusals: int
    evictions: int
    peak_kv_tokens: int
    idle_waiting_s: float
    idle_since_s: float
    moved: int
    lost: int


@dataclass(frozen=True, slots=True)
class CoreFigures:
    """What the loop counted so far, and the clients whose rounds are at a server, in the order of
    the result.
    """

    rounds: int
    responses: int
    batches: int
    events: int
    servers: list[ServerCounts]
    unanswered: list[int]


_spare: list[Floats | None] = [None] * len(TABLES)
"""The last tables of this process: their pages, which take as long to clear as a third of a
simulation, are reused.
"""


def _references(tables: Sequence[Floats | None], number: int) -> int:
    """Return how many references there are to a table, those of the list and of this function
    included.
    """
    table = tables[number]
    return sys.getrefcount(table)


IDLE_REFERENCES = _references([np.empty((1, 0))], 0)
"""References to a table that only a list holds, which are not as many in every version of
Python.
"""


def _empty_table(number: int, rows: int) -> Floats:
    """Return a table with room for so many rows: the spare one if no result looks into it, and it
    is large enough.
    """
    # Every view of a table, and every core that writes to it, refers to it as well.
    if _references(_spare, number) == IDLE_REFERENCES:
        spare = _spare[number]
        if spare is not None and spare.shape[1] >= rows:
            return spare
    table = np.empty((len(TABLES[number]), rows))
    if rows <= MOST_ROUNDS_AT_FIRST:
        _spare[number] = table
    return table


DEADLINE_NUMBERS = {"round": 0.0, "promise": 1.0}
"""What the compiled schedulers read for the deadline that they go by; no other option of theirs is
a text.
"""


class CoreLibrary(Protocol):
    """The functions of core.cpp; `Any` is a core."""

    interface: int
    settings_size: int
    """`INTERFACE` and the bytes of `Settings` there: other numbers say that the file is left over
    from another version of the kit.
    """

    def make(self, parts: CoreParts, /) -> Any:
        """Return a core that stands at the beginning."""

    def run(self, core: Any, until_s: float, /, *addresses: int) -> Sequence[Any]:
        """Run up to a moment, write the devices' state to the addresses, and return the fields of
        `CoreFigures`.
        """


@cache
def load_core() -> CoreLibrary | None:
    """Return the compiled event loop, or None if it was not compiled at installation."""
    try:
        library = cast("CoreLibrary", import_module("specbench_kit.serving.csrc.core"))
    except ImportError:
        return None
    compiled = getattr(library, "interface", None), library.settings_size
    return library if compiled == (INTERFACE, ctypes.sizeof(Settings)) else None


class NativeCore:
    """The compiled loop of one simulation; `run` goes on where it stopped."""

    def __init__(
        self,
        library: CoreLibrary,
        scenario: Scenario,
        servers: Sequence[SimulatedServer],
        devices: Devices,
    ) -> None:
        self._library = library
        self._devices = devices
        # Memory that is not written to costs nothing, but a table that grows is copied.
        first_rows = min(
            round(ROUNDS_PER_S * scenario.devices * scenario.duration_s), MOST_ROUNDS_AT_FIRST
        )
        self._tables = tables = [np.empty((len(names), 0)) for names in TABLES]
        self._handed_out: list[Floats | None] = [None] * len(TABLES)
        table = devices.table
        everyone = np.arange(scenario.devices)
        previous_s = np.zeros(scenario.devices)
        sources = [kind.source for kind in table.fleet.kinds]
        works = _works(scenario, servers[0])

        def requests(number: int) -> Floats:
            """Return the requests with this number: arrival, gap, prompt, output, cursor: [5,
            devices].
            """
            nonlocal previous_s
            found, prompts, tokens, cursor = table.next_requests(
                everyone, np.full_like(everyone, number), previous_s
            )
            previous_s = found.at_s
            return np.array([found.at_s, found.gap_s, prompts, tokens, cursor], dtype=np.float64)

        def draft_s(kind: int, steps: int, missing: int, cached: int) -> float:
            times = table.draft_times[kind]
            if steps <= FIRST_WORK:
                work, context = FIRST_WORK - steps, cached
                pieces, reads = divmod(missing, 2)  # 0 stands for the work before the draft is sent
                return (
                    times.ahead_s(work, pieces, reads, context)
                    if pieces
                    else times.before_s(work, reads, context)
                )
            return (
                times.prefill_s(missing)
                if steps == PROMPT
                else times.draft_s(steps, missing, cached)
            )

        def make_room(number: int, rows: int) -> tuple[int, int]:
            """Return the new number of rows of a table that is full, or was handed out, and its
            address.
            """
            room = GROWTH * rows + FEWEST_ROWS if rows or number else first_rows + FEWEST_ROWS
            larger = _empty_table(number, room)
            larger[:, :rows] = tables[number][:, :rows]
            tables[number] = larger
            return larger.shape[1], larger.ctypes.data

        # None of these functions knows `self`: the garbage collector does not see what the core
        # holds, so that a circle through it would stay in memory with all tables.
        parts = CoreParts(
            settings=_settings(scenario, table),
            streams=table.random.streams,
            per_device=np.array(
                [*table.constants(), devices.slo, devices.typical_new], dtype=np.float64
            ),
            kinds=table.fleet.kind.astype(np.int64),
            sources=[
                (*source.tables(), place_of(source) == "context")
                for source in sources
                if isinstance(source, PositionRates | RatesByPlace | RecordedRounds)
            ],
            pieces=np.zeros(0, dtype=np.int64) if works is None else works.pieces(),
            servers=[_server_parts(scenario, server) for server in servers],
            changes=np.array(availability_changes(scenario.outages), dtype=np.float64),
            ranks=_ranks(scenario),
            draft_s=draft_s,
            requests=requests,
            check_lengths=scenario.check_lengths,
            make_room=make_room,
        )
        self._core = library.make(parts)

    def run(self, until_s: float) -> CoreFigures:
        """Run up to a moment, and leave the devices in the state of that moment."""
        rounds, responses, batches, events, servers, unanswered = self._library.run(
            self._core, until_s, *self._devices.addresses()
        )
        counts = [ServerCounts(*each) for each in servers]
        return CoreFigures(rounds, responses, batches, events, counts, unanswered)

    def tables(self, figures: CoreFigures) -> list[ColumnTable]:
        """Return the rounds, responses and batches up to the end of the last run, to which rows may
        be added.
        """
        found = []
        for index, count in enumerate((figures.rounds, figures.responses, figures.batches)):
            columns = self._tables[index]
            # The free rows of a table that was handed out before belong to that result.
            free = columns is not self._handed_out[index]
            found.append(ColumnTable(TABLES[index], columns if free else columns[:, :count], count))
        self._handed_out = list(self._tables)
        return found


def _works(scenario: Scenario, server: SimulatedServer) -> RoundDrafting | None:
    """Return how a server drafts if it does so by recorded works."""
    drafts = isinstance(server.execution, RoundDrafting) and scenario.source.works
    return cast("RoundDrafting", server.execution) if drafts else None


def _server_parts(scenario: Scenario, server: SimulatedServer) -> ServerParts:
    """Return what the core knows of a server."""
    execution = cast("SummedExecution", server.execution)
    works = _works(scenario, server)
    is_pool = scenario.has_pool

    def batch_s(
        now_s: float,
        counts: Counts,
        forwards: Sequence[tuple[int, Counts]] | None,
        alone: Sequence[AlonePiece],
        answers: int,
    ) -> tuple[float, float]:
        """Return how long a batch takes that starts now and ends with so many answers, and from
        when on the next one may start.

        In a pool it is how long the transfers between the server's stages take instead.
        """
        sums = BatchSums(*counts)
        size = sums.requests
        drafted = (
            None
            if forwards is None
            else [(model, BatchSums(*forward)) for model, forward in forwards]
        )
        if works is not None and drafted is not None:
            isolated_s = works.seconds_of_works(sums, alone, drafted)
        else:
            isolated_s = execution.seconds(
                sums, None if drafted is None else [forward for _, forward in drafted]
            )
        seconds = server.overhead.verification_s(isolated_s, size, now_s)
        if is_pool:
            return seconds, server.transfers_s(sums.linear, seconds, isolated_s)
        return seconds, ended(now_s + seconds, answers)

    def ended(ended_s: float, answers: int) -> float:
        """Note the end of a batch; return from when on the processor can start the next one."""
        server.overhead.verification_ended(ended_s, answers)
        return server.overhead.free_s

    def restarted(now_s: float) -> float:
        """Note that the server stops or comes back; return from when on it can start a batch."""
        server.overhead.restart(now_s)
        return server.overhead.free_s

    return ServerParts(
        settings=ServerSettings(
            admits=server.admits,
            lru=server.capacity.lru,
            additive=server.estimator.additive,
            max_requests=server.limits.requests,
            stages=server.stages,
            longest_draft=execution.longest if isinstance(execution, RoundDrafting) else 0,
            kv_tokens=server.limits.kv_tokens,
            kv_capacity=server.capacity.tokens,
            idle_s=server.estimator.idle_s,
        ),
        isolated_s=lambda new, cached, *_: server.estimator.isolated_s(new, cached),
        batch_s=batch_s,
        estimated_s=lambda *counts: server.estimator.of_sums(BatchSums(*counts)),
        ended=ended,
        restarted=restarted,
    )


def _ranks(scenario: Scenario) -> Integers:
    """Return the order in which each device prefers servers, by its hash; empty where that does not
    count.
    """
    if type(scenario.make_router()) is not SessionAffinity:
        return np.zeros(0, dtype=np.int64)
    servers = range(len(scenario.pool))
    weights = [[weight(client, server) for server in servers] for client in range(scenario.devices)]
    ordered = [sorted(each, reverse=True) for each in weights]
    return np.array(
        [[order.index(own) for own in each] for each, order in zip(weights, ordered, strict=True)],
        dtype=np.int64,
    )


def _settings(scenario: Scenario, table: RoundTable) -> Settings:
    scheduler, router = scenario.make_scheduler(), scenario.make_router()
    options = [getattr(scheduler, field.name) for field in fields(scheduler)]
    return Settings(
        devices=scenario.devices,
        on_edge=scenario.system.drafting == "edge",
        speculates=scenario.system.drafting != "none",
        keeps_kv=scenario.system.prefix_cache,
        scheduler=SCHEDULERS.index(type(scheduler)),
        has_jitter=table.fleet.has_jitter,
        token_bytes=TOKEN_BYTES,
        drafts=scenario.system.drafting == "server",
        mixes_prompts=scheduler.mixes_prompts,
        row_fields=len(RoundRows.FIELDS),
        is_pool=scenario.has_pool,
        router=ROUTERS.index(type(router)) if type(router) in ROUTERS else 0,
        routes_rounds=router.per_round,
        longest_response=scenario.longest_response,
        options=tuple(
            DEADLINE_NUMBERS[option] if isinstance(option, str) else float(option)
            for option in options
        ),
    )


def _drafts_blocks(source: RoundSource) -> bool:
    return source.costs.tokens_per_forward > 1 and not source.works


def native_core(
    scenario: Scenario, servers: Sequence[SimulatedServer], devices: Devices
) -> NativeCore | None:
    """Return the compiled loop of a scenario, or None if it does not know all of it or was not
    compiled.
    """
    library = load_core()
    known = (
        (len(servers) == 1 or type(scenario.make_router()) in ROUTERS)
        and type(servers[0].scheduler) in SCHEDULERS
        and isinstance(servers[0].execution, VerificationOnly | RoundDrafting)
        and not scenario.network.delays_messages
        and not scenario.estimator.noise
        and not devices.table.fleet.has_loss
        and all(
            type(kind.source) in (PositionRates, RatesByPlace, RecordedRounds)
            for kind in scenario.kinds
        )
        # What a server drafts in blocks is not known there.
        and not (scenario.system.drafting == "server" and _drafts_blocks(scenario.source))
    )
    return (
        NativeCore(library, scenario, servers, devices) if library is not None and known else None
    )

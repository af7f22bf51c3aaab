"""`skit ab`: from two servers to a folder with a report."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import torch
from msgspec import to_builtins

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.live.streams.client import Patience, StreamClient
from specbench_kit.live.streams.http import api_key
from specbench_kit.live.streams.received import TokenCounter
from specbench_kit.metrics.ab.answers import ServerDescription
from specbench_kit.metrics.ab.comparison import Plan, saturation, summarise
from specbench_kit.metrics.ab.figures import Targets
from specbench_kit.metrics.ab.outputs import FEWEST_PAIRS
from specbench_kit.metrics.statistics import FEWEST_UNITS
from specbench_kit.runs import lock, provenance
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import Watch
from specbench_kit.runs.resumption import require_same_environment, resumption_entry
from specbench_kit.studies.ab.drive import Driver, ServerLostError, requests_of
from specbench_kit.studies.ab.settings import AbSettings, Load
from specbench_kit.studies.ab.store import AbOutcome, AnswerStore, conclude

BUSY_SHARE = 0.7
"""Share of a turn's time in which the client kept a processor busy from which it may have slowed the streams down."""
ORDER = "ABBA: turn by turn, first server first in one and second server first in the next, and so in every repeat"


def compare_servers(
    settings: AbSettings, dataset: LoadedDataset, progress: ProgressCallback, say: Callable[[str], None]
) -> AbOutcome:
    """Measure both servers, and write a run directory with a report."""
    return asyncio.run(_compare(settings, dataset, progress, say))


async def _compare(
    settings: AbSettings, dataset: LoadedDataset, progress: ProgressCallback, say: Callable[[str], None]
) -> AbOutcome:
    loads = settings.loads(len(dataset.prompts))
    for line in [*_doubts(loads, len(dataset.prompts)), *_sampling_doubts(settings, len(dataset.prompts))]:
        say(line)
    count_tokens = _token_counter(settings.tokenizer)
    async with AsyncExitStack() as stack:
        clients = []
        for address in settings.addresses:
            client = StreamClient(
                address, api_key(address.name), Patience(settings.timeout_s, settings.retries), settings.server_ca
            )
            stack.push_async_callback(client.close)
            _require_options(settings, client)
            clients.append(client)
        servers = [await _describe(client) for client in clients]
        driver = Driver(settings, clients, dataset.prompts, count_tokens)
        await driver.probe()
        environment = provenance.collect(settings.argv)
        store = _open_store(settings, dataset, servers, environment)
        plan = _plan(settings, loads, requests_of(dataset.prompts))
        watch = Watch(probe_here(), torch.device("cpu"))
        problem = None
        lock.acquire(store.folder)
        try:
            taken: list[Load] = []
            await driver.run(store, _sweep(settings, plan, loads, store, taken), progress)
            if not driver.ended_early:
                plan = _plan(settings, taken, requests_of(dataset.prompts), left_out=loads[len(taken) :])
        except ServerLostError as error:
            problem = SkitError(f"{error}; {_kept(store, plan)}")
        except asyncio.CancelledError:  # Ctrl-C
            problem = SkitError(f"interrupted; {_kept(store, plan)}")
        finally:
            lock.release(store.folder)
        store.amend(machine=[*(store.run.get("machine") or ()), watch.end({})])
        summary = summarise(plan, list(store.records.values()), list(store.changes.values()), _cautions(driver))
        return conclude(store, summary, problem)


def _doubts(loads: Sequence[Load], prompts: int) -> list[str]:
    """Return a line for every load of too few turns for a verdict."""
    lines = []
    for load in loads:
        turns = -(-prompts // load.turn)
        if turns < FEWEST_UNITS:
            lines.append(
                f"{load.label}: {prompts} prompts make {turns} turns of {load.turn}, and fewer than {FEWEST_UNITS} "
                f"show no difference: give {load.turn * FEWEST_UNITS} prompts or more with --limit, or a smaller --turn"
            )
    return lines


def _sampling_doubts(settings: AbSettings, prompts: int) -> list[str]:
    """Return a line if sampled outputs are too few to compare their distributions."""
    if not settings.temperature or (settings.repeats > 1 and prompts * settings.repeats >= FEWEST_PAIRS):
        return []
    needed = max(2, -(-FEWEST_PAIRS // prompts))
    return [
        f"{prompts} prompts with --repeats {settings.repeats} are too few samples to compare the distributions of "
        f"outputs: give --repeats {needed} or more, or more prompts, 2 of each and {FEWEST_PAIRS} in all"
    ]


def _cautions(driver: Driver) -> list[str]:
    if driver.busy_share < BUSY_SHARE:
        return []
    return [
        f"BUSY CLIENT: this process kept a processor busy for {driver.busy_share:.0%} of a turn, so that its own "
        "speed may limit what it measured: run it on another machine than the servers, or with less in flight."
    ]


def _require_options(settings: AbSettings, client: StreamClient) -> None:
    require(
        client.dialect.may_ignore_eos or not settings.ignore_eos,
        f"--ignore-eos: {client.address.name} is of the kind {client.address.dialect}, which cannot be told to go on "
        "after the end; leave it out",
    )


async def _describe(client: StreamClient) -> ServerDescription:
    facts = await client.facts()
    address = client.address
    client.dialect.model = address.model or facts.model or ""
    return ServerDescription(
        address.name, address.base, address.dialect, client.dialect.model or None, facts.context, facts.version
    )


def _token_counter(tokenizer: str | None) -> TokenCounter | None:
    if tokenizer is None:
        return None
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise SkitError(f"--tokenizer {tokenizer} cannot be loaded: {str(error).splitlines()[0]}") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False))


def _open_store(
    settings: AbSettings, dataset: LoadedDataset, servers: Sequence[ServerDescription], environment: JsonObject
) -> AnswerStore:
    """Make the folder of a new run, or open the one that is resumed."""
    described = [to_builtins(server) for server in servers]
    config = settings.described()
    identity = {
        "servers": [[server.name, server.address, server.dialect] for server in servers],
        "dataset": dataset.digest,
        "config": {name: config[name] for name in config if name not in ("timeout_s", "retries", "minutes")},
    }
    if not settings.resume:
        run = {
            "command": "ab",
            "time_kind": "measured",
            "dataset": dataset.describe(),
            "requests": requests_of(dataset.prompts),
            "servers": described,
            "order": ORDER,
            "config": config,
            **environment,
        }
        return AnswerStore.create(settings.out, settings.names, dataset.name, run, identity)
    store = AnswerStore.resume(settings.out, settings.names, identity)
    earlier = store.run
    if not settings.force:
        require_same_environment(store.folder.name, earlier, environment)
        for before, now in zip(earlier["servers"], described, strict=True):
            require(
                before == now, f"{now['name']} is another server than before ({before} then): --force mixes the two"
            )
    entry = resumption_entry(environment, len(store.records))
    store.amend(resumptions=[*(earlier.get("resumptions") or ()), entry])
    return store


def _sweep(
    settings: AbSettings, plan: Plan, loads: Sequence[Load], store: AnswerStore, taken: list[Load]
) -> Iterator[Load]:
    """Yield and collect the loads to run: with --until-saturated, up to the first at which no server keeps up."""
    for load in loads:
        taken.append(load)
        yield load
        if settings.until_saturated:
            found = saturation(plan, list(store.records.values()))
            if all(load.label in found[name] for name in plan.names):
                return


def _plan(settings: AbSettings, loads: Sequence[Load], requests: int, left_out: Sequence[Load] = ()) -> Plan:
    labels = [load.label for load in loads]
    return Plan(
        settings.names,
        labels,
        planned=2 * requests * settings.repeats * len(loads),
        open_loads=[load.label for load in loads if load.rate is not None],
        sampled=settings.temperature > 0,
        targets=Targets(settings.ttft_slo, settings.tpot_slo),
        concurrencies={load.label: load.concurrency for load in loads if load.concurrency is not None},
        left_out=[load.label for load in left_out],
    )


def _kept(store: AnswerStore, plan: Plan) -> str:
    return (
        f"{len(store.records)} of {plan.planned} requests are kept in {store.folder}, and --resume goes on with the "
        "others"
    )

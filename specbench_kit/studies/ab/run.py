"""`skit ab`: from two servers to a folder with a report."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from urllib.parse import urlsplit

import torch
from msgspec import structs, to_builtins

from specbench_kit.core.errors import Interrupted, SkitError, require
from specbench_kit.core.plain_text import last_part
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import Written, stated
from specbench_kit.datasets.base import LoadedDataset, Prompt
from specbench_kit.datasets.tool_messages import plain_messages, with_texts_of_arguments
from specbench_kit.decoding.clock import monotonic_s, read_processor_time
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.time_limit import TimeLimit
from specbench_kit.live.engines.answers import (
    AnswerKey,
    AnswerRecord,
    CounterChange,
    DraftCounts,
    ServerDescription,
)
from specbench_kit.live.engines.base import Generation, dialects
from specbench_kit.live.engines.client import (
    Patience,
    RequestFailedError,
    SentRequest,
    StreamClient,
)
from specbench_kit.live.engines.counters import change, have_fallen
from specbench_kit.live.engines.http import api_key
from specbench_kit.live.engines.received import TokenCounter
from specbench_kit.metrics.statistics import FEWEST_UNITS, units_for_a_verdict
from specbench_kit.models.catalogue import from_pretrained, locate_tokenizer
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.line_file import unlock
from specbench_kit.runs.machine.limits import MachineReadings, read_machine
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import Watch
from specbench_kit.runs.provenance import Provenance
from specbench_kit.runs.resumption import require_same_environment, resumption_entry
from specbench_kit.studies.ab.comparison import Plan, saturation, summarise
from specbench_kit.studies.ab.figures import Targets
from specbench_kit.studies.ab.outputs import FEWEST_PAIRS
from specbench_kit.studies.ab.settings import AbSettings, Load
from specbench_kit.studies.ab.store import (
    AbOutcome,
    AnswerStore,
    Turn,
    arrivals_s,
    conclude,
    request_seed,
    turns_of,
)
from specbench_kit.studies.ab.summary import BOUNDS, AbCondition
from specbench_kit.studies.ab.validity import schemas_of

STRETCH_S = 1.0
"""Seconds of turns over which the share is taken in which this process was busy."""
PROBE_TOKENS = 8
"""Most tokens of the answer by which a server shows that it understands the requests."""
HOPELESS = 8
"""Requests none of which a server has answered after which no others are sent to it."""


def requests_of(prompts: Sequence[Prompt]) -> int:
    """Return the number of requests that prompts make: one for every turn of each dialogue."""
    return sum(len(prompt.turns) for prompt in prompts)


class ServerLostError(Exception):
    """A server takes no connections any more."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one request: its answer as it arrived, or why there is none."""

    prompt: Prompt
    dialogue_turn: int
    began_s: float
    late_s: float
    sent: SentRequest | None = None
    failure: RequestFailedError | None = None


@dataclass
class Driver:
    """Puts prompts to two servers."""

    settings: AbSettings
    clients: Sequence[StreamClient]
    prompts: Sequence[Prompt]
    count_tokens: TokenCounter | None = None
    schemas: Mapping[str, str] = field(default_factory=dict)
    """The JSON schemas by which answers are judged, by the ids of their prompts."""
    began_s: float = field(default_factory=monotonic_s)
    """The origin of the times of its records."""
    busy_share: float = 0.0
    """Largest share of the time in which this process kept a processor busy, over turns of
    `STRETCH_S` together.
    """
    ended_early: bool = False
    """Whether --minutes were over before the last turn."""
    _stretch_s: tuple[float, float] = (0.0, 0.0)
    """Seconds of this process, and of the clock, in turns since the last share was taken."""
    _labels: int = 0

    async def probe(self) -> None:
        """Put one short request to each server; raise SkitError if one does not answer it."""
        prompt = self.prompts[0]
        generation = self._generation(self.clients[0], prompt, (), PROBE_TOKENS)
        _require_fields(self.settings, self.clients, generation)
        for client in self.clients:
            try:
                await client.ask(self._generation(client, prompt, (), PROBE_TOKENS))
            except RequestFailedError as failure:
                raise SkitError(await explain_failure(client, failure)) from failure

    async def run(
        self, store: AnswerStore, loads: Iterable[Load], progress: Callable[[str, int, int], None]
    ) -> None:
        """Run all turns that the store does not hold yet, or as many as --minutes allow, but at
        least one.

        Raise ServerLostError if a server goes away.
        """
        limit = TimeLimit(self.settings.minutes)
        has_begun = False
        limit.start()
        # The times of a resumed run go on after those that it holds.
        self.began_s -= max((record.ended_s for record in store.records.values()), default=0.0)
        for load in loads:
            turns = list(turns_of(load, self.prompts, self.settings.repeats))
            missing = [turn for turn in turns if not store.has_turn(turn)]
            if not missing:
                continue
            for number, turn in enumerate(missing):
                if has_begun and limit.is_over:
                    self.ended_early = True
                    return
                if number == 0:
                    await self._warm_up(load)
                progress(load.label, len(turns) - len(missing) + number, len(turns))
                for server in turn.order:
                    await self._take_turn(turn, self.clients[server], store)
                has_begun = True
            progress(load.label, len(turns), len(turns))

    async def _warm_up(self, load: Load) -> None:
        count = self.settings.warm_up
        # As many at once as under the load, so that connections and batches of that size exist when
        # it begins.
        prompts = [self.prompts[-1 - number % len(self.prompts)] for number in range(count)]
        prompts = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
        for client in self.clients:
            outcomes = await self._ask_all(
                client, prompts, load.concurrency or count, [0.0] * count
            )
            for outcome in outcomes:
                if outcome.failure is not None:
                    explained = await explain_failure(client, outcome.failure)
                    raise ServerLostError(f"a request fails while the servers warm up: {explained}")

    async def _take_turn(self, turn: Turn, client: StreamClient, store: AnswerStore) -> None:
        counted = await client.counters()
        before = read_processor_time()
        outcomes = await self._ask_all(
            client,
            turn.prompts,
            turn.load.concurrency or len(turn.prompts),
            arrivals_s(turn, self.settings.seed),
            turn.repeat,
        )
        used = read_processor_time().since(before)
        self.note_busy(used.process_s, used.wall_s)
        # Tokens are counted and records written between turns, where nothing is being timed.
        lost = next(
            (o.failure for o in outcomes if o.failure is not None and o.failure.unreachable), None
        )
        for outcome in outcomes:
            if outcome.failure is None or not outcome.failure.unreachable:
                store.append(self._record(turn, client.address.name, outcome))
        if lost is not None:
            raise ServerLostError(
                f"{client.address.name} ({client.address.base}) cannot be reached any more, in {lost.attempts} "
                f"attempts: {lost}"
            )
        await self._require_answers(client, store)
        after = await client.counters() if counted else {}
        moved = change(counted, after)
        fell = have_fallen(counted, after)
        if moved is not None or fell:
            counts = moved or DraftCounts()
            store.append_counters(
                CounterChange(
                    turn.load.label, client.address.name, turn.repeat, turn.number, counts, fell
                )
            )

    async def _require_answers(self, client: StreamClient, store: AnswerStore) -> None:
        """Raise ServerLostError if a server has answered none of `HOPELESS` requests or more."""
        records = [
            record for record in store.records.values() if record.key.server == client.address.name
        ]
        if len(records) >= HOPELESS and all(record.answer is None for record in records):
            name, base = client.address.name, client.address.base
            raise ServerLostError(
                f"{name} ({base}) answered none of {len(records)} requests: {records[-1].error}"
            )

    def note_busy(self, process_s: float, wall_s: float) -> None:
        """Count how busy this process was; short turns are counted together, since the share of one
        says nothing.
        """
        process_s = self._stretch_s[0] + process_s
        wall_s = self._stretch_s[1] + wall_s
        self._stretch_s = process_s, wall_s
        if wall_s >= STRETCH_S:
            self.busy_share = max(self.busy_share, process_s / wall_s)
            self._stretch_s = (0.0, 0.0)

    async def _ask_all(
        self,
        client: StreamClient,
        prompts: Sequence[Prompt],
        at_once: int,
        arrivals: Sequence[float],
        repeat: int = 0,
    ) -> list[_Outcome]:
        """Ask for the answers to all prompts, each at its time of arrival, and at most `at_once` at
        a time.

        The turns of a dialogue are requests one after the other, and in its place.
        """
        places = asyncio.Semaphore(max(1, at_once))
        begin_s = monotonic_s()

        async def ask(prompt: Prompt, arrival_s: float) -> list[_Outcome]:
            while (wait_s := begin_s + arrival_s - monotonic_s()) > 0:
                await asyncio.sleep(wait_s)
            late_s = monotonic_s() - begin_s - arrival_s
            async with places:
                return await self._ask_dialogue(client, prompt, late_s, repeat)

        dialogues = await asyncio.gather(*map(ask, prompts, arrivals))
        return [outcome for dialogue in dialogues for outcome in dialogue]

    async def _ask_dialogue(
        self, client: StreamClient, prompt: Prompt, late_s: float, repeat: int
    ) -> list[_Outcome]:
        """Ask for the answers to all turns; each turn after the first follows the server's own
        earlier answers.
        """
        outcomes: list[_Outcome] = []
        history: tuple[tuple[str, str], ...] = ()
        for turn, asked in enumerate(prompt.turns):
            began_s = monotonic_s()
            try:
                sent = await client.ask(
                    self._generation(client, prompt, history, self.settings.max_new_tokens, repeat)
                )
            except RequestFailedError as failure:
                outcomes.append(_Outcome(prompt, turn, began_s, late_s, failure=failure))
                words = f"not asked, as turn {turn + 1} of its dialogue has no answer"
                missing = RequestFailedError(words, (), failure.unreachable)
                later = range(turn + 1, len(prompt.turns))
                return [
                    *outcomes,
                    *(_Outcome(prompt, number, began_s, 0.0, failure=missing) for number in later),
                ]
            outcomes.append(_Outcome(prompt, turn, began_s, late_s if turn == 0 else 0.0, sent))
            history += ((asked, sent.received.reply),)
        return outcomes

    def _generation(
        self,
        client: StreamClient,
        prompt: Prompt,
        history: tuple[tuple[str, str], ...],
        max_tokens: int,
        repeat: int = 0,
    ) -> Generation:
        settings = self.settings
        turn = len(history)
        self._labels += 1
        generation = Generation(
            prompt=prompt.turns[turn],
            max_tokens=max_tokens,
            sampler=Sampler(settings.temperature, settings.top_p, settings.top_k),
            seed=request_seed(
                settings.seed, prompt.id, repeat if settings.temperature else 0, turn
            ),
            label=f"skit-ab-{self._labels}-{self.began_s}",
            ignore_eos=settings.ignore_eos,
            history=history,
            system=prompt.system,
            schema=self.schemas[prompt.id] if settings.send_constraint else "",
        )
        return _with_tools(generation, prompt, client.dialect.applies_chat_template)

    def _record(self, turn: Turn, server: str, outcome: _Outcome) -> AnswerRecord:
        key = AnswerKey(
            turn.load.label, server, outcome.prompt.id, turn.repeat, outcome.dialogue_turn
        )
        late_s = outcome.late_s if turn.load.rate is not None else 0.0
        if outcome.sent is None:
            failure = outcome.failure
            sent_s = outcome.began_s - self.began_s
            reasons = list(failure.reasons) if failure else []
            return AnswerRecord(
                key, turn.number, sent_s, None, str(failure), len(reasons) + 1, late_s, reasons
            )
        answer = outcome.sent.received.answer(self.count_tokens)
        sent_s = outcome.sent.sent_s - self.began_s
        reasons = list(outcome.sent.reasons)
        return AnswerRecord(
            key, turn.number, sent_s, answer, None, len(reasons) + 1, late_s, reasons
        )


def _with_tools(generation: Generation, prompt: Prompt, is_chat: bool) -> Generation:
    """Return the request with the tools of its conversation, if it has some: as messages of a
    recorded conversation at a chat, as texts for a server that continues one.
    """
    if not (prompt.tools or prompt.script):
        return generation
    tools = json.loads(prompt.tools) if prompt.tools else []
    messages = generation.messages
    if prompt.script:
        opening = [{"role": "system", "content": prompt.system}] if prompt.system else []
        parts = prompt.script[: len(generation.history) + 1]
        messages = [*opening, *(message for part in parts for message in json.loads(part))]
    if is_chat:
        recorded = json.dumps(with_texts_of_arguments(messages), ensure_ascii=False)
        return structs.replace(generation, recorded=recorded, tools=prompt.tools)
    plain = json.dumps(plain_messages(messages, tools), ensure_ascii=False)
    return structs.replace(generation, recorded=plain)


BUSY_SHARE = 0.7
"""Share of a turn's time in which the client kept a processor busy from which it may have slowed
the streams down.
"""
ORDER = "ABBA: turn by turn, first server first in one and second server first in the next, and so in every repeat"


def compare_servers(
    settings: AbSettings,
    dataset: LoadedDataset,
    progress: ProgressCallback,
    say: Callable[[str], None],
) -> AbOutcome:
    """Measure both servers, and write a run directory with a report."""
    require_kinds(settings)
    return asyncio.run(_compare(settings, dataset, progress, say))


async def _compare(
    settings: AbSettings,
    dataset: LoadedDataset,
    progress: ProgressCallback,
    say: Callable[[str], None],
) -> AbOutcome:
    loads = settings.loads(len(dataset.prompts))
    prompts = len(dataset.prompts)
    schemas, not_judged = schemas_of(settings.constraint, dataset.prompts)
    same = [*_same_server(settings), *not_judged]
    lines = [*same, *_doubts(settings, loads, prompts), *_sampling_doubts(settings, prompts)]
    count_tokens = _token_counter(settings.tokenizer)
    async with AsyncExitStack() as stack:
        clients = []
        for address in settings.addresses:
            client = StreamClient(
                address,
                api_key(address.name),
                Patience(settings.timeout_s, settings.retries),
                settings.server_ca,
                settings.leave_out,
            )
            stack.push_async_callback(client.close)
            clients.append(client)
        servers = [await describe_server(client) for client in clients]
        driver = Driver(settings, clients, dataset.prompts, count_tokens, schemas)
        of_prompts = _prompt_treatment(clients)
        for line in of_prompts:
            say(line)
        await driver.probe()
        for line in lines:
            say(line)
        environment = provenance.collect(settings.argv)
        store = _open_store(settings, dataset, servers, environment)
        try:
            return await _run(driver, store, loads, progress, [*same, *of_prompts])
        finally:
            unlock(store.folder)


async def explain_failure(client: StreamClient, failure: RequestFailedError) -> str:
    """Return which server failed, what it answered, and what to do."""
    advice = await client.way_out(failure)
    return (
        f"{client.address.name} ({client.address.base}): {failure}{'; ' if advice else ''}{advice}"
    )


async def _run(
    driver: Driver,
    store: AnswerStore,
    loads: Sequence[Load],
    progress: ProgressCallback,
    of_servers: Sequence[str],
) -> AbOutcome:
    """Ask for all answers that the store lacks, and conclude the run with what there is.

    `of_servers` are cautions about the servers that were known before.
    """
    settings = driver.settings
    plan = _plan(settings, loads, driver)
    watch = Watch(probe_here(), torch.device("cpu"))
    problem = None
    try:
        taken: list[Load] = []
        await driver.run(store, _sweep(settings, plan, loads, store, taken), progress)
        if not driver.ended_early:
            left_out = loads[len(taken) :]
            plan = _plan(settings, taken, driver, left_out)
    except ServerLostError as error:
        if not store.has_answers:
            store.discard()
            raise SkitError(f"{error}; nothing is kept, since no request was answered") from error
        problem = SkitError(f"{error}; {_kept(store, plan)}")
    except asyncio.CancelledError:  # Ctrl-C
        problem = Interrupted(f"interrupted; {_kept(store, plan)}")
    machine = [*(store.run.get("machine") or ()), watch.end({})]
    store.amend(machine=machine)
    cautions = [*of_servers, *_cautions(driver), *busy_at_start(read_machine(machine))]
    summary = summarise(plan, list(store.records.values()), list(store.changes.values()), cautions)
    return conclude(store, summary, problem)


def _doubts(settings: AbSettings, loads: Sequence[Load], prompts: int) -> list[str]:
    """Return a line for every load of too few turns for a verdict; raise SkitError if a condition
    needs an interval.
    """
    figures = sum(load.figures for load in loads)
    enough = units_for_a_verdict(figures)
    of_interval = next(
        (text for text in settings.fail_if if AbCondition.parse(text).detail in BOUNDS), None
    )
    lines = []
    for load in loads:
        turns = -(-prompts // load.turn)
        if turns >= enough:
            continue
        few = f"{load.label}: {prompts} prompts make {turns} turns of {load.turn}"
        advice = f"give {load.turn * enough} prompts or more with --limit"
        advice += ", or a smaller --turn" if load.turn > 1 else ""
        require(
            of_interval is None, f"--fail-if '{of_interval}' asks for an interval; {few}: {advice}"
        )
        if turns < FEWEST_UNITS:
            lines.append(f"{few}, which can show no difference: {advice}")
        else:
            lines.append(
                f"{few}, which may be too few to tell, as {figures} figures hold together: {advice}"
            )
    return lines


def _sampling_doubts(settings: AbSettings, prompts: int) -> list[str]:
    """Return a line if sampled outputs are too few to compare their distributions."""
    if not settings.temperature or (
        settings.repeats > 1 and prompts * settings.repeats >= FEWEST_PAIRS
    ):
        return []
    needed = max(2, -(-FEWEST_PAIRS // prompts))
    return [
        f"{prompts} prompts with --repeats {settings.repeats} are too few samples to compare the distributions of "
        f"outputs: give --repeats {needed} or more, or more prompts, 2 of each and {FEWEST_PAIRS} in all"
    ]


def _same_server(settings: AbSettings) -> list[str]:
    """Return a line if both names lead to one address."""
    places = []
    for address in settings.addresses:
        parts = urlsplit(address.base)
        try:
            found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
            places.append(
                {
                    (entry[4][0], entry[4][1], parts.path.rstrip("/"), address.model)
                    for entry in found
                }
            )
        except OSError:  # what cannot be resolved here has been reached by a proxy
            places.append({(address.base, 0, "", address.model)})
    first, second = settings.names
    if not places[0] & places[1]:
        return []
    return [
        f"ONE SERVER: {first} and {second} lead to the same address, so that a server is compared with itself."
    ]


def _prompt_treatment(clients: Sequence[StreamClient]) -> list[str]:
    """Return a line if one server applies the chat template to a prompt and the other does not."""
    treated = [
        f"{client.address.name} ({client.address.dialect}) "
        + (
            "answers it in the model's chat template"
            if client.dialect.applies_chat_template
            else "continues its text"
        )
        for client in clients
    ]
    if len({client.dialect.applies_chat_template for client in clients}) == 1:
        return []
    return [
        f"PROMPTS DIFFER: outputs will differ, since the servers treat a prompt differently: {' and '.join(treated)}. "
        "Give both a kind that treats it in the same way."
    ]


def _cautions(driver: Driver) -> list[str]:
    lines = []
    if driver.settings.leave_out:
        lines.append(
            f"FIELDS LEFT OUT: no request states {', '.join(driver.settings.leave_out)}, so that each server's own "
            "default holds, and these may differ."
        )
    for client in driver.clients:
        lines += [
            f"{client.address.name} refuses {name}, and got {newer} in its place."
            for name, newer in client.newer_names.items()
        ]
    if driver.busy_share >= BUSY_SHARE:
        lines.append(
            f"BUSY CLIENT: this process kept a processor busy for {driver.busy_share:.0%} of a turn, so that its own "
            "speed may limit what it measured: run it on another machine than the servers, or with less in flight."
        )
    return lines


def busy_at_start(readings: Sequence[MachineReadings]) -> list[str]:
    """Return a line if other programs wanted more processors than there are when a part of the run
    began.
    """
    busy = [
        (start, sample.cpus)
        for sample in readings
        for start in (sample.load or ())[:1]
        if start is not None and sample.cpus is not None and start > sample.cpus
    ]
    if not busy:
        return []
    load, cpus = max(busy)
    return [
        f"BUSY MACHINE: the load average was {load:.1f} on {cpus} processors when this began, so that other programs "
        "ran beside it. Requests alternate, so that both servers met them alike: ratios hold, and times would be "
        "shorter on a quiet machine."
    ]


def require_kinds(settings: AbSettings) -> None:
    """Raise SkitError if a server is of an unknown kind, or of one that cannot do what an option
    asks for.
    """
    for address in settings.addresses:
        require(
            dialects.get(address.dialect).may_ignore_eos or not settings.ignore_eos,
            f"--ignore-eos: {address.name} is of the kind {address.dialect}, which cannot be told to go on after the "
            "end; leave it out",
        )
        require(
            dialects.get(address.dialect).takes_schema or not settings.send_constraint,
            f"--send-constraint: {address.name} is of the kind {address.dialect}, whose requests state no schema; give "
            "another kind, or leave it out",
        )


def _require_fields(
    settings: AbSettings, clients: Sequence[StreamClient], generation: Generation
) -> None:
    """Raise SkitError for a field of --leave-out that no request has, and for an option that only
    such fields state.
    """
    if not settings.leave_out:
        return
    left_out = " --leave-out ".join(("", *settings.leave_out)).strip()
    known = dict.fromkeys(name for client in clients for name in client.fields(generation))
    for name in settings.leave_out:
        can = f"{', '.join(known)} can be left out"
        require(
            name in known, f"--leave-out {name}: requests have no such field, or need it; {can}"
        )
    sampler = generation.sampler
    others = {
        "max_new_tokens": structs.replace(generation, max_tokens=generation.max_tokens + 1),
        "ignore_eos": structs.replace(generation, ignore_eos=not generation.ignore_eos),
        "seed": structs.replace(generation, seed=generation.seed + 1),
        "temperature": structs.replace(
            generation, sampler=replace(sampler, temperature=sampler.temperature + 1)
        ),
        "top_p": structs.replace(generation, sampler=replace(sampler, top_p=sampler.top_p / 2)),
        "top_k": structs.replace(generation, sampler=replace(sampler, top_k=sampler.top_k + 1)),
        "send_constraint": structs.replace(generation, schema=""),
    }
    defaults = {field.name: field.default for field in fields(AbSettings)}
    for name, other in others.items():
        is_stated = any(client.body(generation) != client.body(other) for client in clients)
        flag = f"--{name.replace('_', '-')}"
        require(
            is_stated or getattr(settings, name) == defaults[name],
            f"{flag} has no effect with {left_out}: no request states it; leave out one of them",
        )


async def describe_server(client: StreamClient) -> ServerDescription:
    """Return what a server says of itself, and let requests ask for its model.

    A server that names its model by a file's path is asked for that name, and described by the last
    part of it: a result tells nothing of the machine's folders.
    """
    facts = await client.facts()
    address = client.address
    client.dialect.model_name = address.model or facts.model or ""
    client.dialect.version = facts.version or ""
    return ServerDescription(
        address.name,
        address.base,
        address.dialect,
        last_part(client.dialect.model_name) or None,
        facts.context,
        facts.version,
    )


def _token_counter(tokenizer: str | None) -> TokenCounter | None:
    if tokenizer is None:
        return None
    from transformers import AutoTokenizer

    try:
        loaded = from_pretrained(AutoTokenizer, locate_tokenizer(tokenizer))
    except SkitError as error:
        raise SkitError(f"--tokenizer {tokenizer} cannot be loaded: {error}") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False))


def _open_store(
    settings: AbSettings,
    dataset: LoadedDataset,
    servers: Sequence[ServerDescription],
    environment: Provenance,
) -> AnswerStore:
    """Make the folder of a new run, or open the one that is resumed."""
    described = [to_builtins(server) for server in servers]
    config = settings.described()
    identity = {
        "servers": [[server.name, server.address, server.dialect] for server in servers],
        "dataset": dataset.digest,
        "config": {
            name: config[name] for name in config if name not in ("timeout_s", "retries", "minutes")
        },
    }
    if not settings.resume:
        run: RunFields = {
            "command": "ab",
            "time_kind": "measured",
            "dataset": stated(dataset.describe()),
            "requests": requests_of(dataset.prompts),
            "servers": described,
            "order": ORDER,
            "config": config,
        }
        return AnswerStore.create(
            settings.out, settings.names, dataset.name, {**run, **environment}, identity
        )
    store = AnswerStore.resume(settings.out, settings.names, identity)
    earlier = store.run
    try:
        if not settings.force:
            _require_same(store, described, environment)
        entry = resumption_entry(environment, len(store.records))
        store.amend(resumptions=[*(earlier.get("resumptions") or ()), entry])
    except SkitError:
        unlock(store.folder)
        raise
    return store


def _require_same(store: AnswerStore, servers: Sequence[Written], environment: Provenance) -> None:
    """Raise SkitError if a run was begun in another environment, or with other servers."""
    require_same_environment(store.folder.name, store.run, environment)
    for before, now in zip(store.run["servers"], servers, strict=True):
        require(
            before == now,
            f"{now['name']} is another server than before ({before} then): --force mixes the two",
        )


def _sweep(
    settings: AbSettings, plan: Plan, loads: Sequence[Load], store: AnswerStore, taken: list[Load]
) -> Iterator[Load]:
    """Yield and collect the loads to run: with --until-saturated, up to the first at which no
    server keeps up.
    """
    for load in loads:
        taken.append(load)
        yield load
        if settings.until_saturated:
            found = saturation(plan, list(store.records.values()))
            if all(load.label in found[name] for name in plan.names):
                return


def _plan(
    settings: AbSettings,
    loads: Sequence[Load],
    driver: Driver,
    left_out: Sequence[Load] = (),
) -> Plan:
    labels = [load.label for load in loads]
    return Plan(
        settings.names,
        labels,
        planned=2 * requests_of(driver.prompts) * settings.repeats * len(loads),
        open_loads=[load.label for load in loads if load.rate is not None],
        sampled=settings.temperature > 0,
        targets=Targets(settings.ttft_slo, settings.tpot_slo),
        schemas=driver.schemas,
        tools={prompt.id: prompt.tools for prompt in driver.prompts if prompt.tools},
        concurrencies={
            load.label: load.concurrency for load in loads if load.concurrency is not None
        },
        left_out=[load.label for load in left_out],
    )


def _kept(store: AnswerStore, plan: Plan) -> str:
    return (
        f"{len(store.records)} of {plan.planned} requests are kept in {store.folder}, and --resume goes on with the "
        "others"
    )

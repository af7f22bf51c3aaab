"""Put the requests to both servers, turn by turn."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import Prompt
from specbench_kit.decoding.clock import monotonic_s, read_processor_time
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.time_limit import TimeLimit
from specbench_kit.live.streams.base import Generation
from specbench_kit.live.streams.client import RequestFailedError, SentRequest, StreamClient
from specbench_kit.live.streams.received import TokenCounter, change, have_fallen, read_counters
from specbench_kit.metrics.ab.answers import AnswerKey, AnswerRecord, CounterChange, DraftCounts
from specbench_kit.studies.ab.settings import AbSettings, Load
from specbench_kit.studies.ab.store import AnswerStore, Turn, arrivals_s, request_seed, turns_of

STRETCH_S = 1.0
"""Seconds of turns over which the share is taken in which this process was busy."""
PROBE_TOKENS = 8
"""Most tokens of the answer by which a server shows that it understands the requests."""


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
    began_s: float = field(default_factory=monotonic_s)
    """The origin of the times of its records."""
    busy_share: float = 0.0
    """Largest share of the time in which this process kept a processor busy, over turns of `STRETCH_S` together."""
    ended_early: bool = False
    """Whether --minutes were over before the last turn."""
    _stretch_s: tuple[float, float] = (0.0, 0.0)
    """Seconds of this process, and of the clock, in turns since the last share was taken."""
    _labels: int = 0

    async def probe(self) -> None:
        """Put one short request to each server; raise SkitError if one does not answer it."""
        for client in self.clients:
            try:
                await client.ask(self._generation(self.prompts[0], (), PROBE_TOKENS))
            except RequestFailedError as failure:
                raise SkitError(f"{client.address.name} ({client.address.base}): {failure}") from failure

    async def run(self, store: AnswerStore, loads: Iterable[Load], progress: Callable[[str, int, int], None]) -> None:
        """Run all turns that the store does not hold yet, or as many as --minutes allow, but at least one.

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
        # As many at once as under the load, so that connections and batches of that size exist when it begins.
        prompts = [self.prompts[-1 - number % len(self.prompts)] for number in range(count)]
        prompts = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
        for client in self.clients:
            outcomes = await self._ask_all(client, prompts, load.concurrency or count, [0.0] * count)
            for outcome in outcomes:
                if outcome.failure is not None:
                    raise ServerLostError(f"{client.address.name} fails while it warms up: {outcome.failure}")

    async def _take_turn(self, turn: Turn, client: StreamClient, store: AnswerStore) -> None:
        counted = read_counters(await client.counters())
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
        lost = next((o.failure for o in outcomes if o.failure is not None and o.failure.unreachable), None)
        for outcome in outcomes:
            if outcome.failure is None or not outcome.failure.unreachable:
                store.append(self._record(turn, client.address.name, outcome))
        if lost is not None:
            raise ServerLostError(
                f"{client.address.name} ({client.address.base}) cannot be reached any more, in {lost.attempts} "
                f"attempts: {lost}"
            )
        after = read_counters(await client.counters()) if counted else {}
        moved = change(counted, after)
        fell = have_fallen(counted, after)
        if moved is not None or fell:
            counts = moved or DraftCounts()
            store.append_counters(
                CounterChange(turn.load.label, client.address.name, turn.repeat, turn.number, counts, fell)
            )

    def note_busy(self, process_s: float, wall_s: float) -> None:
        """Count how busy this process was; short turns are counted together, since the share of one says nothing."""
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
        """Ask for the answers to all prompts, each at its time of arrival, and at most `at_once` at a time.

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

    async def _ask_dialogue(self, client: StreamClient, prompt: Prompt, late_s: float, repeat: int) -> list[_Outcome]:
        """Ask for the answers to all turns; each turn after the first follows the server's own earlier answers."""
        outcomes: list[_Outcome] = []
        history: tuple[tuple[str, str], ...] = ()
        for turn, asked in enumerate(prompt.turns):
            began_s = monotonic_s()
            try:
                sent = await client.ask(self._generation(prompt, history, self.settings.max_new_tokens, repeat))
            except RequestFailedError as failure:
                outcomes.append(_Outcome(prompt, turn, began_s, late_s, failure=failure))
                words = f"not asked, as turn {turn + 1} of its dialogue has no answer"
                missing = RequestFailedError(words, (), failure.unreachable)
                later = range(turn + 1, len(prompt.turns))
                return [*outcomes, *(_Outcome(prompt, number, began_s, 0.0, failure=missing) for number in later)]
            outcomes.append(_Outcome(prompt, turn, began_s, late_s if turn == 0 else 0.0, sent))
            history += ((asked, sent.received.reply),)
        return outcomes

    def _generation(
        self, prompt: Prompt, history: tuple[tuple[str, str], ...], max_tokens: int, repeat: int = 0
    ) -> Generation:
        settings = self.settings
        turn = len(history)
        self._labels += 1
        return Generation(
            prompt=prompt.turns[turn],
            max_tokens=max_tokens,
            sampler=Sampler(settings.temperature, settings.top_p, settings.top_k),
            seed=request_seed(settings.seed, prompt.id, repeat if settings.temperature else 0, turn),
            label=f"skit-ab-{self._labels}-{self.began_s}",
            ignore_eos=settings.ignore_eos,
            history=history,
            system=prompt.system,
        )

    def _record(self, turn: Turn, server: str, outcome: _Outcome) -> AnswerRecord:
        key = AnswerKey(turn.load.label, server, outcome.prompt.id, turn.repeat, outcome.dialogue_turn)
        late_s = outcome.late_s if turn.load.rate is not None else 0.0
        if outcome.sent is None:
            failure = outcome.failure
            sent_s = outcome.began_s - self.began_s
            reasons = list(failure.reasons) if failure else []
            return AnswerRecord(key, turn.number, sent_s, None, str(failure), len(reasons) + 1, late_s, reasons)
        answer = outcome.sent.received.answer(self.count_tokens)
        sent_s = outcome.sent.sent_s - self.began_s
        reasons = list(outcome.sent.reasons)
        return AnswerRecord(key, turn.number, sent_s, answer, None, len(reasons) + 1, late_s, reasons)

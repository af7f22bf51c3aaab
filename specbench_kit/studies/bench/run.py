"""One benchmark: methods over a dataset, with the autoregressive baseline, into run directories."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from msgspec import structs

from specbench_kit.core.errors import MethodError, SkitError
from specbench_kit.core.progress import CountCallback, untold
from specbench_kit.datasets.base import LoadedDataset, Prompt
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.time_limit import NO_LIMIT, TimeLimit
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.runs import provenance
from specbench_kit.runs.resumption import resumption_entry
from specbench_kit.studies.bench.answering import gold_answers
from specbench_kit.studies.bench.benches import open_bench
from specbench_kit.studies.bench.beside_lanes import (
    CONTROL,
    PROMPTS,
    Control,
    MachineMonitor,
    ServerOnly,
)
from specbench_kit.studies.bench.conclusion import Conclusion, RunExports, judge_and_write
from specbench_kit.studies.bench.decided import EarlyDecision, count_looks
from specbench_kit.studies.bench.lanes import MethodLane, Progress, Sink, ends_alone, run_in_turns
from specbench_kit.studies.bench.opening import Runs, count_turns, open_runs, release_locks
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench
from specbench_kit.studies.conversations import Conversation, ConversationScript, tool_answers

WARM_UP_TOKENS = 16

StoredRecords = Mapping[tuple[str, int], RequestRecord]
"""Records by request id and repeat."""


def _by_key(records: Iterable[RequestRecord]) -> StoredRecords:
    return {record.key: record for record in records}


@dataclass(frozen=True, slots=True)
class ProcessTurn:
    """Which of a benchmark's processes this is, from 0, and whether an earlier one has noted that
    it was resumed.
    """

    number: int
    is_noted: bool = False


class Benchmark:
    """Methods over one dataset: `run` decodes what is not yet on disk, `write_results` reports on
    what is.

    Benchmarks of several datasets share one workbench; each is given the workbench and its own run
    directories.
    """

    def __init__(
        self,
        settings: BenchSettings,
        dataset: LoadedDataset,
        bench: Workbench | None = None,
        runs: Runs | None = None,
        turn: ProcessTurn | None = None,
    ) -> None:
        self.settings = settings
        self.bench = bench or open_bench(settings, [dataset])
        self.dataset = dataset if bench else self.bench.prompts.datasets[0]
        self.runs = runs or open_runs(settings, self.bench, [self.dataset])[0][0]
        self.exports = {
            spec: RunExports(run, timeline=settings.timeline, token_view=settings.token_view)
            for spec, run in self.runs.items()
        }
        self._prompts = self.dataset.prompts
        if settings.until_decided is not None:
            # Files go from task to task, and a comparison may be decided before the last one.
            self._prompts = tuple(Random(settings.seed).sample(self._prompts, len(self._prompts)))
        self._turn = turn
        self._repeats = (turn.number,) if turn else tuple(range(settings.passes))
        self._requests = count_turns(self.dataset) * settings.passes
        self._stores = {spec: self._find_stores(spec) for spec in self.bench.prepared.lanes}
        self._reused = {spec: self._reusable(spec) for spec in self._stores}
        # The clock of a resumed method continues from where it stopped.
        self._clocks_s = {}
        for spec, reused in self._reused.items():
            self._clocks_s[spec] = max(
                (record.finished_s or 0.0 for record in reused.values()), default=0.0
            )

    @property
    def planned(self) -> int:
        """Return the number of requests of all methods."""
        return self._requests * len(self._stores)

    @property
    def done(self) -> int:
        """Return the number of requests that are on disk and need not be decoded again."""
        return sum(map(len, self._reused.values()))

    @property
    def is_done(self) -> bool:
        """Return True if everything that this process has to decode is on disk."""
        size = count_turns(self.dataset)
        return all(
            len(self._finished_in(spec, repeat)) == size
            for spec in self._stores
            for repeat in self._repeats
        )

    def run(self, report: Callable[[Progress], None], limit: TimeLimit = NO_LIMIT) -> None:
        """Decode everything that is missing, the methods in turns, and all of it again for each
        repeat.

        The `limit` starts with the first request that no earlier run has decoded, so that each
        resumption gets on. A method whose policy fails ends alone, in its warm-up too, and is noted
        in the workbench's `broken`: it runs no more. Raise MethodError if those of all methods
        failed before they decoded anything.
        """
        planned = self.planned
        done = self.done
        if self.is_done or limit.is_over:
            return
        earlier = {spec: self._finished(spec) for spec in self._stores}
        if not any(earlier.values()):
            limit.start()
        self._note_resumption()
        server_only = ServerOnly(self.bench)
        self._warm_up(server_only)
        control = self._make_control()
        broken = self.bench.broken
        with self._monitored(control) as monitor:
            for repeat in self._repeats:
                if repeat != self._repeats[0] and limit.is_over:
                    break
                references: dict[str, RequestRecord] = {}
                # What a failed policy left undone holds slots of the models, so that it is not
                # begun again.
                lanes = [
                    self._make_lane(spec, repeat, references)
                    for spec in self._stores
                    if spec not in broken
                ]
                if monitor is not None:
                    monitor.track(lanes, self.bench.prepared.lanes)
                turns = [
                    turn
                    for lane in lanes
                    for turn in server_only.lanes(lane, self._script(lane.name, repeat))
                ]
                if control is not None:
                    plain = next(lane for lane in lanes if lane.name == BASELINE)
                    turns.append(control.lane(plain, self._control_script(repeat)))
                decision = self._make_decision()
                is_decided = decision.is_made if decision else lambda: False
                for lane, record in run_in_turns(
                    turns, self.settings.batch_size, limit, is_decided, broken=broken
                ):
                    if lane.name == CONTROL:
                        continue
                    if decision is not None and lane.name in self._stores:
                        decision.keep(lane.name, record)
                    if record.key not in earlier.get(lane.name, ()):
                        limit.start()
                    done += lane.name in self._stores
                    report(Progress(lane.name, done, planned, lane.tokens_per_s))
                self._clocks_s = {lane.name: lane.loop.clock.now_s() for lane in lanes}
                if decision is not None and decision.was_made:
                    self._end_decided(decision.share)
            for spec, counts in server_only.counts.items():
                if spec in self.runs:
                    self.runs[spec].amend(server_only=counts)

    def _make_decision(self) -> EarlyDecision | None:
        """Return what ends the benchmark once it is decided; None if all prompts are to be
        decoded.
        """
        share = self.settings.until_decided
        if share is None:
            return None
        for run in self.runs.values():
            run.amend(looks=count_looks(self._requests))
        bounds = [spec for spec, method in self.bench.prepared.lanes.items() if method.is_bound]
        # On modelled time no slow moment is shared: every prompt varies by itself.
        together = 1 if self.settings.deployment else self.settings.batch_size
        decision = EarlyDecision(share, self._requests, bounds, together)
        decision.resume({spec: reused.values() for spec, reused in self._reused.items()})
        return decision

    def _end_decided(self, share: float) -> None:
        """Note in every run that it is whole, although it has not decoded all prompts."""
        for run in self.runs.values():
            done = len(run.records())
            run.amend(
                decided={"share": share, "requests": done, "planned": self._requests}, requests=done
            )

    def write_results(self, progress: CountCallback = untold) -> list[Conclusion]:
        """Write the summaries and reports of every run, whole or partial; progress counts runs."""
        tokenizer = self.bench.pair.tokenizer
        for exports in self.exports.values():
            exports.write(tokenizer)
        runs = list(self.runs.values())
        if self.bench.broken:
            for run in runs:
                run.amend(left_out={**run.document.left_out, **self.bench.failures()})
        answers = gold_answers(self.bench, self.dataset)
        conclusions = judge_and_write(
            runs,
            self.bench.output_judge,
            tokenizer.decode,
            answer_judge=answers,
            tool_answers=tool_answers(self.dataset.prompts, tokenizer),
            progress=progress,
        )
        release_locks(runs)
        return conclusions

    def discard(self) -> None:
        """Remove the folders of all runs."""
        release_locks(list(self.runs.values()))
        for run in self.runs.values():
            run.remove()

    @contextmanager
    def _monitored(self, control: Control | None) -> Iterator[MachineMonitor | None]:
        """Monitor the machine if time is measured, and store the readings in every run even if
        decoding fails.
        """
        if self.settings.deployment is not None:
            yield None
            return
        monitor = MachineMonitor(self.bench.probe, self.bench.pair.target.device)
        try:
            yield monitor
        finally:
            readings = monitor.readings()
            if control is not None:
                readings.control = control.reading()
            reconnections = self.bench.reconnections
            for spec, run in self.runs.items():
                if reconnections:
                    run.amend(reconnections=reconnections)
                # A run states the readings of its own lanes, and those of the short profile that
                # its method uses.
                lanes = {
                    provenance.without_folders(name): lane
                    for name, lane in readings.lanes.items()
                    if name in (spec, BASELINE)
                }
                profiling = self.bench.measured.machine if "latencies" in run.document.uses else ()
                run.amend(
                    machine=[
                        *run.run.get("machine", []),
                        *profiling,
                        structs.replace(readings, lanes=lanes),
                    ]
                )

    def _make_control(self) -> Control | None:
        """Return the control of a measured run whose methods are compared with plain decoding; else
        None.
        """
        if not self.bench.prepared.has_control:
            return None
        plain = self.bench.prepared.lanes[BASELINE]
        return Control(lambda started_s: self.bench.loop(plain, started_s))

    def _make_lane(
        self, spec: str, repeat: int, references: dict[str, RequestRecord]
    ) -> MethodLane:
        """Return one method's lane in a repeat; the baseline fills `references`, which some methods
        read.
        """
        bench = self.bench
        method = self.bench.prepared.lanes[spec]
        sinks = [self._guard(spec, sink, stored) for sink, stored in self._stores[spec]]
        if spec == BASELINE:
            references.update(self._finished_in(spec, repeat))
            sinks.append(lambda record: references.update({record.request_id: record}))
        loop = bench.loop(method, self._clocks_s[spec])
        if spec in self.exports:
            self.exports[spec].watch(loop)
            sinks.append(self.exports[spec].keep)
        return MethodLane(
            name=spec,
            loop=loop,
            script=self._script(spec, repeat),
            decode=lambda ids: str(bench.pair.tokenizer.decode(ids, skip_special_tokens=True)),
            sinks=sinks,
            references=references if method.needs_reference else None,
            repeat=repeat,
            worker_clock=bench.worker_clock,
        )

    def _finished_in(self, spec: str, repeat: int) -> dict[str, RequestRecord]:
        return {
            name: record
            for (name, number), record in self._reused[spec].items()
            if number == repeat
        }

    def _script(self, spec: str, repeat: int) -> ConversationScript:
        """Return the requests that a method has yet to answer in a repeat."""
        return ConversationScript(
            self._conversations(self._prompts), self._finished_in(spec, repeat)
        )

    def _control_script(self, repeat: int) -> ConversationScript:
        """Return the control's requests: those of some prompts, without what an interrupted run has
        answered.
        """
        conversations = self._conversations(self._prompts[:PROMPTS])
        return ConversationScript(conversations, self._finished_in(BASELINE, repeat))

    def _conversations(self, prompts: Sequence[Prompt]) -> list[Conversation]:
        tokenizer = self.bench.pair.tokenizer
        limit = self.settings.max_new_tokens
        grammars = self.bench.prompts.grammars
        return [Conversation(prompt, tokenizer, limit, grammars.of(prompt)) for prompt in prompts]

    def _guard(self, spec: str, sink: Sink, stored: StoredRecords) -> Sink:
        """Wrap a sink so that it skips stored records, which have to equal those that are decoded
        again.
        """

        def take(record: RequestRecord) -> None:
            if record.key not in stored:
                sink(record)
            elif self._starts_over and stored[record.key] != record:
                raise SkitError(
                    f"{spec}: request '{record.request_id}' was decoded again and differs from the stored record: "
                    "start the run anew without --resume"
                )

        return take

    def _find_stores(self, spec: str) -> list[tuple[Sink, StoredRecords]]:
        """Return where a method's records are stored, each with the records from before an
        interruption.

        The baseline is stored in every run, so that each run can be read without the others.
        """
        stores = [(run.append, run.records()) for name, run in self.runs.items() if name == spec]
        if spec == BASELINE:
            stores += [
                (run.append_baseline, run.baseline_records())
                for name, run in self.runs.items()
                if name != spec
            ]
        return [(sink, _by_key(records)) for sink, records in stores]

    def _finished(self, spec: str) -> StoredRecords:
        """Return a method's records that all of its stores have from before an interruption."""
        first, *further = (stored for _, stored in self._stores[spec])
        in_all = set(first).intersection(*further)
        return {key: record for key, record in first.items() if key in in_all}

    @property
    def _starts_over(self) -> bool:
        """Return True if an interrupted lane decodes everything again.

        A modelled clock and a policy then end in the same state as without the interruption.
        """
        return self.settings.deployment is not None

    def _reusable(self, spec: str) -> StoredRecords:
        """Return a method's finished requests that need not be decoded again."""
        if not self._starts_over:
            return self._finished(spec)
        # Methods that read the baseline get their requests in the order of its answers, so they go
        # together with it.
        readers = [
            name
            for name, method in self.bench.prepared.lanes.items()
            if method.needs_reference and spec == BASELINE
        ]
        complete = all(len(self._finished(name)) == self._requests for name in (spec, *readers))
        return self._finished(spec) if complete else {}

    def _note_resumption(self) -> None:
        """Store the current conditions in every resumed run that is not complete."""
        if not self.settings.resume or (self._turn and self._turn.is_noted):
            return
        libraries = self.bench.prompts.grammars.libraries
        conditions = provenance.collect(self.settings.argv, libraries=libraries)
        for spec, run in self.runs.items():
            done = len(run.records())
            has_baseline = BASELINE in self.bench.prepared.lanes and spec != BASELINE
            plain = len(run.baseline_records()) if has_baseline else done
            # A run that had no answer yet begins anew: its clock spans nothing.
            if max(done, plain) > 0 and min(done, plain) < self._requests:
                run.amend(
                    resumptions=[
                        *(run.run.get("resumptions") or ()),
                        resumption_entry(conditions, done),
                    ]
                )

    def _warm_up(self, server_only: ServerOnly) -> None:
        """Decode a few tokens with every method outside the measurement, so that the first request
        is not slower.
        """
        if self.settings.deployment is not None:
            return
        prompt = min(self.dataset.prompts, key=lambda prompt: len(prompt.turns[0]))
        request = Conversation(
            prompt,
            self.bench.pair.tokenizer,
            WARM_UP_TOKENS,
            self.bench.prompts.grammars.of(prompt),
        ).next_request()
        assert request is not None
        broken = self.bench.broken
        for spec, method in self.bench.prepared.lanes.items():
            if spec in broken:
                continue
            rounds = 0
            try:
                with ends_alone("warm-up"):
                    server_only.warm_up(spec, request)
                    loop = self.bench.loop(method)
                    loop.submit(request)
                    while not loop.idle:
                        rounds += sum(len(record.rounds) for record in loop.step())
            except MethodError as error:
                broken[spec] = error
                continue
            if spec in self.runs:
                run = self.runs[spec]
                # One entry for each process that worked on the run, since a resumed run warms up
                # again.
                run.amend(
                    warm_up={
                        "tokens": WARM_UP_TOKENS,
                        "rounds": [*run.document.warm_up.rounds, rounds],
                    }
                )
        if broken.keys() >= self.bench.prepared.methods.keys():
            self.bench.require_whole()

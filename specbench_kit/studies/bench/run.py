"""One benchmark: methods over a dataset, beside the autoregressive baseline, into run directories."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.runs import provenance
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.resumption import resumption_entry, resumptions
from specbench_kit.studies.bench.answers import answers
from specbench_kit.studies.bench.conversations import Conversation, ConversationScript
from specbench_kit.studies.bench.lanes import BASELINE, MethodLane, Progress, Sink, run_in_turns
from specbench_kit.studies.bench.machine_monitor import MachineMonitor
from specbench_kit.studies.bench.opening import Runs, open_runs, release_locks, turns
from specbench_kit.studies.bench.outputs.conclusion import Conclusion, conclude
from specbench_kit.studies.bench.outputs.exports import RunExports
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.workbench import Workbench

WARM_UP_TOKENS = 16

Block = dict[str, Any]
Records = Mapping[tuple[str, int], RequestRecord]


class Benchmark:
    """Methods over one dataset: `run` decodes what is not yet on disk, `conclude` reports on what is.

    One of several that share a bench is given it, and its run directories.
    """

    def __init__(
        self, settings: BenchSettings, dataset: LoadedDataset, bench: Workbench | None = None, runs: Runs | None = None
    ) -> None:
        self.settings = settings
        self.bench = bench or Workbench(settings, [dataset])
        self.dataset = dataset if bench else self.bench.datasets[0]
        self.runs = runs or open_runs(settings, self.bench, [self.dataset])[0][0]
        self.exports = {
            spec: RunExports(run, timeline=settings.timeline, token_view=settings.token_view)
            for spec, run in self.runs.items()
        }
        self._places = {spec: self._find_places(spec) for spec in self.bench.lanes}
        self._kept = {spec: self._reusable(spec) for spec in self._places}
        self._clocks_s = {spec: _last_s(kept) for spec, kept in self._kept.items()}

    @property
    def planned(self) -> int:
        """Requests of all methods."""
        return self._asked * len(self._places)

    @property
    def done(self) -> int:
        """Those that are on disk from before and need not be decoded again."""
        return sum(map(len, self._kept.values()))

    def run(self, report: Callable[[Progress], None]) -> None:
        """Decode everything that is missing, the methods in turns, and all of it again for each repeat."""
        planned, done = self.planned, self.done
        if done == planned:
            return
        self._note_resumption()
        self._warm_up()
        with self._attended() as attendance:
            for repeat in range(self.settings.repeats):
                references: dict[str, RequestRecord] = {}
                lanes = [self._make_lane(spec, repeat, references) for spec in self._places]
                if attendance is not None:
                    attendance.track(lanes, self.bench.lanes)
                for lane, _ in run_in_turns(lanes, self.settings.batch_size):
                    done += 1
                    report(Progress(lane.name, done, planned, lane.tokens_per_s))
                self._clocks_s = {lane.name: lane.engine.clock.now_s() for lane in lanes}

    @contextmanager
    def _attended(self) -> Iterator[MachineMonitor | None]:
        """Watch the machine where its clock counts, and note in every run what came of its lanes, however this ends."""
        if self.settings.deployment is not None:
            yield None
            return
        attendance = MachineMonitor(self.bench.probe, self.bench.pair.target.model.device)
        try:
            yield attendance
        finally:
            block = attendance.block()
            server = self.bench.server
            for spec, run in self.runs.items():
                if server is not None and server.lost:
                    run.amend(reconnections=server.lost)
                _note_machine(run, block, (spec, BASELINE), self.bench.surroundings.machine)

    def conclude(self) -> list[Conclusion]:
        """Summaries and reports of every run, whole or partial."""
        tokenizer = self.bench.pair.tokenizer
        for exports in self.exports.values():
            exports.write(tokenizer)
        quality = answers(self.bench, self.dataset)
        conclusions = conclude(list(self.runs.values()), self.bench.evidence, tokenizer.decode, quality=quality)
        release_locks(list(self.runs.values()))
        return conclusions

    def _make_lane(self, spec: str, repeat: int, references: dict[str, RequestRecord]) -> MethodLane:
        """One method's part in a repeat; the baseline's answers are the `references` of the others."""
        bench, method = self.bench, self.bench.lanes[spec]
        finished = {name: record for (name, number), record in self._kept[spec].items() if number == repeat}
        take = _unless_equal if self._starts_over else _unless_known
        sinks = [take(spec, sink, known) for sink, known in self._places[spec]]
        if spec == BASELINE:
            references.update(finished)
            sinks.append(lambda record: references.update({record.request_id: record}))
        engine = bench.engine(method, self._clocks_s[spec])
        if spec in self.exports:
            self.exports[spec].watch(engine)
            sinks.append(self.exports[spec].keep)
        return MethodLane(
            name=spec,
            engine=engine,
            script=ConversationScript(list(self._conversations()), finished),
            decode=lambda ids: str(bench.pair.tokenizer.decode(ids, skip_special_tokens=True)),
            sinks=sinks,
            references=references if method.needs_reference else None,
            repeat=repeat,
            others=bench.others,
        )

    def _conversations(self) -> Iterator[Conversation]:
        for prompt in self.dataset.prompts:
            yield Conversation(prompt, self.bench.pair.tokenizer, self.settings.max_new_tokens)

    def _find_places(self, spec: str) -> list[tuple[Sink, Records]]:
        """Where a method's records go, and what is there from before an interruption."""
        found = [(run.append, run.records()) for name, run in self.runs.items() if name == spec]
        if spec == BASELINE:
            found += [(run.append_baseline, run.baseline_records()) for name, run in self.runs.items() if name != spec]
        return [(sink, {record.key: record for record in records}) for sink, records in found]

    def _finished(self, spec: str) -> Records:
        """A method's records that all of its places have from before."""
        first, *others = (known for _, known in self._places[spec])
        return {key: record for key, record in first.items() if all(key in known for known in others)}

    @property
    def _asked(self) -> int:
        """Requests of one method."""
        return turns(self.dataset) * self.settings.repeats

    @property
    def _starts_over(self) -> bool:
        """Whether an interrupted lane begins anew, so that modelled clock and policy end as if uninterrupted."""
        return self.settings.deployment is not None

    def _reusable(self, spec: str) -> Records:
        """A method's finished requests that need not be decoded again."""
        if not self._starts_over:
            return self._finished(spec)
        # Who reads the baseline is asked in the order of its answers, so the two go together.
        readers = [name for name, method in self.bench.lanes.items() if method.needs_reference and spec == BASELINE]
        whole = all(len(self._finished(name)) == self._asked for name in (spec, *readers))
        return self._finished(spec) if whole else {}

    def _note_resumption(self) -> None:
        """Remember under which conditions a run goes on that others were finished in."""
        if not self.settings.resume:
            return
        here = provenance.collect(self.settings.argv)
        for spec, run in self.runs.items():
            done = len(run.records())
            has_baseline = BASELINE in self.bench.lanes and spec != BASELINE
            if min(done, len(run.baseline_records()) if has_baseline else done) < self._asked:
                run.amend(resumptions=[*resumptions(run.run), resumption_entry(here, done)])

    def _warm_up(self) -> None:
        """A few tokens with every method outside the measurement, so that the first request is like any other."""
        if self.settings.deployment is not None:
            return
        prompt = min(self.dataset.prompts, key=lambda prompt: len(prompt.turns[0]))
        request = Conversation(prompt, self.bench.pair.tokenizer, WARM_UP_TOKENS).next_request()
        assert request is not None
        for spec, method in self.bench.lanes.items():
            engine, rounds = self.bench.engine(method), 0
            engine.submit(request)
            while not engine.idle:
                rounds += sum(len(record.rounds) for record in engine.step())
            if spec in self.runs:
                _note_warm_up(self.runs[spec], rounds)


def _last_s(records: Records) -> float:
    """When the clock of a resumed method stood still."""
    return max((record.finished_s or 0.0 for record in records.values()), default=0.0)


def _note_warm_up(run: RunDirectory, rounds: int) -> None:
    """State what was decoded before the measurement and is in none of its records, by each process of a run."""
    before: list[int] = run.run.get("warm_up", {}).get("rounds", [])
    run.amend(warm_up={"tokens": WARM_UP_TOKENS, "rounds": [*before, rounds]})


def _note_machine(run: RunDirectory, block: Block, specs: Sequence[str], profiling: Sequence[Block]) -> None:
    """Add how quiet the machine was while the run's own lanes decoded, or what its method goes by was timed."""
    lanes = {provenance.without_folders(name): lane for name, lane in block["lanes"].items() if name in specs}
    before = profiling if "latencies" in run.run.get("uses", {}) else ()
    run.amend(machine=[*run.run.get("machine", []), *before, {**block, "lanes": lanes}])


def _unless_known(_spec: str, sink: Sink, known: Records) -> Sink:
    """A sink that passes over what it has from before an interruption."""
    return lambda record: None if record.key in known else sink(record)


def _unless_equal(spec: str, sink: Sink, known: Records) -> Sink:
    """The same where all of it is decoded again and has to come out as it is stored."""

    def take(record: RequestRecord) -> None:
        stored = known.get(record.key)
        if stored is None:
            sink(record)
        elif stored != record:
            raise SkitError(
                f"{spec}: request '{record.request_id}' was decoded again and differs from what the run has stored: "
                "start the run anew without --resume"
            )

    return take

"""One benchmark: methods over a dataset, beside the autoregressive baseline, into run directories."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specbench_kit.bench import provenance
from specbench_kit.bench.conclusion import Conclusion, conclude
from specbench_kit.bench.conversations import Conversation, Script
from specbench_kit.bench.exports import Exports
from specbench_kit.bench.lanes import BASELINE, Lane, Progress, Sink, run_in_turns
from specbench_kit.bench.run_directory import RunDirectory, config_key, find_resumable
from specbench_kit.bench.seen import count_seen
from specbench_kit.bench.settings import Settings
from specbench_kit.bench.workbench import Workbench
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.description import describe_time
from specbench_kit.methods.base import Method

WARM_UP_TOKENS = 16

Runs = dict[str, RunDirectory]
Records = Mapping[tuple[str, int], RequestRecord]


class Benchmark:
    """Methods over one dataset: `run` decodes what is not yet on disk, `conclude` reports on what is.

    One of several that share a bench is given it, and its run directories.
    """

    def __init__(
        self, settings: Settings, dataset: LoadedDataset, bench: Workbench | None = None, runs: Runs | None = None
    ) -> None:
        self.settings = settings
        self.bench = bench or Workbench(settings, [dataset])
        self.dataset = dataset if bench else self.bench.datasets[0]
        self.runs = runs or open_runs(settings, self.bench, [self.dataset])[0]
        self.exports = {spec: Exports(run, settings) for spec, run in self.runs.items()}
        self._places = {spec: self._find_places(spec) for spec in self.bench.lanes}
        self._clocks_s = {spec: _last_s(self._finished(spec)) for spec in self._places}

    @property
    def planned(self) -> int:
        """Requests of all methods."""
        return _turns(self.dataset) * self.settings.repeats * len(self._places)

    @property
    def done(self) -> int:
        """Those that are on disk from before."""
        return sum(len(self._finished(spec)) for spec in self._places)

    def run(self, report: Callable[[Progress], None]) -> None:
        """Decode everything that is missing, the methods in turns, and all of it again for each repeat."""
        planned, done = self.planned, self.done
        if done == planned:
            return
        self._warm_up()
        for repeat in range(self.settings.repeats):
            references: dict[str, RequestRecord] = {}
            lanes = [self._make_lane(spec, repeat, references) for spec in self._places]
            for lane, _ in run_in_turns(lanes, self.settings.batch_size):
                done += 1
                report(Progress(lane.name, done, planned, lane.tokens_per_s))
            self._clocks_s = {lane.name: lane.engine.clock.now_s() for lane in lanes}

    def conclude(self) -> list[Conclusion]:
        """Summaries and reports of every run, whole or partial."""
        tokenizer = self.bench.pair.tokenizer
        for exports in self.exports.values():
            exports.write(tokenizer)
        top2 = self.bench.runners[0].top2 if self.settings.temperature == 0 else None
        return conclude(list(self.runs.values()), top2, tokenizer.decode)

    def _make_lane(self, spec: str, repeat: int, references: dict[str, RequestRecord]) -> Lane:
        """One method's part in a repeat; the baseline's answers are the `references` of the others."""
        bench, method = self.bench, self.bench.lanes[spec]
        finished = {name: record for (name, number), record in self._finished(spec).items() if number == repeat}
        sinks = [_unless_known(sink, known) for sink, known in self._places[spec]]
        if spec == BASELINE:
            references.update(finished)
            sinks.append(lambda record: references.update({record.request_id: record}))
        engine = bench.engine(method, self._clocks_s[spec])
        if spec in self.exports:
            self.exports[spec].watch(engine)
            sinks.append(self.exports[spec].keep)
        return Lane(
            name=spec,
            engine=engine,
            script=Script(list(self._conversations()), finished),
            decode=lambda ids: str(bench.pair.tokenizer.decode(ids, skip_special_tokens=True)),
            sinks=sinks,
            references=references if method.needs_reference else None,
            repeat=repeat,
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


def open_runs(settings: Settings, bench: Workbench, datasets: Sequence[LoadedDataset]) -> list[Runs]:
    """For each dataset every method's run directory: new ones, or all those that were begun together."""
    shared = [_describe(settings, bench, dataset) for dataset in datasets]
    methods = {spec: describe_method(spec, method) for spec, method in bench.methods.items()}
    described = [
        {**method, **about, **_seen(dataset, bench.methods[spec])}
        for dataset, about in zip(datasets, shared, strict=True)
        for spec, method in methods.items()
    ]
    if settings.resume:
        found = find_resumable(settings.out, [config_key(run) for run in described])
    else:
        found = [RunDirectory.create(settings.out, run) for run in described]
    count = len(bench.methods)
    return [dict(zip(bench.methods, found[at : at + count], strict=True)) for at in range(0, len(found), count)]


def describe_method(spec: str, method: Method) -> dict[str, Any]:
    """What `run.json` says of the method: its spec, less folders of this machine, and what it was made ready with."""
    uses = method.uses()
    return {"method": provenance.without_folders(spec), **({"uses": uses} if uses else {})}


def _describe(settings: Settings, bench: Workbench, dataset: LoadedDataset) -> dict[str, Any]:
    """The content of `run.json`, less the method."""
    target = bench.pair.target.model
    options = ("max_new_tokens", "batch_size", "temperature", "top_p", "top_k", "seed", "limit", "repeats")
    return {
        "dataset": dataset.describe(),
        "models": bench.models,
        "config": {
            **{name: getattr(settings, name) for name in options},
            "baseline": BASELINE in bench.lanes,
            "device": str(target.device),
            "dtype": str(target.dtype).removeprefix("torch."),
            **({"launch": settings.launch} if settings.launch != "virtual" else {}),
        },
        **describe_time(settings.deployment),
        "requests": _turns(dataset) * settings.repeats,
        "sample_reason": dataset.reason,
        **({"left_out": bench.left_out} if bench.left_out else {}),
        **provenance.collect(settings.argv),
    }


def _seen(dataset: LoadedDataset, method: Method) -> dict[str, Any]:
    count = count_seen(dataset, method)
    return {"seen_prompts": count} if count else {}


def _turns(dataset: LoadedDataset) -> int:
    """Requests of one method: each turn of a dialogue is one."""
    return sum(len(prompt.turns) for prompt in dataset.prompts)


def _last_s(records: Records) -> float:
    """When the clock of a resumed method stood still."""
    return max((record.finished_s or 0.0 for record in records.values()), default=0.0)


def _note_warm_up(run: RunDirectory, rounds: int) -> None:
    """State what was decoded before the measurement and is in none of its records, by each process of a run."""
    before: list[int] = run.run.get("warm_up", {}).get("rounds", [])
    run.amend(warm_up={"tokens": WARM_UP_TOKENS, "rounds": [*before, rounds]})


def _unless_known(sink: Sink, known: Records) -> Sink:
    """A sink that passes over what it has from before an interruption."""
    return lambda record: None if record.key in known else sink(record)

"""One benchmark: methods over a dataset, beside the autoregressive baseline, into run directories."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specbench_kit.bench import provenance
from specbench_kit.bench.conclusion import Conclusion, conclude
from specbench_kit.bench.conversations import Conversation, Script, most_tokens
from specbench_kit.bench.exports import Exports
from specbench_kit.bench.lanes import BASELINE, Lane, Progress, Sink, run_in_turns
from specbench_kit.bench.run_directory import RunDirectory, config_key, find_resumable
from specbench_kit.bench.settings import Settings
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.engine import live_engine
from specbench_kit.decoding.loop import Loop
from specbench_kit.decoding.processes.stages import ProcessStages
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.description import describe_time
from specbench_kit.deployments.environment import environment
from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.predictors.library import PairHashes

WARM_UP_TOKENS = 16


class Benchmark:
    """The work of `skit bench`: `run` decodes what is not yet on disk, `conclude` reports on what is."""

    def __init__(self, settings: Settings, dataset: LoadedDataset) -> None:
        self.settings, self.dataset = settings, dataset
        self.pair = load_pair(settings.target, settings.draft, device=settings.device, dtype=settings.dtype)
        self.models = self.pair.describe(provenance.hash_model)
        hashes = PairHashes(self.models["target"]["hash"], self.models["draft"]["hash"])
        surroundings = environment(hashes, settings.deployment, self.pair.target.model.device)
        self.methods = {spec: parse_method(spec).prepare(surroundings) for spec in settings.methods}
        needs_baseline = settings.baseline or any(method.needs_reference for method in self.methods.values())
        self.lane_methods = {BASELINE: parse_method(BASELINE)} if needs_baseline else {}
        self.lane_methods |= self.methods
        self.runs = self._open_runs()
        self.exports = {spec: Exports(run, settings) for spec, run in self.runs.items()}
        self.runners = self._make_runners()
        self.references: dict[str, RequestRecord] = {}
        self.stages = self._start_stages() if settings.launch == "processes" else None
        self.lanes = [self._make_lane(spec) for spec in self.lane_methods]

    def run(self, report: Callable[[Progress], None]) -> None:
        """Decode everything that is missing, the methods in turns."""
        try:
            self._run(report)
        finally:
            if self.stages is not None:
                self.stages.close()

    def _run(self, report: Callable[[Progress], None]) -> None:
        self._warm_up()
        planned = self.turns * len(self.lanes)
        done = sum(lane.finished_before for lane in self.lanes)
        for lane, _ in run_in_turns(self.lanes, self.settings.batch_size):
            done += 1
            report(Progress(lane.name, done, planned, lane.tokens_per_s))

    def conclude(self) -> list[Conclusion]:
        """Summaries and reports of every run, whole or partial."""
        for exports in self.exports.values():
            exports.write(self.pair.tokenizer)
        top2 = self.runners[0].top2 if self.settings.temperature == 0 else None
        return conclude(list(self.runs.values()), top2, self.pair.tokenizer.decode)

    @property
    def turns(self) -> int:
        """Requests of one method: each turn of a dialogue is one."""
        return sum(len(prompt.turns) for prompt in self.dataset.prompts)

    def _open_runs(self) -> dict[str, RunDirectory]:
        shared = self._describe()
        described = {spec: {"method": spec, **shared} for spec in self.methods}
        if self.settings.resume:
            found = find_resumable(self.settings.out, [config_key(run) for run in described.values()])
            return dict(zip(described, found, strict=True))
        return {spec: RunDirectory.create(self.settings.out, run) for spec, run in described.items()}

    def _describe(self) -> dict[str, Any]:
        """The content of `run.json`, less the method."""
        settings, target = self.settings, self.pair.target.model
        options = ("max_new_tokens", "batch_size", "temperature", "top_p", "top_k", "seed", "limit")
        return {
            "dataset": self.dataset.describe(),
            "models": self.models,
            "config": {
                **{name: getattr(settings, name) for name in options},
                "baseline": BASELINE in self.lane_methods,
                "device": str(target.device),
                "dtype": str(target.dtype).removeprefix("torch."),
                **({"launch": settings.launch} if settings.launch != "virtual" else {}),
            },
            **describe_time(settings.deployment),
            "requests": self.turns,
            "sample_reason": self.dataset.reason,
            **provenance.collect(settings.argv),
        }

    def _make_runners(self) -> tuple[Runner, Runner]:
        """Slots for the batches of all methods, and one to check losslessness in when a run ends early."""
        prompts = self.dataset.prompts
        slots = min(self.settings.batch_size, len(prompts)) * len(self.lane_methods) + 1
        longest = max(most_tokens(prompt, self.pair.tokenizer, self.settings.max_new_tokens) for prompt in prompts)
        in_flight = max((method.pipeline.nodes for method in self.methods.values() if method.pipeline), default=0)
        return self.pair.runners(slots, longest + in_flight)

    def _start_stages(self) -> ProcessStages:
        """The processes that all methods with a pipeline share, as they take turns."""
        counts = {method.pipeline.stages for method in self.methods.values() if method.pipeline}
        if len(counts) != 1:
            found = f"these have {' and '.join(map(str, sorted(counts)))}" if counts else "none of these has any"
            raise SkitError(f"--launch processes needs methods with one number of stages: {found}")
        capacity, slots = self.runners[0].capacity, self.settings.batch_size * len(self.lane_methods)
        sizes = {"slots": slots, "capacity": capacity, "vocabulary": self.pair.vocabulary}
        return ProcessStages(counts.pop(), self.pair.target, sizes)

    def _make_lane(self, spec: str) -> Lane:
        method = self.lane_methods[spec]
        sinks, finished = self._sinks(spec)
        if spec == BASELINE:
            self.references.update(finished)
            sinks.append(lambda record: self.references.update({record.request_id: record}))
        started_s = max((record.finished_s or 0.0 for record in finished.values()), default=0.0)
        engine = self._engine(method, started_s)
        if spec in self.exports:
            self.exports[spec].watch(engine)
            sinks.append(self.exports[spec].keep)
        return Lane(
            name=spec,
            engine=engine,
            script=Script(list(self._conversations()), finished),
            decode=lambda ids: str(self.pair.tokenizer.decode(ids, skip_special_tokens=True)),
            sinks=sinks,
            references=self.references if method.needs_reference else None,
            finished_before=len(finished),
        )

    def _conversations(self) -> Iterator[Conversation]:
        for prompt in self.dataset.prompts:
            yield Conversation(prompt, self.pair.tokenizer, self.settings.max_new_tokens)

    def _sinks(self, spec: str) -> tuple[list[Sink], Mapping[str, RequestRecord]]:
        """Where a lane's records go, and those that all of these places have already."""
        places = [(run.append, run.records()) for name, run in self.runs.items() if name == spec]
        if spec == BASELINE:
            places += [(run.append_baseline, run.baseline_records()) for name, run in self.runs.items() if name != spec]
        known = [{record.request_id: record for record in records} for _, records in places]
        everywhere = set.intersection(*map(set, known))
        sinks = [_unless_known(sink, ids) for (sink, _), ids in zip(places, known, strict=True)]
        return sinks, {request_id: record for request_id, record in known[0].items() if request_id in everywhere}

    def _engine(self, method: Method, started_s: float = 0.0) -> Loop:
        settings = self.settings
        return live_engine(
            method,
            *self.runners,
            sampler=Sampler(settings.temperature, settings.top_p, settings.top_k),
            seed=settings.seed,
            eos_ids=self.pair.eos_ids,
            batch_size=settings.batch_size,
            started_s=started_s,
            deployment=settings.deployment,
            stages=self.stages,
        )

    def _warm_up(self) -> None:
        """A few tokens with every method outside the measurement, so that the first request is like any other."""
        if self.settings.deployment is not None:
            return
        prompt = min(self.dataset.prompts, key=lambda prompt: len(prompt.turns[0]))
        request = Conversation(prompt, self.pair.tokenizer, WARM_UP_TOKENS).next_request()
        assert request is not None
        for method in self.lane_methods.values():
            engine = self._engine(method)
            engine.submit(request)
            while not engine.idle:
                engine.step()


def _unless_known(sink: Sink, known: Mapping[str, Any]) -> Sink:
    """A sink that passes over what it has from before an interruption."""
    return lambda record: None if record.request_id in known else sink(record)

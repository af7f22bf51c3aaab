"""One run of `skit simulate` or `skit capacity`: from settings to a folder with tables, plots and report."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench_kit.core.progress import CountCallback, ProgressCallback
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.deployments.description import describe
from specbench_kit.metrics.serving_rows import AXES
from specbench_kit.papers.comparison import compare_published
from specbench_kit.papers.experiment import Experiment
from specbench_kit.runs import provenance
from specbench_kit.runs.folder import slug, to_json, unused_folder, write_text
from specbench_kit.serving.events import timeline, write_events
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import parallel_backend
from specbench_kit.serving.result import SimulationResult
from specbench_kit.studies.recording.trace import record
from specbench_kit.studies.serving import capacity, simulation_grid
from specbench_kit.studies.serving.derived_rows import derived
from specbench_kit.studies.serving.presets.base import describe as describe_preset
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import GridPoint, ServingSeries, ServingSettings
from specbench_kit.traces.trace import TraceFile

Fields = dict[str, Any]
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ServingOutcome:
    """What a run leaves: its folder, what was run, and its numbers."""

    folder: Path
    run: Fields
    summary: Fields


@dataclass(frozen=True, slots=True)
class NamedPreset:
    """A preset by its name."""

    name: str
    preset: Experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """What both commands share. `dataset` is recorded where a series names no other acceptance."""

    settings: ServingSettings
    dataset: LoadedDataset | None = None
    chosen: NamedPreset | None = None
    report: ProgressCallback

    def simulate(self, events: bool = False, window: Window | None = None) -> ServingOutcome:
        """A grid of simulations, with event logs and timelines where they are asked for."""
        folder, builder = self._begin("simulate", {"events": events, "window": window})
        first = self.settings.seed
        shown = {series: point for point in reversed(self.settings.points()) for series in [point.series]}

        def keeps(point: GridPoint, seed: int) -> bool:
            return events or (window is not None and seed == first and shown[point.series] == point)

        def sink(point: GridPoint, seed: int, result: SimulationResult) -> None:
            if events:
                write_events(folder / "events", _file_name(point, seed, self.settings), result)
            if window is not None and seed == first and shown[point.series] == point:
                _write_timeline(folder, point, result, window)

        with parallel_backend(self.settings.backend):
            rows = simulation_grid.simulate_grid(self.settings, builder, keeps, sink, self._told("simulating"))
        return self._finish("simulate", folder, builder, simulation_grid.summarise(rows))

    def capacity(self, rule: CapacityRule) -> ServingOutcome:
        """The most devices of every series under every SLO."""
        folder, builder = self._begin("capacity", asdict(rule))
        with parallel_backend(self.settings.backend):
            rows = capacity.find_all(self.settings, rule, builder, self._told("searching"))
        return self._finish("capacity", folder, builder, capacity.summarise(rows, rule))

    def _begin(self, command: str, more: Fields) -> tuple[Path, ScenarioBuilder]:
        series = self.settings.series()
        subject = self.chosen.name if self.chosen else "-".join(dict.fromkeys(one.system for one in series))
        digest = self.dataset.digest if self.dataset else None
        defining = {**self.settings.described(), **more, "digest": digest}
        folder = unused_folder(self.settings.out, command, subject, defining)
        builder = ScenarioBuilder(self.settings)
        if self.dataset is not None:
            self._rehearse(builder, command)
            builder = ScenarioBuilder(self.settings, self._record(self.dataset, folder / "trace.parquet"))
        return folder, builder

    def _rehearse(self, builder: ScenarioBuilder, command: str) -> None:
        """What is wrong besides the recording is told before it; a capacity may be none."""
        for series in self.settings.series():
            builder.source(series)
        for point in self.settings.points() if command == "simulate" else ():
            builder.scenario(point)

    def _record(self, dataset: LoadedDataset, path: Path) -> TraceFile:
        settings = self.settings
        record(settings.recording, dataset, path, settings.max_draft, self._told("recording"))
        return TraceFile(path)

    def _told(self, step: str) -> CountCallback:
        return lambda done, planned: self.report(step, done, planned)

    def _finish(self, command: str, folder: Path, builder: ScenarioBuilder, summary: Fields) -> ServingOutcome:
        from specbench_kit.reports.serving.files import write_reports

        if self.chosen:
            rows = summary["rows"]
            compared = [*rows, *summary.get("against_first", ()), *derived(rows)]
            summary["published"] = compare_published(self.chosen.preset, compared)
        run = self._describe(command, builder)
        if command == "simulate":
            write_text(folder / "simulate.csv", simulation_grid.to_csv(summary["rows"]))
        write_text(folder / "run.json", to_json(run))
        write_text(folder / "summary.json", to_json(summary))
        write_reports(folder, run, summary)
        return ServingOutcome(folder, run, summary)

    def _describe(self, command: str, builder: ScenarioBuilder) -> Fields:
        """The content of `run.json`; `deployment` is that of the first series."""
        series = self.settings.series()
        recorded = builder.trace.header.run if builder.trace else {}
        return {
            "command": command,
            "preset": describe_preset(self.chosen.name, self.chosen.preset) if self.chosen else None,
            "time_kind": "modelled",
            "dataset": recorded.get("dataset"),
            "models": recorded.get("models") or {},
            "config": self.settings.described(),
            "series": [_describe_series(one, builder) for one in series],
            "deployment": describe(builder.deployment(series[0])),
            "deployments": {one.deployment: describe(builder.deployment(one)) for one in series},
            **provenance.collect(self.settings.argv),
        }


def _describe_series(series: ServingSeries, builder: ScenarioBuilder) -> Fields:
    typical, (memory, origin) = builder.source(series).typical, builder.memory(series)
    system = series.serves
    kv = {"tokens": _finite(memory.tokens), "context": _finite(memory.context), "origin": origin}
    return {
        "label": series.label,
        "system": series.system,
        "summary": system.summary,
        "scheduler": series.scheduler,
        "method": series.method,
        "drafting": system.drafting,
        "prefix_cache": system.prefix_cache,
        "acceptance": provenance.without_folders(series.acceptance) if series.acceptance else None,
        "typical": {**typical._asdict(), "committed": typical.committed},
        "deployment": series.deployment,
        "kv": kv,
    }


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _file_name(point: GridPoint, seed: int, settings: ServingSettings) -> str:
    """The series, and its place on the axes that take several values."""
    several = [axis for axis in AXES if len(getattr(settings, axis)) > 1]
    places = [f"{axis}-{value}" for axis, value in point.values().items() if axis in several]
    return slug("-".join([point.series.label, *places, f"seed-{seed}"]))


def _write_timeline(folder: Path, point: GridPoint, result: SimulationResult, window: Window) -> None:
    import json

    from specbench_kit.reports.timeline.timeline import chrome_trace

    about = {"series": point.series.label, "devices": point.devices, "slo": point.slo, "time": "modelled"}
    trace = chrome_trace(timeline(result, *window), about)
    name = f"timeline-{slug(point.series.label)}.json"
    write_text(folder / name, json.dumps(trace, ensure_ascii=False, allow_nan=False) + "\n")

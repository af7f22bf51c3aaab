"""Experiments in modelled time: `bench` decodes with a synthetic pair, `simulate` and `capacity`
serve many devices.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from msgspec import Struct

from specbench_kit.core.option import OptionValues, from_keywords, select_fields
from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import convert
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.description import described
from specbench_kit.deployments.synthetic_prompts import SyntheticPrompts
from specbench_kit.metrics.rounds import Metrics, RequestGroup
from specbench_kit.metrics.run_data import placed
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.papers.experiment import series_of
from specbench_kit.papers.figure_row import FigureRow, Figures
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.parallel import Workers
from specbench_kit.serving.result import SimulationResult
from specbench_kit.studies.reproduction.averages import Rows
from specbench_kit.studies.reproduction.inputs import RULE, DecodedSeries
from specbench_kit.studies.serving import capacity as capacities
from specbench_kit.studies.serving import simulation_grid
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.serving_run import flat_rows
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings


@dataclass(frozen=True, kw_only=True)
class DecodingExperiment(SyntheticPrompts):
    """Several series by label, all decoded on the same prompts."""

    series: Mapping[str, DecodedSeries]

    def rows(self) -> Iterator[FigureRow]:
        """Yield the metrics of every series, with plain decoding on the same deployment as the
        baseline.
        """
        prompts = SyntheticPrompts(
            **{field.name: getattr(self, field.name) for field in fields(SyntheticPrompts)}
        )
        for label, series in self.series.items():
            deployment = series.load_deployment()
            baseline = _decode_baseline(prompts, series.deployment, series.replaced)
            is_baseline = series.method == BASELINE
            records = (
                baseline if is_baseline else self.decode(series.method, deployment, series.draft)
            )
            summary = summarise_run(
                RequestGroup(records),
                RequestGroup(baseline),
                placed(described(deployment), series.method),
            )
            yield FigureRow(label, {}, _estimates(summary["overall"]))


def bench(options: OptionValues, report: CountCallback) -> Rows:
    """Return the rows of a decoding experiment with these options."""
    series = {label: convert(DecodedSeries, entry) for label, entry in series_of(options).items()}
    rows: Rows = []
    prompts = select_fields(SyntheticPrompts, options)
    for row in DecodingExperiment(series=series, **prompts).rows():
        rows.append(row)
        report(len(rows), len(series))
    return rows


@lru_cache(maxsize=8)
def _decode_baseline(
    prompts: SyntheticPrompts, deployment: str, replaced: tuple[str, ...]
) -> list[RequestRecord]:
    """Return the records of plain decoding, which most points of a grid share."""
    series = DecodedSeries(BASELINE, deployment, replaced=replaced)
    return prompts.decode(BASELINE, series.load_deployment(), series.draft)


def _estimates(overall: Metrics) -> Figures:
    """Return all numbers as `{"mean": ...}`; those one level down get joint names, such as
    `tpot_mean`.
    """
    numbers = {name: value for name, value in overall.items() if isinstance(value, int | float)}
    for group, members in overall.items():
        if isinstance(members, Mapping):
            numbers |= {
                f"{group}_{name}": value
                for name, value in members.items()
                if isinstance(value, int | float)
            }
    return {name: {"mean": value} for name, value in numbers.items()}


class SloSource(Struct):
    """The system whose time per token at a quantile makes the SLO of an experiment."""

    system: str
    acceptance: str
    quantile: float


class SloOptions(Struct):
    """The option that takes the SLO from a system."""

    slo_of: SloSource | None = None


AN_SLO = "1/s"
"""Any promise; plain decoding takes as long whatever is promised."""


def simulate(options: OptionValues, report: CountCallback) -> Rows:
    """Return the rows of a grid of simulations."""
    settings = settings_of(_with_slo(options))
    builder = ScenarioBuilder(settings)
    grid = simulation_grid.simulate_grid(
        settings, builder, Workers(settings.jobs), lambda *_: False, lambda *_: None, report
    )
    rows = flat_rows(simulation_grid.summarise(grid))
    if reference := convert(SloOptions, options).slo_of:
        # Every seed computes its own SLO, which must not keep the rows of seeds apart.
        slo = f"quantile {reference.quantile} of {reference.system}"
        rows = [replace(row, point={**row.point, "slo": slo}) for row in rows]
    return rows


def _with_slo(options: OptionValues) -> OptionValues:
    """Return options with the SLO in place of `slo_of`, the system whose time per token makes
    it.
    """
    rest = {name: value for name, value in options.items() if name != "slo_of"}
    reference = convert(SloOptions, options).slo_of
    if reference is None:
        return rest
    one = {"system": [reference.system], "acceptance": [reference.acceptance]}
    settings = settings_of({**rest, **one, "slo": [AN_SLO], "slo_scale": [1.0]})
    tpot_s: list[float] = []

    def collect(_point: GridPoint, _seed: int, result: SimulationResult) -> None:
        responses = result.responses
        counted = (responses["start_s"] >= settings.warmup_s) & (responses["end_s"] <= result.end_s)
        counted &= responses["tokens"] > 1
        several = {name: column[counted] for name, column in responses.items()}
        tpot_s.extend((several["end_s"] - several["first_s"]) / (several["tokens"] - 1))

    builder = ScenarioBuilder(settings)
    simulation_grid.simulate_grid(
        settings, builder, Workers(settings.jobs), lambda *_: True, collect, lambda *_: None
    )
    return {**rest, "slo": [f"{1 / float(np.quantile(tpot_s, reference.quantile)):.4g}/s"]}


def capacity(options: OptionValues, report: CountCallback) -> Rows:
    """Return the capacity of every series under every SLO."""
    settings = settings_of(options)
    rule = CapacityRule(**select_fields(CapacityRule, options))
    builder = ScenarioBuilder(settings)
    found = capacities.find_capacities(settings, rule, builder, Workers(settings.jobs), report)
    return list(map(FigureRow.of, found))


def settings_of(options: OptionValues) -> ServingSettings:
    """Return the settings of a serving experiment with these options."""
    # `objective` belongs to the settings and to the rule of a capacity search; all other keys of a
    # rule are its own.
    own = {name: value for name, value in options.items() if name not in RULE - {"objective"}}
    return from_keywords(ServingSettings, own)

"""Experiments of the commands `simulate` and `capacity`: many devices and one server."""

from dataclasses import fields

import numpy as np

from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.serving.options import CapacityRule
from specbench_kit.serving.result import SimulationResult
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.reproduction.rows import Rows
from specbench_kit.studies.serving import capacity as capacities
from specbench_kit.studies.serving import simulation_grid
from specbench_kit.studies.serving.derived_rows import derived_rows
from specbench_kit.studies.serving.presets import as_tuples
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import GridPoint, ServingSettings

AN_SLO = "1/s"
"""Any promise; plain decoding takes as long whatever is promised."""
RULE = {field.name for field in fields(CapacityRule)}
OPTIONS = {field.name for field in fields(ServingSettings)} - {"recording", "argv"} | {"slo_of"}
"""Options of a serving experiment; `slo_of` sets the SLO to a quantile of another system's time per token."""


def simulate(options: JsonObject, report: CountCallback) -> Rows:
    """Return the rows of a grid of simulations."""
    settings = _settings(_with_slo(options))
    grid = simulation_grid.simulate_grid(settings, ScenarioBuilder(settings), lambda *_: False, lambda *_: None, report)
    summary = simulation_grid.summarise(grid)
    rows = [*summary["rows"], *summary["against_first"], *derived_rows(summary["rows"])]
    if reference := options.get("slo_of"):
        # Every seed computes its own SLO, which must not keep the rows of seeds apart.
        rows = [{**row, "slo": f"quantile {reference['quantile']} of {reference['system']}"} for row in rows]
    return rows


def _with_slo(options: JsonObject) -> JsonObject:
    """Return options with the SLO in place of `slo_of`, the system whose time per token makes it."""
    rest = dict(options)
    if not (reference := rest.pop("slo_of", None)):
        return rest
    one = {name: [reference[name]] for name in ("system", "acceptance")}
    settings = _settings({**rest, **one, "slo": [AN_SLO], "slo_scale": [1.0]})
    tpot_s: list[float] = []

    def collect(_point: GridPoint, _seed: int, result: SimulationResult) -> None:
        responses = result.responses
        counted = (responses["start_s"] >= settings.warmup_s) & (responses["end_s"] <= result.end_s)
        counted &= responses["tokens"] > 1
        several = {name: column[counted] for name, column in responses.items()}
        tpot_s.extend((several["end_s"] - several["first_s"]) / (several["tokens"] - 1))

    simulation_grid.simulate_grid(settings, ScenarioBuilder(settings), lambda *_: True, collect, lambda *_: None)
    return {**rest, "slo": [f"{1 / float(np.quantile(tpot_s, reference['quantile'])):.4g}/s"]}


def capacity(options: JsonObject, report: CountCallback) -> Rows:
    """Return the capacity of every series under every SLO."""
    settings = _settings(options)
    rule = CapacityRule(**{name: value for name, value in options.items() if name in RULE})
    return [row.describe() for row in capacities.find_capacities(settings, rule, ScenarioBuilder(settings), report)]


def _settings(options: JsonObject) -> ServingSettings:
    # `objective` belongs to the settings and to the rule of a capacity search; all other keys of a rule are its own.
    own = {name: value for name, value in as_tuples(options).items() if name not in RULE - {"objective"}}
    return ServingSettings(recording=BenchSettings(methods=("autoregressive",)), **own)

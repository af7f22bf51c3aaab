"""Experiments of the commands `simulate` and `capacity`: many devices and one server."""

from dataclasses import fields

from specbench_kit.core.progress import CountCallback
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.serving.options import CapacityRule
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.serving import capacity as capacities
from specbench_kit.studies.serving import simulation_grid
from specbench_kit.studies.serving.derived_rows import derived_rows
from specbench_kit.studies.serving.presets import as_tuples
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import ServingSettings

Rows = list[JsonObject]
RULE = {field.name for field in fields(CapacityRule)}
OPTIONS = {field.name for field in fields(ServingSettings)} - {"recording", "argv"}


def simulate(options: JsonObject, report: CountCallback) -> Rows:
    """Return the rows of a grid of simulations."""
    settings = _settings(options)
    rows = simulation_grid.simulate_grid(settings, ScenarioBuilder(settings), lambda *_: False, lambda *_: None, report)
    summary = simulation_grid.summarise(rows)
    return [*summary["rows"], *summary["against_first"], *derived_rows(summary["rows"])]


def capacity(options: JsonObject, report: CountCallback) -> Rows:
    """Return the capacity of every series under every SLO."""
    settings = _settings(options)
    rule = CapacityRule(**{name: value for name, value in options.items() if name in RULE})
    return [row.describe() for row in capacities.find_capacities(settings, rule, ScenarioBuilder(settings), report)]


def _settings(options: JsonObject) -> ServingSettings:
    # `objective` belongs to the settings and to the rule of a capacity search; all other keys of a rule are its own.
    own = {name: value for name, value in as_tuples(options).items() if name not in RULE - {"objective"}}
    return ServingSettings(recording=BenchSettings(methods=("autoregressive",)), **own)

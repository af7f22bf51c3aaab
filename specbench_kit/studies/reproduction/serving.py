"""Experiments on many devices and one server: `simulate` and `capacity`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from specbench_kit.core.progress import CountCallback
from specbench_kit.serving.options import CapacityRule
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.serving import capacity as capacities
from specbench_kit.studies.serving import simulation_grid
from specbench_kit.studies.serving.derived_rows import derived
from specbench_kit.studies.serving.presets.base import as_tuples
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import ServingSettings

Rows = list[dict[str, Any]]
RULE = {one.name for one in fields(CapacityRule)}
OPTIONS = {one.name for one in fields(ServingSettings)} - {"recording", "argv"}


def simulate(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """The rows of a grid of simulations."""
    settings = _settings(options)
    rows = simulation_grid.simulate_grid(settings, ScenarioBuilder(settings), lambda *_: False, lambda *_: None, told)
    summary = simulation_grid.summarise(rows)
    return [*summary["rows"], *summary["against_first"], *derived(summary["rows"])]


def capacity(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """The most devices of every series under every SLO."""
    settings = _settings(options)
    rule = CapacityRule(**{name: value for name, value in options.items() if name in RULE})
    return [row.describe() for row in capacities.find_all(settings, rule, ScenarioBuilder(settings), told)]


def _settings(options: Mapping[str, Any]) -> ServingSettings:
    own = {name: value for name, value in as_tuples(options).items() if name not in RULE - {"objective"}}
    return ServingSettings(recording=BenchSettings(methods=("autoregressive",)), **own)

"""Experiments on many devices and one server: `simulate` and `capacity`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from specbench_kit.core.progress import CountCallback
from specbench_kit.serving.options import Rule
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.serving import capacity as capacities
from specbench_kit.studies.serving import sweep
from specbench_kit.studies.serving.building import Builder
from specbench_kit.studies.serving.derived import derived
from specbench_kit.studies.serving.presets.base import as_tuples
from specbench_kit.studies.serving.settings import Settings

Rows = list[dict[str, Any]]
RULE = {one.name for one in fields(Rule)}
OPTIONS = {one.name for one in fields(Settings)} - {"recording", "argv"}


def simulate(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """The rows of a grid of simulations."""
    settings = _settings(options)
    rows = sweep.simulate_grid(settings, Builder(settings), lambda *_: False, lambda *_: None, told)
    summary = sweep.summarise(rows)
    return [*summary["rows"], *summary["against_first"], *derived(summary["rows"])]


def capacity(options: Mapping[str, Any], told: CountCallback) -> Rows:
    """The most devices of every series under every SLO."""
    settings = _settings(options)
    rule = Rule(**{name: value for name, value in options.items() if name in RULE})
    return [row.describe() for row in capacities.find_all(settings, rule, Builder(settings), told)]


def _settings(options: Mapping[str, Any]) -> Settings:
    own = {name: value for name, value in as_tuples(options).items() if name not in RULE - {"objective"}}
    return Settings(recording=BenchSettings(methods=("autoregressive",)), **own)

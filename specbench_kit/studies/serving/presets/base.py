"""Experiments on many devices and one server, as presets of `skit simulate` and `skit capacity`."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specbench_kit.core.registry import Registry
from specbench_kit.papers.experiment import Experiment

Fields = dict[str, Any]
COMMANDS = ("simulate", "capacity")

presets: Registry[Experiment] = Registry(
    "preset", "specbench_kit.studies.serving.presets", group="specbench_kit.presets"
)


def as_tuples(options: Mapping[str, Any]) -> Fields:
    """Options of a file as settings have them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def describe(name: str, preset: Experiment) -> Fields:
    """As `run.json` holds it."""
    shown = ("command", "summary", "source", "against", "reading")
    plain = {key: value for key, value in asdict(preset).items() if key in shown}
    return {"name": name, **plain, "assumed": [one._asdict() for one in preset.assumed]}

"""Presets of `skit simulate` and `skit capacity`: the published experiments that are a single run.

The preset `wisp-table-2` is the experiment `wisp/table-2` of the papers' library.
"""

from dataclasses import replace

from msgspec import to_builtins

from specbench_kit.core.option import OptionValues
from specbench_kit.core.registry import Registry
from specbench_kit.core.typed_json import Written
from specbench_kit.papers.experiment import GRID, Experiment, experiments

COMMANDS = ("simulate", "capacity")

presets: Registry[Experiment] = Registry(
    "preset", "specbench_kit.studies.serving.presets", group="specbench_kit.presets"
)


def as_tuples(options: OptionValues) -> OptionValues:
    """Return the options of a file with tuples in place of lists, as settings have them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in options.items()
    }


def describe_preset(name: str, preset: Experiment) -> Written:
    """Return a preset as `run.json` holds it."""
    return {
        "name": name,
        "command": preset.command,
        "summary": preset.summary,
        "source": preset.source,
        "against": preset.against,
        "reading": preset.reading,
        "assumed": to_builtins(preset.assumed),
    }


for _name, _experiment in experiments().items():
    if _experiment.command in COMMANDS and GRID.isdisjoint(_experiment.options):
        presets.register(_name.replace("/", "-"))(
            replace(_experiment, options=as_tuples(_experiment.options))
        )

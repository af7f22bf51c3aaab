"""Those of the papers that are one run: `wisp/table-2` is the preset wisp-table-2."""

from dataclasses import replace

from specbench_kit.papers.experiment import GRID, experiments
from specbench_kit.studies.serving.presets.base import COMMANDS, as_tuples, presets

for _name, _experiment in experiments().items():
    if _experiment.command in COMMANDS and GRID.isdisjoint(_experiment.options):
        presets.register(_name.replace("/", "-"))(replace(_experiment, options=as_tuples(_experiment.options)))

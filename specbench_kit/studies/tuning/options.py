"""The options of `skit tune`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import BatchSize, Seed
from specbench_kit.core.option import RUN, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOptions:
    """The methods to tune, and the traces to tune them on."""

    methods: Annotated[
        tuple[str, ...],
        Option(
            "Method: a name, 'all' or 'group:NAME'; may be given several times.", RUN, flag="method"
        ),
    ]
    traces: Annotated[
        tuple[Path, ...],
        Option(
            "Trace of `skit record`; one half chooses the options, the other half tests them. Several traces of the "
            "same prompts choose the draft model as well, or how it is computed.",
            RUN,
            "replay",
        ),
    ]
    budget: Annotated[
        int, Option("Number of settings to try per method, its default included.", RUN)
    ] = 16
    batch_size: BatchSize = 1
    seed: Seed = 0

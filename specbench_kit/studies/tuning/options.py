"""The options of `skit tune`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from specbench_kit.core.common_options import BatchSize, Seed
from specbench_kit.core.option import RUN, Option

Objective = Literal["goodput", "cost", "energy"]
"""What is maximised: tokens per second, per verified token, or per second of drafting."""


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
    objective: Annotated[
        Objective,
        Option(
            "What decides: tokens per second (goodput), per token that the server verifies (cost), or per second that "
            "the device drafts (energy).",
            RUN,
            "for",
        ),
    ] = "goodput"
    batch_size: BatchSize = 1
    seed: Seed = 0

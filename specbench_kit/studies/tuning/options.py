"""The options of `skit tune`, each declared once. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import BatchSize, Seed
from specbench_kit.core.option import RUN, Option


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOptions:
    """What is tuned, and on what."""

    methods: Annotated[
        tuple[str, ...],
        Option("Names of methods, 'all' or 'group:NAME'; may be given several times.", RUN, flag="method"),
    ]
    trace: Annotated[Path, Option("A trace of `skit record`; every other request is kept for the test.", RUN, "replay")]
    budget: Annotated[int, Option("Candidates of every method, its defaults among them.", RUN)] = 16
    batch_size: BatchSize = 1
    seed: Seed = 0

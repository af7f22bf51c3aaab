"""Where what a run remembers is found again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.option import MODELS, RUN, Option


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """Where on this machine lies what a run names by its content; None is to be found without help."""

    target: Annotated[str | None, Option("Where the target lies, if that cannot be found.", MODELS)] = None
    draft: Annotated[str | None, Option("Where the draft model lies, if that cannot be found.", MODELS)] = None
    data_dir: Annotated[
        Path | None, Option("Local datasets, or the folder of a prompt file; SKIT_DATA_DIR if left out.", RUN)
    ] = None
    replay: Annotated[Path | None, Option("The trace, where the run replayed one.", RUN)] = None
    device: Annotated[str | None, Option("Another device than the run's.", MODELS)] = None

"""The options of `skit rerun`. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.option import MODELS, RUN, Option


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """The inputs of a run on this machine, which `run.json` names by their content; None is
    searched for.
    """

    target: Annotated[
        str | None,
        Option("Target, if it cannot be found: Hugging Face id or local folder.", MODELS),
    ] = None
    draft: Annotated[
        str | None,
        Option("Draft model, if it cannot be found: Hugging Face id or local folder.", MODELS),
    ] = None
    data_dir: Annotated[
        Path | None,
        Option("Folder of local datasets or of the prompt file (default: $SKIT_DATA_DIR).", RUN),
    ] = None
    replay: Annotated[
        Path | None, Option("Trace file, if the run replayed one that cannot be found.", RUN)
    ] = None
    device: Annotated[str | None, Option("Torch device (default: the first run's).", MODELS)] = None

"""Which predictor a method takes that is given a name, a family, a folder or `auto`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError

if TYPE_CHECKING:
    from specbench_kit.predictors.library import PairHashes

PREDICTOR = "a predictor of the pair: skit train-predictor"


def find_predictor(method: str, wanted: str, pair: "PairHashes") -> Path:
    """Folder of the predictor that an option `predictor` names; without one an error that says how to get it."""
    from specbench_kit.predictors.library import find

    if any(separator in wanted for separator in (os.sep, os.altsep) if separator):
        return Path(wanted).expanduser()
    found = find(pair, None if wanted == "auto" else wanted)
    if not found:
        others = ", ".join(folder.name for folder in find(pair))
        raise SkitError(
            f"{method}: no predictor '{wanted}' for this pair of models; known: {others}"
            if others
            else f"{method}: no predictor for this pair of models: run skit train-predictor with the same --target and "
            f"--draft, or name a folder with {method}:predictor=./PATH"
        )
    return found[0]

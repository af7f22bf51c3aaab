"""The parts that methods with a learned predictor share: finding it, loading it and reporting
it.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import Method

if TYPE_CHECKING:
    from specbench_kit.predictors.artefact import Predictor
    from specbench_kit.predictors.library import PairHashes

PREDICTOR = "a predictor of the pair: skit train-predictor"


def load_predictor(method: str, predictor: str, pair: "PairHashes", *, force: bool) -> "Predictor":
    """Return the predictor that the option `predictor` names: a name, a family, a folder, or `auto`
    for the best one.

    Raise SkitError with the way to get one if there is none. `force` accepts a predictor of another
    pair.
    """
    from specbench_kit.predictors.artefact import load
    from specbench_kit.predictors.library import find

    if any(separator in predictor for separator in (os.sep, os.altsep) if separator):
        return load(Path(predictor).expanduser(), pair=pair, force=force)
    folders = find(pair, None if predictor == "auto" else predictor)
    if not folders:
        names = ", ".join(folder.name for folder in find(pair, disturbed=True))
        raise SkitError(
            f"{method}: no predictor '{predictor}' for this pair of models; known: {names}"
            if names
            else f"{method}: no predictor for this pair of models: run skit train-predictor with the same --target and "
            f"--draft, or name a folder with {method}:predictor=./PATH"
        )
    return replace(load(folders[0], pair=pair, force=force), choice=_choice(folders, predictor))


def _choice(folders: "Sequence[Path]", predictor: str) -> str:
    """Return which of the predictors found was taken, and why."""
    from specbench_kit.predictors.library import BUNDLED

    first, *others = folders
    whose = "of the kit" if first.parent == BUNDLED else "in your folder"
    if predictor == first.name:
        return f"predictor {first.name} {whose}, as it was named"
    if not others:
        return f"predictor {first.name} {whose}, the only one of this pair"
    return (
        f"predictor {first.name} {whose}, before {len(others)} other(s) of this pair: yours go first, then the newest "
        "and recommended ones"
    )


@dataclass(frozen=True)
class PreparedWithPredictor(Method):
    """A method that has loaded its predictor and is ready to run."""

    predictor: "Predictor"
    learned = True

    @property
    def trained_on(self) -> frozenset[str]:
        return self.predictor.prompts

    @property
    def trained_on_reserved(self) -> bool:
        return self.predictor.trained_on_reserved

    @property
    def decision_s(self) -> float:
        return self.predictor.decision_s


def predictor_notes(methods: Iterable[Method]) -> Iterator[str]:
    """Yield a line for each predictor that methods chose by themselves: who, which one, and why."""
    names: dict[str, list[str]] = {}
    for method in methods:
        if isinstance(method, PreparedWithPredictor) and method.predictor.choice:
            names.setdefault(method.predictor.choice, []).append(method.display_name)
    yield from (f"{', '.join(alike)}: {choice}" for choice, alike in names.items())

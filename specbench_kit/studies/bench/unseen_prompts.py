"""Prompts that methods were trained on: left out of a benchmark's datasets, or counted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from specbench_kit.datasets.base import RESERVED, LoadedDataset
from specbench_kit.datasets.loading import leave_out
from specbench_kit.methods.base import Method
from specbench_kit.models.draft_library import training_prompts
from specbench_kit.studies.bench.settings import BenchSettings

DraftFolders = Mapping[str, Path]
"""Folders of the draft model and of heads, by their names among the models."""

NAMED_PROMPTS = 3
"""Prompts and methods that a line names; more are counted."""


def without_seen(
    dataset: LoadedDataset, methods: Iterable[Method], settings: BenchSettings, drafts: DraftFolders
) -> LoadedDataset:
    """Return the dataset without the prompts that any of its methods was trained on.

    Prompts of a reserved split are always left out, all others only with `exclude_seen`. What one
    method has seen is left out for all methods, since they are compared on the same prompts.
    """
    sources = [source for method in methods for source in _training_prompts(method, drafts)]
    left_out = [prompts for prompts, reserved in sources if settings.exclude_seen or reserved]
    return leave_out(dataset, frozenset().union(*left_out), settings.limit, settings.seed)


def count_seen(dataset: LoadedDataset, method: Method, drafts: DraftFolders) -> int:
    """Count the prompts of a dataset that the method was trained on."""
    seen = frozenset[str]().union(*(prompts for prompts, _ in _training_prompts(method, drafts)))
    return sum(prompt.fingerprint in seen for prompt in dataset.prompts)


def seen_notes(
    given: Sequence[LoadedDataset],
    datasets: Sequence[LoadedDataset],
    methods: Mapping[str, Method],
    drafts: DraftFolders,
) -> list[str]:
    """Return a line for each dataset that lost prompts since it was given: how many and which, and
    the methods, by spec, that were trained on them.
    """
    notes = []
    for before, dataset in zip(given, datasets, strict=True):
        left_out = frozenset(dataset.left_out)
        names = [prompt.id for prompt in before.pool if prompt.fingerprint in left_out]
        if not names:
            continue
        trained = [
            spec
            for spec, method in methods.items()
            if any(seen & left_out for seen, _ in _training_prompts(method, drafts))
        ]
        prompts = "prompt" if len(names) == 1 else "prompts"
        ids = "id" if len(names) == 1 else "ids"
        which = ", ".join(names[:NAMED_PROMPTS]) + (", ..." if names[NAMED_PROMPTS:] else "")
        models = "predictor or draft" if len(trained) == 1 else "predictors or drafts"
        notes.append(
            f"{dataset.name}: drawn without {len(names)} {prompts} ({ids} {which}) that the {models} of "
            f"{', '.join(trained[:NAMED_PROMPTS])}{', ...' if trained[NAMED_PROMPTS:] else ''} "
            f"learned from"
        )
    return notes


def _training_prompts(
    method: Method, drafts: DraftFolders
) -> Iterator[tuple[frozenset[str], bool]]:
    """Yield fingerprints of training prompts, and True if they come from a split that is reserved
    for training.
    """
    yield method.trained_on, method.trained_on_reserved
    for name in method.drafting.models:
        if name in drafts:
            prompts, part = training_prompts(drafts[name])
            yield prompts, part == RESERVED

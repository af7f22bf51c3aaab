"""Prompts that a method of the benchmark was trained on, or the draft model or head that it uses."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from specbench_kit.datasets.base import RESERVED, LoadedDataset
from specbench_kit.datasets.loading import leave_out
from specbench_kit.methods.base import Method
from specbench_kit.models.head_library import training_prompts
from specbench_kit.studies.bench.settings import BenchSettings

DraftFolders = Mapping[str, Path]
"""Folders of the draft model and of heads, by their names among the models."""


def without_seen(
    dataset: LoadedDataset, methods: Iterable[Method], settings: BenchSettings, drafts: DraftFolders
) -> LoadedDataset:
    """Return the dataset without the prompts that any of its methods was trained on.

    Prompts of a reserved split are always left out, all others only with `exclude_seen`. What one method has seen is
    left out for all methods, since they are compared on the same prompts.
    """
    sources = [source for method in methods for source in _training_prompts(method, drafts)]
    left_out = [prompts for prompts, reserved in sources if settings.exclude_seen or reserved]
    return leave_out(dataset, frozenset().union(*left_out), settings.limit, settings.seed)


def count_seen(dataset: LoadedDataset, method: Method, drafts: DraftFolders) -> int:
    """Count the prompts of a dataset that the method was trained on."""
    seen = frozenset[str]().union(*(prompts for prompts, _ in _training_prompts(method, drafts)))
    return sum(prompt.fingerprint in seen for prompt in dataset.prompts)


def _training_prompts(method: Method, drafts: DraftFolders) -> Iterator[tuple[frozenset[str], bool]]:
    """Yield fingerprints of training prompts, and True if they come from a split that is reserved for training."""
    yield method.trained_on, method.trained_on_reserved
    for name in method.drafting.models:
        if name in drafts:
            prompts, part = training_prompts(drafts[name])
            yield prompts, part == RESERVED

"""Prompts that a method in the benchmark learned from, or the head that it drafts with."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from specbench_kit.datasets.base import RESERVED, LoadedDataset
from specbench_kit.datasets.loading import leave_out
from specbench_kit.methods.base import Method
from specbench_kit.models.head_library import training_prompts
from specbench_kit.studies.bench.settings import BenchSettings

Heads = Mapping[str, Path]
"""Folders of the heads, by what they are called among models."""


def without_seen(
    dataset: LoadedDataset, methods: Iterable[Method], settings: BenchSettings, heads: Heads
) -> LoadedDataset:
    """The dataset less what its methods learned from: where that is asked for, and where it is a part set apart.

    All methods go without, since they are compared on the same prompts.
    """
    learned = [one for method in methods for one in _learned(method, heads)]
    left_out = [prompts for prompts, apart in learned if settings.exclude_seen or apart]
    return leave_out(dataset, frozenset().union(*left_out), settings.limit, settings.seed)


def count_seen(dataset: LoadedDataset, method: Method, heads: Heads) -> int:
    """Prompts of a benchmark that the method learned from."""
    seen = frozenset[str]().union(*(prompts for prompts, _ in _learned(method, heads)))
    return sum(prompt.fingerprint in seen for prompt in dataset.prompts)


def _learned(method: Method, heads: Heads) -> Iterator[tuple[frozenset[str], bool]]:
    """Fingerprints, and whether these prompts are a part set apart for training."""
    yield method.trained_on, method.trained_on_reserved
    for name in method.drafting.models:
        if name in heads:
            prompts, part = training_prompts(heads[name])
            yield prompts, part == RESERVED

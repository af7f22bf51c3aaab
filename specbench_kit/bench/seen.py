"""Prompts that a method in the benchmark learned from."""

from collections.abc import Iterable

from specbench_kit.bench.settings import Settings
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.datasets.loading import leave_out
from specbench_kit.methods.base import Method


def without_seen(dataset: LoadedDataset, methods: Iterable[Method], settings: Settings) -> LoadedDataset:
    """The dataset less what its methods learned from: where that is asked for, and where it is a part set apart.

    All methods go without, since they are compared on the same prompts.
    """
    apart = [method.trained_on for method in methods if settings.exclude_seen or method.trained_apart]
    return leave_out(dataset, frozenset().union(*apart), settings.limit, settings.seed)


def count_seen(dataset: LoadedDataset, method: Method) -> int:
    """Prompts of a benchmark that the method learned from."""
    return sum(prompt.fingerprint in method.trained_on for prompt in dataset.prompts)

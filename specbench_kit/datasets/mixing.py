"""One pool of prompts from several datasets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset, Prompt


def shares(limit: int | None, datasets: int) -> list[int | None]:
    """How many prompts each of several datasets gives; the first ones give what is left over."""
    if limit is None:
        return [None] * datasets
    if limit < datasets:
        raise SkitError(f"{datasets} datasets cannot share {limit} prompts: ask for at least {datasets}")
    return [limit // datasets + (place < limit % datasets) for place in range(datasets)]


def joined(name: str, parts: Sequence[LoadedDataset], digest: Callable[[Iterable[Prompt]], str]) -> LoadedDataset:
    """All their prompts; ids begin with the name of the dataset, which is the category too."""
    if len({part.name for part in parts}) < len(parts):
        raise SkitError(f"a dataset is named twice in '{name}'")
    chosen = tuple(one for part in parts for one in _named(part.name, part.prompts))
    sample = next((part for part in parts if part.source == "sample"), parts[0])
    return LoadedDataset(
        name,
        sample.source,
        " + ".join(part.location for part in parts),
        digest(chosen),
        sum(part.total for part in parts),
        chosen,
        sample.reason,
        sample.part,
        pool=tuple(one for part in parts for one in _named(part.name, part.pool)),
    )


def _named(dataset: str, prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    return (replace(one, id=f"{dataset}/{one.id}", category=dataset) for one in prompts)

"""One pool of prompts from several datasets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset, Prompt


def shares(limit: int | None, datasets: int) -> list[int | None]:
    """Return the number of prompts that each dataset gives, in order; the first ones give the remainder."""
    if limit is None:
        return [None] * datasets
    if limit < datasets:
        raise SkitError(f"{datasets} datasets cannot share {limit} prompts: ask for at least {datasets}")
    return [limit // datasets + (index < limit % datasets) for index in range(datasets)]


def join(name: str, parts: Sequence[LoadedDataset], digest: Callable[[Iterable[Prompt]], str]) -> LoadedDataset:
    """Return the prompts of all datasets as one; the dataset's name is the category and the beginning of each id."""

    def labelled(dataset: str, prompts: Iterable[Prompt]) -> list[Prompt]:
        return [replace(prompt, id=f"{dataset}/{prompt.id}", category=dataset) for prompt in prompts]

    if len({part.name for part in parts}) < len(parts):
        raise SkitError(f"a dataset is named twice in '{name}'")
    chosen = tuple(prompt for part in parts for prompt in labelled(part.name, part.prompts))
    # A mixture with one sample in it is recorded as a sample, so that reports warn about it.
    origin = next((part for part in parts if part.source == "sample"), parts[0])
    return LoadedDataset(
        name,
        origin.source,
        " + ".join(part.location for part in parts),
        digest(chosen),
        sum(part.total for part in parts),
        chosen,
        origin.reason,
        origin.part,
        pool=tuple(prompt for part in parts for prompt in labelled(part.name, part.pool)),
    )

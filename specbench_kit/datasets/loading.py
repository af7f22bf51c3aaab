"""Prompts of a dataset or a file: from the data directory, the Hugging Face hub, or a bundled sample."""

import hashlib
import json
import os
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import one_line
from specbench_kit.datasets import any_hub, mixing
from specbench_kit.datasets.base import RESERVED, Dataset, LoadedDataset, Prompt, Source, datasets
from specbench_kit.datasets.files import file_prompt
from specbench_kit.datasets.hub import fetch_rows, hub_label
from specbench_kit.datasets.rows import PARQUET, PlacedRow, read_rows

SAMPLES = Path(__file__).parent / "samples"

NO_PROMPTS = (".txt", ".json", ".csv", ".tsv", ".md")
"""Endings of files that a user may take for one of prompts."""

Parse = Callable[[dict[str, Any], int], Prompt | None]
Found = tuple[Source, str, list[Prompt], str | None]
"""Where the prompts came from: the kind of source, its location, all of them, and why a sample stands in."""


def load(
    spec: str, *, data_dir: Path | None, allow_sample: bool, limit: int | None, seed: int, to_train: bool = False
) -> LoadedDataset:
    """The prompts of `spec`: a dataset's name, one of the hub (`hub:owner/name?...`), or a JSONL or Parquet file.

    They are cut to `limit` by a seeded draw. Several names with `+` between them are one pool, each with its share.

    A dataset is looked for below `data_dir` (or `SKIT_DATA_DIR`), then on the hub or in the library's cache; its
    bundled sample stands in only where `allow_sample` says so. A file has, per row, `turns` (a list of strings),
    `prompt` or `question` (a string), and may have `id` or `question_id`, `category` and `chat`.

    `to_train`: those of the dataset's train split or, where there is none at hand, of the part reserved by a hash.
    """
    if limit is not None and limit < 1:
        raise SkitError(f"the number of prompts must be at least 1, not {limit}")
    on_hub, is_file = spec.startswith(any_hub.PREFIX), _is_file(spec)
    if "+" in spec and not (on_hub or is_file):
        names = spec.split("+")
        shares = mixing.shares(limit, len(names))
        each = partial(load, data_dir=data_dir, allow_sample=allow_sample, seed=seed, to_train=to_train)
        parts = [each(name, limit=share) for name, share in zip(names, shares, strict=True)]
        return mixing.joined(spec, parts, digest)
    split = _find_split(spec, data_dir) if to_train and not (is_file or on_hub) else None
    if on_hub:
        found = _find_on_hub(spec, data_dir)
    else:
        found = split or (_read_file(Path(spec)) if is_file else _find(spec, data_dir, allow_sample))
    source, location, prompts, reason = found
    part = None
    if to_train:
        part, prompts = ("train", prompts) if split else (RESERVED, _reserved(prompts, spec))
    chosen = _choose(prompts, limit, seed)
    name, location = one_line(Path(spec).stem if is_file else spec), one_line(location)
    return LoadedDataset(
        name, source, location, digest(chosen), len(prompts), tuple(chosen), reason, part, pool=tuple(prompts)
    )


def leave_out(dataset: LoadedDataset, fingerprints: Collection[str], limit: int | None, seed: int) -> LoadedDataset:
    """The dataset drawn anew from the prompts that have none of these fingerprints."""
    left_out = tuple(prompt.fingerprint for prompt in dataset.pool if prompt.fingerprint in fingerprints)
    if not left_out:
        return dataset
    pool = [prompt for prompt in dataset.pool if prompt.fingerprint not in fingerprints]
    if not pool:
        raise SkitError(f"a method learned from every one of the prompts of {dataset.name}: give it others")
    chosen = tuple(_choose(pool, limit, seed))
    return replace(dataset, prompts=chosen, digest=digest(chosen), left_out=left_out, pool=tuple(pool))


def sample_of(name: str) -> str:
    """The file of a dataset's bundled prompts: the same ones on every machine."""
    return str(SAMPLES / f"{datasets.get(name)().sample}.jsonl")


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a JSONL file; a line that is not one is an error with its number."""
    return _parse_all(path.name, read_rows(path), partial(file_prompt, path.stem))


def digest(prompts: Iterable[Prompt]) -> str:
    """SHA-256 over the prompts' ids, categories and turns, in order."""
    fields = [[prompt.id, prompt.category, prompt.turns] for prompt in prompts]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _is_file(spec: str) -> bool:
    marks = [mark for mark in (os.sep, os.altsep) if mark]
    is_path = spec.endswith((".jsonl", PARQUET, *NO_PROMPTS)) or any(mark in spec for mark in marks)
    return is_path and not spec.startswith(any_hub.PREFIX)


def _no_prompts(path: Path) -> str:
    if not path.exists():
        return f"there is no prompt file '{path}'"
    how = '{"prompt": "..."}, one a line'
    return f"'{path}' is no prompt file: prompts come in a .jsonl file, as in {how}, or in a .parquet file"


def _near(path: Path) -> str:
    """A prompt file beside it that may be meant."""
    files = sorted(path.parent.glob("*")) if path.parent.is_dir() else []
    names = [file.name for file in files if file.suffix in (".jsonl", PARQUET) and file != path]
    same = [name for name in names if Path(name).stem == path.stem]
    near = same or get_close_matches(path.name, names, n=1)
    return f" (did you mean '{path.with_name(near[0])}'?)" if near else ""


def _read_file(path: Path) -> Found:
    if path.suffix in NO_PROMPTS or not path.exists():
        raise SkitError(f"{_no_prompts(path)}{_near(path)}")
    return "file", path.name, read_prompts(path), None


def _find(name: str, data_dir: Path | None, allow_sample: bool) -> Found:
    dataset = datasets.get(name)()
    local = _below(data_dir, dataset.local)
    if local is not None:
        return "local", str(dataset.local), _parse_all(str(dataset.local), read_rows(local), dataset.prompt), None
    try:
        if dataset.hub is None:
            raise SkitError("no hub holds them")
        rows, label = fetch_rows(dataset.hub), hub_label(dataset.hub)
    except SkitError as error:
        if allow_sample:
            return "sample", dataset.sample, read_prompts(SAMPLES / f"{dataset.sample}.jsonl"), str(error)
        raise SkitError(_how_to_get(name, dataset, error)) from error
    return "hub", label, _parse_all(label, rows, dataset.prompt), None


def _find_on_hub(spec: str, data_dir: Path | None) -> Found:
    """A copy of the repository below the data directory, else the hub or its library's cache."""
    asked = any_hub.parse(spec)
    label, copy = hub_label(asked.hub), _below(data_dir, asked.folder)
    try:
        rows = fetch_rows(asked.hub, copy)
    except SkitError as error:
        place = f"put a copy of the repository at {asked.folder} below the data directory (SKIT_DATA_DIR)"
        raise SkitError(f"no prompts for '{spec}': {error}; correct it, {place}, or connect to the network") from error
    return "local" if copy else "hub", label, _parse_all(label, rows, asked.prompt), None


def _find_split(name: str, data_dir: Path | None) -> Found | None:
    """The train split, from the data directory or the hub; None where it is in neither."""
    dataset = datasets.get(name)()
    if dataset.train is None:
        return None
    place, local = dataset.train.local, _below(data_dir, dataset.train.local)
    if local is not None:
        return "local", place, _parse_all(place, read_rows(local), dataset.prompt), None
    try:
        rows = fetch_rows(dataset.train.hub)
    except SkitError:
        return None
    return "hub", hub_label(dataset.train.hub), _parse_all(place, rows, dataset.prompt), None


def _reserved(prompts: list[Prompt], spec: str) -> list[Prompt]:
    """The part that a hash reserves for training, so that the rest is unseen."""
    reserved = [prompt for prompt in prompts if prompt.is_reserved]
    if not reserved:
        raise SkitError(f"{spec} has {len(prompts)} prompts, none of which a hash reserves for training: give more")
    return reserved


def _below(data_dir: Path | None, place: str | None) -> Path | None:
    folder = data_dir or os.environ.get("SKIT_DATA_DIR")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise SkitError(f"the data directory '{folder}' is not a folder: correct it or leave it out")
    path = Path(folder, place) if place else None
    return path if path and path.exists() else None


def _how_to_get(name: str, dataset: Dataset, error: SkitError) -> str:
    place = f"put it at {dataset.local} below the data directory (SKIT_DATA_DIR), " if dataset.local else ""
    return f"no prompts for '{name}': {error}; {place}connect to the network, or allow the bundled sample"


def _choose(prompts: list[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """A seeded subset in the original order."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[index] for index in sorted(random.Random(seed).sample(range(len(prompts)), limit))]


def _parse_all(name: str, rows: Iterable[PlacedRow], parse: Parse) -> list[Prompt]:
    prompts: dict[str, Prompt] = {}
    for index, (place, row) in enumerate(rows):
        prompt = _parse(place, row, index, parse)
        if prompt is None:
            continue
        if prompt.id in prompts:
            raise SkitError(f"{place}: the id '{prompt.id}' is taken by an earlier line: make ids unique")
        prompts[prompt.id] = prompt
    if not prompts:
        raise SkitError(f"{name} holds no prompts")
    return list(prompts.values())


def _parse(place: str, row: dict[str, Any], index: int, parse: Parse) -> Prompt | None:
    try:
        prompt = parse(row, index)
        if prompt is not None:
            _check_turns(prompt)
            prompt = replace(prompt, id=one_line(prompt.id), category=one_line(prompt.category))
    except KeyError as error:
        raise SkitError(f"{place}: the field {error} is missing") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise SkitError(f"{place}: {error}") from error
    return prompt


def _check_turns(prompt: Prompt) -> None:
    """Every turn is text that a tokenizer can take: a string, not blank, without lone surrogates."""
    if not prompt.turns:
        raise ValueError("there are no turns")
    for turn in prompt.turns:
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f"a prompt must be a non-empty string, not {turn!r}")
        turn.encode()
    if len(prompt.turns) > 1 and not prompt.chat:
        raise ValueError("a text to continue (chat: false) has one turn")

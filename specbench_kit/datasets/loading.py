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
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import one_line
from specbench_kit.datasets import any_hub, mixing
from specbench_kit.datasets.base import RESERVED, LoadedDataset, Prompt, Row, Source, datasets
from specbench_kit.datasets.files import file_prompt
from specbench_kit.datasets.hub import fetch_rows, hub_label
from specbench_kit.datasets.rows import PARQUET, LocatedRow, read_rows

SAMPLES = Path(__file__).parent / "samples"

PROMPT_ENDINGS = (".jsonl", ".json", PARQUET)
OTHER_ENDINGS = (".txt", ".csv", ".tsv", ".md")
"""Endings of files that a user may mistake for prompt files."""

RowParser = Callable[[Row, int], Prompt | None]


class SourcedPrompts(NamedTuple):
    """All prompts of a source, its kind and location, and the reason if a sample stands in."""

    source: Source
    location: str
    prompts: list[Prompt]
    reason: str | None = None


def load(
    spec: str, *, data_dir: Path | None, allow_sample: bool, limit: int | None, seed: int, to_train: bool = False
) -> LoadedDataset:
    """Return the prompts of `spec`: a dataset, one of the hub (`hub:owner/name?...`), or a JSON, JSONL or Parquet file.

    A dataset is looked for below `data_dir` (or `SKIT_DATA_DIR`), then on the hub or in the library's cache; its
    bundled sample stands in only if `allow_sample` is true. A row of a file has `prompt` or `question` (a string or a
    list of messages), or `turns`, `messages` or `conversations` (a list), and optionally `id`, `question_id` or
    `custom_id`, `category` and `chat`.

    A draw with `seed` cuts the prompts to `limit`. Several names joined by `+` make one pool, in equal shares.
    `to_train` returns the train split or, if there is none, the part of the dataset that a hash reserves for training.
    Raise SkitError if there are no prompts, with the way to get them.
    """
    if limit is not None and limit < 1:
        raise SkitError(f"the number of prompts must be at least 1, not {limit}")
    on_hub, is_file = spec.startswith(any_hub.PREFIX), _is_file(spec)
    if "+" in spec and not (on_hub or is_file):
        names = spec.split("+")
        load_part = partial(load, data_dir=data_dir, allow_sample=allow_sample, seed=seed, to_train=to_train)
        shares = mixing.shares(limit, len(names))
        parts = [load_part(name, limit=share) for name, share in zip(names, shares, strict=True)]
        return mixing.join(spec, parts, digest)
    split = _train_split(spec, data_dir) if to_train and not (is_file or on_hub) else None
    if on_hub:
        pool = _from_hub(spec, data_dir)
    elif is_file:
        pool = _from_file(Path(spec))
    else:
        pool = split or _from_dataset(spec, data_dir, allow_sample)
    part, prompts = None, pool.prompts
    if to_train and split:
        part = "train"
    elif to_train:
        part, prompts = RESERVED, [prompt for prompt in pool.prompts if prompt.is_reserved]
        if not prompts:
            count = len(pool.prompts)
            raise SkitError(f"a hash reserves none of the {count} prompts of {spec} for training: give more prompts")
    chosen = _draw(prompts, limit, seed)
    name, location = one_line(Path(spec).stem if is_file else spec), one_line(pool.location)
    return LoadedDataset(
        name,
        pool.source,
        location,
        digest(chosen),
        len(prompts),
        tuple(chosen),
        pool.reason,
        part,
        pool=tuple(prompts),
    )


def leave_out(dataset: LoadedDataset, fingerprints: Collection[str], limit: int | None, seed: int) -> LoadedDataset:
    """Return the dataset drawn again from the prompts that have none of these fingerprints."""
    left_out = tuple(prompt.fingerprint for prompt in dataset.pool if prompt.fingerprint in fingerprints)
    if not left_out:
        return dataset
    pool = [prompt for prompt in dataset.pool if prompt.fingerprint not in fingerprints]
    if not pool:
        raise SkitError(f"a method was trained on every prompt of {dataset.name}: choose another dataset")
    chosen = tuple(_draw(pool, limit, seed))
    return replace(dataset, prompts=chosen, digest=digest(chosen), left_out=left_out, pool=tuple(pool))


def sample_of(name: str) -> str:
    """Return the path of a dataset's bundled sample, which is the same on every machine."""
    return str(SAMPLES / f"{datasets.get(name)().sample}.jsonl")


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a JSON or JSONL file; raise SkitError with the number of the first wrong line."""
    return _parse_all(path.name, read_rows(path), partial(file_prompt, path.stem))


def digest(prompts: Iterable[Prompt]) -> str:
    """Return the SHA-256 over the prompts' ids, categories, turns and system messages, in order."""
    fields = [
        [prompt.id, prompt.category, prompt.turns, *([prompt.system] if prompt.system else [])] for prompt in prompts
    ]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _is_file(spec: str) -> bool:
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    has_ending = spec.endswith((*PROMPT_ENDINGS, *OTHER_ENDINGS))
    return (has_ending or any(mark in spec for mark in separators)) and not spec.startswith(any_hub.PREFIX)


def _from_file(path: Path) -> SourcedPrompts:
    if path.exists() and path.suffix not in OTHER_ENDINGS:
        return SourcedPrompts("file", path.name, read_prompts(path))
    files = sorted(path.parent.glob("*")) if path.parent.is_dir() else []
    names = [file.name for file in files if file.suffix in PROMPT_ENDINGS and file != path]
    same_stem = [name for name in names if Path(name).stem == path.stem]
    near = same_stem or get_close_matches(path.name, names, n=1)
    hint = f" (did you mean '{path.with_name(near[0])}'?)" if near else ""
    if not path.exists():
        raise SkitError(f"there is no prompt file '{path}'{hint}")
    form = 'a .jsonl file with one {"prompt": "..."} per line, a .json file with a list of them, or a .parquet file'
    raise SkitError(f"'{path}' is not a prompt file: give {form}{hint}")


def _from_dataset(name: str, data_dir: Path | None, allow_sample: bool) -> SourcedPrompts:
    dataset = datasets.get(name)()
    if dataset.local is None and dataset.hub is None:
        return SourcedPrompts("bundled", dataset.sample, read_prompts(SAMPLES / f"{dataset.sample}.jsonl"))
    local = _below(data_dir, dataset.local)
    if local is not None:
        location = str(dataset.local)
        return SourcedPrompts("local", location, _parse_all(location, read_rows(local), dataset.prompt))
    try:
        if dataset.hub is None:
            raise SkitError("it is not on the hub")
        rows, label = fetch_rows(dataset.hub), hub_label(dataset.hub)
    except SkitError as error:
        if allow_sample:
            prompts = read_prompts(SAMPLES / f"{dataset.sample}.jsonl")
            prompts = [replace(prompt, chat=prompt.chat and dataset.chat) for prompt in prompts]
            return SourcedPrompts("sample", dataset.sample, prompts, str(error))
        put = f"put it at {dataset.local} below the data directory (SKIT_DATA_DIR), " if dataset.local else ""
        advice = f"{put}connect to the network, or allow the bundled sample"
        raise SkitError(f"no prompts for '{name}': {error}; {advice}") from error
    return SourcedPrompts("hub", label, _parse_all(label, rows, dataset.prompt))


def _from_hub(spec: str, data_dir: Path | None) -> SourcedPrompts:
    """Return the prompts of a `hub:` spec from a copy below the data directory, else the hub or its library's cache."""
    dataset = any_hub.parse(spec)
    label, copy = hub_label(dataset.hub), _below(data_dir, dataset.folder)
    try:
        rows = fetch_rows(dataset.hub, copy)
    except SkitError as error:
        put = f"put a copy of the repository at {dataset.folder} below the data directory (SKIT_DATA_DIR)"
        raise SkitError(f"no prompts for '{spec}': {error}; correct it, {put}, or connect to the network") from error
    return SourcedPrompts("local" if copy else "hub", label, _parse_all(label, rows, dataset.prompt))


def _train_split(name: str, data_dir: Path | None) -> SourcedPrompts | None:
    """Return the train split from the data directory or the hub; None if neither has it."""
    dataset = datasets.get(name)()
    if dataset.train is None:
        return None
    location, local = dataset.train.local, _below(data_dir, dataset.train.local)
    if local is not None:
        return SourcedPrompts("local", location, _parse_all(location, read_rows(local), dataset.prompt))
    try:
        rows = fetch_rows(dataset.train.hub)
    except SkitError:
        return None
    return SourcedPrompts("hub", hub_label(dataset.train.hub), _parse_all(location, rows, dataset.prompt))


def _below(data_dir: Path | None, relative: str | None) -> Path | None:
    """Return a path below the data directory if it exists; raise SkitError if the directory does not."""
    folder = data_dir or os.environ.get("SKIT_DATA_DIR")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise SkitError(f"the data directory '{folder}' is not a folder: correct it or leave it out")
    path = Path(folder, relative) if relative else None
    return path if path and path.exists() else None


def _draw(prompts: list[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """Return a seeded random subset of at most `limit` prompts, in the original order."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[index] for index in sorted(random.Random(seed).sample(range(len(prompts)), limit))]


def _parse_all(name: str, rows: Iterable[LocatedRow], parse: RowParser) -> list[Prompt]:
    prompts: dict[str, Prompt] = {}
    for index, (position, row) in enumerate(rows):
        try:
            prompt = parse(row, index)
            if prompt is None:
                continue
            _check_turns(prompt)
            prompt = replace(prompt, id=one_line(prompt.id), category=one_line(prompt.category))
        except KeyError as error:
            raise SkitError(f"{position}: the field {error} is missing") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise SkitError(f"{position}: {error}") from error
        if prompt.id in prompts:
            raise SkitError(f"{position}: the id '{prompt.id}' is taken by an earlier line: make ids unique")
        prompts[prompt.id] = prompt
    if not prompts:
        raise SkitError(f"{name} holds no prompts")
    return list(prompts.values())


def _check_turns(prompt: Prompt) -> None:
    """Raise ValueError unless every turn is text that a tokenizer can take: not blank, without lone surrogates."""
    if not prompt.turns:
        raise ValueError("there are no turns")
    for turn in prompt.turns:
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f"a prompt must be a non-empty string, not {turn!r}")
        turn.encode()
    prompt.system.encode()
    if len(prompt.turns) > 1 and not prompt.chat:
        raise ValueError("a text to continue (chat: false) has one turn")

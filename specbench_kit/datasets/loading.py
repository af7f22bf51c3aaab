"""Prompts of a dataset or a file: from the data directory, the Hugging Face hub, or a bundled
sample.

Any dataset of the hub can be named: `hub:owner/name?split=test&prompt=question`. Where the hub is
out of reach, its library's cache takes its place.
"""

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_plus

from specbench_kit.core.errors import SkitError
from specbench_kit.core.hub import hub_reachable, is_reachable
from specbench_kit.core.plain_text import one_line
from specbench_kit.datasets.answers import ANSWER_RULES, Gold, RuleName
from specbench_kit.datasets.base import RESERVED, Hub, LoadedDataset, Prompt, Row, Source, datasets
from specbench_kit.datasets.rows import (
    OTHER_ENDINGS,
    PROMPT_ENDINGS,
    LocatedRow,
    bare_name,
    parse_rows,
    prompt_files,
    read_rows,
    schema_text,
    system_text,
    user_turns,
)
from specbench_kit.datasets.tool_messages import recorded_turns, tools_text

SAMPLES = Path(__file__).parent / "samples"

RowParser = Callable[[Row, int], Prompt | None]


class SourcedPrompts(NamedTuple):
    """All prompts of a source, its kind and location, and the reason if a sample stands in."""

    source: Source
    location: str
    prompts: list[Prompt]
    reason: str | None = None


def load(
    spec: str,
    *,
    data_dir: Path | None,
    allow_sample: bool,
    limit: int | None,
    seed: int,
    to_train: bool = False,
) -> LoadedDataset:
    """Return the prompts of `spec`: a dataset, one of the hub (`hub:owner/name?...`), or a file
    that `read_rows` reads.

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
    on_hub = spec.startswith(PREFIX)
    is_file = _is_file(spec)
    if "+" in spec and not (on_hub or is_file):
        names = spec.split("+")
        load_part = partial(
            load, data_dir=data_dir, allow_sample=allow_sample, seed=seed, to_train=to_train
        )
        shares = share_prompts(limit, len(names))
        parts = [load_part(name, limit=share) for name, share in zip(names, shares, strict=True)]
        return join_datasets(spec, parts)
    split = _train_split(spec, data_dir) if to_train and not (is_file or on_hub) else None
    if on_hub:
        pool = _from_hub(spec, data_dir)
    elif is_file:
        pool = _from_file(Path(spec))
    else:
        pool = split or _from_dataset(spec, data_dir, allow_sample)
    part = None
    prompts = pool.prompts
    if to_train and split:
        part = "train"
    elif to_train:
        part = RESERVED
        prompts = [prompt for prompt in pool.prompts if prompt.is_reserved]
        if not prompts:
            count = len(pool.prompts)
            raise SkitError(
                f"a hash reserves none of the {count} prompts of {spec} for training: give more prompts"
            )
    chosen = _draw(prompts, limit, seed)
    name = one_line(bare_name(Path(spec)) if is_file else spec)
    location = one_line(pool.location)
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


def share_prompts(limit: int | None, datasets: int) -> list[int | None]:
    """Return the number of prompts that each dataset gives, in order; the first ones give the
    remainder.
    """
    if limit is None:
        return [None] * datasets
    if limit < datasets:
        raise SkitError(
            f"{datasets} datasets cannot share {limit} prompts: ask for at least {datasets}"
        )
    return [limit // datasets + (index < limit % datasets) for index in range(datasets)]


def join_datasets(name: str, parts: Sequence[LoadedDataset]) -> LoadedDataset:
    """Return the prompts of all datasets as one; the dataset's name is the category and the
    beginning of each id.
    """

    def labelled(dataset: str, prompts: Iterable[Prompt]) -> list[Prompt]:
        return [
            replace(prompt, id=f"{dataset}/{prompt.id}", category=dataset) for prompt in prompts
        ]

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


def leave_out(
    dataset: LoadedDataset, fingerprints: Collection[str], limit: int | None, seed: int
) -> LoadedDataset:
    """Return the dataset drawn again from the prompts that have none of these fingerprints."""
    left_out = tuple(
        prompt.fingerprint for prompt in dataset.pool if prompt.fingerprint in fingerprints
    )
    if not left_out:
        return dataset
    pool = [prompt for prompt in dataset.pool if prompt.fingerprint not in fingerprints]
    if not pool:
        raise SkitError(
            f"a method was trained on every prompt of {dataset.name}: choose another dataset"
        )
    chosen = tuple(_draw(pool, limit, seed))
    return replace(
        dataset, prompts=chosen, digest=digest(chosen), left_out=left_out, pool=tuple(pool)
    )


def sample_of(name: str) -> str:
    """Return the path of a dataset's bundled sample, which is the same on every machine."""
    return str(SAMPLES / f"{datasets.get(name)().sample}.jsonl")


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a JSON or JSONL file; raise SkitError with the number of the first
    wrong line.
    """
    return _parse_all(path.name, read_rows(path), partial(file_prompt, bare_name(path)))


def digest(prompts: Iterable[Prompt]) -> str:
    """Return the SHA-256 over the prompts' ids, categories, turns and system messages, in order."""
    fields = [
        [
            *(prompt.id, prompt.category, prompt.turns),
            *([prompt.system] if prompt.system else []),
            *([prompt.script, prompt.tools] if prompt.script or prompt.tools else []),
        ]
        for prompt in prompts
    ]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def _is_file(spec: str) -> bool:
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    has_ending = spec.endswith((*PROMPT_ENDINGS, *OTHER_ENDINGS))
    return (has_ending or any(mark in spec for mark in separators)) and not spec.startswith(PREFIX)


def _from_file(path: Path) -> SourcedPrompts:
    if path.exists() and path.suffix not in OTHER_ENDINGS:
        return SourcedPrompts("file", path.name, read_prompts(path))
    files = sorted(path.parent.glob("*")) if path.parent.is_dir() else []
    names = [file.name for file in files if file.name.endswith(PROMPT_ENDINGS) and file != path]
    same_stem = [name for name in names if bare_name(Path(name)) == bare_name(path)]
    near = same_stem or get_close_matches(path.name, names, n=1)
    hint = f" (did you mean '{path.with_name(near[0])}'?)" if near else ""
    if not path.exists():
        raise SkitError(f"there is no prompt file '{path}'{hint}")
    readable = prompt_files('{"prompt": "..."}')
    raise SkitError(f"'{path}' is not a prompt file: give {readable}{hint}")


def _from_dataset(name: str, data_dir: Path | None, allow_sample: bool) -> SourcedPrompts:
    dataset = datasets.get(name)()
    if dataset.local is None and dataset.hub is None:
        return SourcedPrompts(
            "bundled", dataset.sample, read_prompts(SAMPLES / f"{dataset.sample}.jsonl")
        )
    local = _below(data_dir, dataset.local)
    if local is not None:
        location = str(dataset.local)
        return SourcedPrompts(
            "local", location, _parse_all(location, read_rows(local), dataset.prompt)
        )
    try:
        if dataset.hub is None:
            raise SkitError("it is not on the hub")
        rows = fetch_rows(dataset.hub)
        label = hub_label(dataset.hub)
    except SkitError as error:
        if allow_sample:
            prompts = read_prompts(SAMPLES / f"{dataset.sample}.jsonl")
            prompts = [replace(prompt, chat=prompt.chat and dataset.chat) for prompt in prompts]
            return SourcedPrompts("sample", dataset.sample, prompts, str(error))
        put = (
            f"put it at {dataset.local} below the data directory (SKIT_DATA_DIR), "
            if dataset.local
            else ""
        )
        advice = f"{put}connect to the network, or allow the bundled sample"
        raise SkitError(f"no prompts for '{name}': {error}; {advice}") from error
    return SourcedPrompts("hub", label, _parse_all(label, rows, dataset.prompt))


def _from_hub(spec: str, data_dir: Path | None) -> SourcedPrompts:
    """Return the prompts of a `hub:` spec from a copy below the data directory, else the hub or its
    library's cache.
    """
    dataset = parse(spec)
    label = hub_label(dataset.hub)
    copy = _below(data_dir, dataset.folder)
    try:
        rows = fetch_rows(dataset.hub, copy)
    except SkitError as error:
        put = f"put a copy of the repository at {dataset.folder} below the data directory (SKIT_DATA_DIR)"
        raise SkitError(
            f"no prompts for '{spec}': {error}; correct it, {put}, or connect to the network"
        ) from error
    return SourcedPrompts(
        "local" if copy else "hub", label, _parse_all(label, rows, dataset.prompt)
    )


def _train_split(name: str, data_dir: Path | None) -> SourcedPrompts | None:
    """Return the train split from the data directory or the hub; None if neither has it."""
    dataset = datasets.get(name)()
    if dataset.train is None:
        return None
    location = dataset.train.local
    local = _below(data_dir, dataset.train.local)
    if local is not None:
        return SourcedPrompts(
            "local", location, _parse_all(location, read_rows(local), dataset.prompt)
        )
    try:
        rows = fetch_rows(dataset.train.hub)
    except SkitError:
        return None
    return SourcedPrompts(
        "hub", hub_label(dataset.train.hub), _parse_all(location, rows, dataset.prompt)
    )


def _below(data_dir: Path | None, relative: str | None) -> Path | None:
    """Return a path below the data directory if it exists; raise SkitError if the directory does
    not.
    """
    folder = data_dir or os.environ.get("SKIT_DATA_DIR")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise SkitError(
            f"the data directory '{folder}' is not a folder: correct it or leave it out"
        )
    path = Path(folder, relative) if relative else None
    return path if path and path.exists() else None


def _draw(prompts: list[Prompt], limit: int | None, seed: int) -> list[Prompt]:
    """Return a seeded random subset of at most `limit` prompts, in the original order."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [
        prompts[index] for index in sorted(random.Random(seed).sample(range(len(prompts)), limit))
    ]


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
            raise SkitError(
                f"{position}: the id '{prompt.id}' is taken by an earlier line: make ids unique"
            )
        prompts[prompt.id] = prompt
    if not prompts:
        raise SkitError(f"{name} holds no prompts")
    return list(prompts.values())


def _check_turns(prompt: Prompt) -> None:
    """Raise ValueError unless every turn is text that a tokenizer can take: not blank, without lone
    surrogates.
    """
    if not prompt.turns:
        raise ValueError("there are no turns")
    for turn in prompt.turns:
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f"a prompt must be a non-empty string, not {turn!r}")
        turn.encode()
    prompt.system.encode()
    if len(prompt.turns) > 1 and not prompt.chat:
        raise ValueError("a text to continue (chat: false) has one turn")


ID_FIELDS = ("id", "question_id", "custom_id")
SHARED = ("conversations", "conversation")
"""The names that files of ShareGPT give to the list of messages."""
TURN_FIELDS = ("turns", "messages", *SHARED)
FIELDS = ("prompt", "question", *TURN_FIELDS)
SYSTEM_FIELDS = ("system", "system_prompt")
SCHEMA_FIELDS = ("schema", "json_schema")
TOOLS_FIELD = "tools"


def file_prompt(category: str, row: Row, index: int) -> Prompt | None:
    """Return the prompt of a row, or None if no user says anything in it.

    Raise ValueError if a field is missing or has the wrong type.
    `category` stands in where the row names none, and `index` where it has no id.
    """
    identity = next((row[name] for name in ID_FIELDS if name in row), index)
    if not isinstance(identity, (str, int)):
        raise ValueError("the id must be a string or a whole number")
    category = row.get("category", category)
    chat = row.get("chat", True)
    if not isinstance(category, str) or not isinstance(chat, bool):
        raise ValueError("'category' must be a string and 'chat' true or false")
    name, holder = _text_field(row)
    recorded = recorded_turns(holder[name])
    turns = recorded.turns if recorded else user_turns(holder[name])
    if name in SHARED:
        # Shared conversations may begin in the middle, and hold empty messages.
        turns = tuple(turn for turn in turns if not isinstance(turn, str) or turn.strip())
        if not turns:
            return None
    system = next(
        (holder[field] for field in SYSTEM_FIELDS if holder.get(field)), None
    ) or system_text(holder[name])
    if not isinstance(system, str):
        raise ValueError("the system's message must be a text")
    return Prompt(
        str(identity),
        category,
        turns,
        chat,
        _gold(row),
        system,
        schema=_schema(row),
        tools=tools_text(holder.get(TOOLS_FIELD, row.get(TOOLS_FIELD))),
        script=recorded.script if recorded else (),
    )


def _schema(row: Row) -> str:
    """Return the JSON schema of a row's answers, an object or its text; "" if it has none."""
    return schema_text(next((row[name] for name in SCHEMA_FIELDS if row.get(name)), None))


def _text_field(row: Row) -> tuple[str, Row]:
    """Return the name of the field that holds the conversation or the text, and the row or its
    `body` that has it.
    """
    fields = [name for name in TURN_FIELDS if row.get(name) is not None]
    if fields and not isinstance(row[fields[0]], list):
        raise ValueError(f"'{fields[0]}' must be a list of strings or of messages")
    if fields:
        return fields[0], row
    if isinstance(body := row.get("body"), dict):
        return _text_field(body)
    name = next((name for name in ("prompt", "question") if name in row), None)
    if name is None:
        raise ValueError(f"none of the fields {', '.join(map(repr, FIELDS))} is present")
    return name, row


def _gold(row: Row) -> Gold | None:
    """Return the right answers of a row, any of which will do, and the rule that reads them from a
    text.
    """
    if "answer" not in row:
        return None
    answer = row["answer"]
    answers = tuple(answer) if isinstance(answer, list) else (answer,)
    rule = row.get("rule", _rule_of(answers))
    if rule not in ANSWER_RULES or not all(isinstance(text, str) for text in answers):
        raise ValueError(
            f"'answer' must be a text or a list of texts, and 'rule' one of {', '.join(ANSWER_RULES)}"
        )
    return Gold(rule, answers)


MARKED_NUMBER = re.compile(r"^#### *[-$]*\d", re.MULTILINE)
"""How the solutions of GSM8K, and of files in its form, state the number that they lead to."""


def _rule_of(answers: Sequence[object]) -> RuleName:
    """Return the rule for right answers whose row names none."""
    are_solutions = all(isinstance(text, str) and MARKED_NUMBER.search(text) for text in answers)
    return "number" if answers and are_solutions else "phrase"


DOWNLOAD_S = 30.0
"""Seconds without data after which a download is given up."""


def hub_label(hub: Hub) -> str:
    """Return the name by which a run records this source, such as `openai/gsm8k:main:test`."""
    return ":".join(part for part in (hub.path, hub.config, hub.split) if part)


def fetch_rows(hub: Hub, folder: Path | None = None) -> list[LocatedRow]:
    """Return every row of `hub`: from a copy of its repository in `folder`, else downloaded, else
    from the cache.

    Raise SkitError with the reason if there are none.
    """
    online = folder is None and (is_reachable(hub.url) if hub.url else hub_reachable())
    try:
        if hub.url and online:
            from urllib.request import urlopen

            with urlopen(hub.url, timeout=DOWNLOAD_S) as lines:
                return list(parse_rows(hub.url.rpartition("/")[2], lines))
        from datasets import load_dataset

        with _library_online(online):
            streams = online and hub.stream is not None
            rows = load_dataset(
                str(folder or hub.path), hub.config, split=hub.split, streaming=streams
            )
            return [
                (f"{hub_label(hub)}, row {number}", row)
                for number, row in enumerate(islice(rows, hub.stream), 1)
            ]
    except SkitError:
        raise
    except (
        Exception
    ) as error:  # the library lets through whatever its parsers and HTTP clients raise
        failed = online or folder is not None
        why = (
            f"failed: {str(error) or type(error).__name__}"
            if failed
            else "is out of reach and not cached"
        )
        raise SkitError(f"{hub_label(hub)} {why.splitlines()[0]}") from error


@contextmanager
def _library_online(online: bool) -> Iterator[None]:
    """Keep the library from retrying a network that is known to be out of reach."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or not online
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


PREFIX = "hub:"
PATH = re.compile(r"\w[\w.-]*/\w[\w.-]*")
KEYS = ("config", "split", "prompt", "id", "category", "rows")
EXAMPLE = f"{PREFIX}owner/name?split=test&prompt=question"


@dataclass(frozen=True, slots=True)
class AnyHub:
    """A dataset on the hub, with the columns that hold its prompts, their ids and their
    categories.
    """

    hub: Hub
    prompt_column: str
    id_column: str | None
    category_column: str | None

    @property
    def folder(self) -> str:
        """Return the path of a copy of the repository, below the data directory."""
        return f"hub/{self.hub.path}"

    def prompt(self, row: Row, index: int) -> Prompt:
        """Return the prompt of a row; raise ValueError if a column is missing."""
        for column in (self.prompt_column, self.id_column, self.category_column):
            if column is not None and column not in row:
                raise ValueError(
                    f"there is no column '{column}': choose from {', '.join(row)}, as in {EXAMPLE}"
                )
        identity = index if self.id_column is None else row[self.id_column]
        category = (
            self.hub.path.partition("/")[2]
            if self.category_column is None
            else row[self.category_column]
        )
        said = row[self.prompt_column]
        recorded = recorded_turns(said)
        return Prompt(
            str(identity),
            str(category),
            recorded.turns if recorded else user_turns(said),
            system=system_text(said),
            schema=_schema(row),
            tools=tools_text(row.get(TOOLS_FIELD)),
            script=recorded.script if recorded else (),
        )


def parse(spec: str) -> AnyHub:
    """Return the dataset of a spec such as `hub:owner/name?split=test`; raise SkitError if the spec
    is wrong.

    `rows` reads only that many rows from the start, for datasets that are too large to download.
    """
    path, _, query = spec.removeprefix(PREFIX).partition("?")
    if not PATH.fullmatch(path):
        raise SkitError(f"'{spec}' names no dataset of the hub: write {EXAMPLE}")
    pairs = [part.partition("=") for part in query.split("&") if part]
    options = {key: unquote_plus(value) for key, _, value in pairs}
    if len(options) < len(pairs) or not all(
        key in KEYS and value for key, value in options.items()
    ):
        raise SkitError(
            f"'{spec}': write {', '.join(KEYS)} after ?, each once with a value, as in {EXAMPLE}"
        )
    rows = options.get("rows", "1")
    if not rows.isdecimal() or not int(rows):
        raise SkitError(f"'{spec}': rows must be a whole number from 1 up, not '{rows}'")
    hub = Hub(
        path,
        options.get("split", "test"),
        options.get("config"),
        int(rows) if "rows" in options else None,
    )
    return AnyHub(hub, options.get("prompt", "prompt"), options.get("id"), options.get("category"))

"""Replacement of inputs of an experiment."""

import tomllib
from collections.abc import Sequence

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.fields import parse_field


def parse_changes(texts: Sequence[str]) -> dict[str, object]:
    """Return the inputs that `--set` changes, by name.

    A list is written as in TOML, `scheduler=["fcfs", "edf"]`, or an entry at a time, with the name given several times:
    commas cannot part its entries, since they part the options of a scheduler too.
    """
    changes: dict[str, object] = {}
    for text in texts:
        key, value = parse_field(text)
        entries = _parse_list(value) if isinstance(value, str) else None
        new = value if entries is None else entries
        if key in changes:
            new = [*_entries(changes[key]), *_entries(new)]
        changes[key] = new
    return changes


def _parse_list(text: str) -> list[object] | None:
    """Return the entries of a list that is written as in TOML; None if the text is no list."""
    if not text.startswith("["):
        return None
    try:
        entries: list[object] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise SkitError(f'--set: a list is written as ["fcfs", "edf"], not {text}') from error
    return entries


def _entries(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def replace_input(options: JsonObject, key: str, value: object) -> dict[str, object]:
    """Return the options with one input replaced.

    `key` is an option, `option.key` for a key inside the option's specs, `series.NAME.option` (NAME may be `*`), or
    else a field of the deployment.
    """
    head, _, tail = key.partition(".")
    if not tail:
        return {**options, key: _of_same_kind(options.get(key), value)}
    if head == "series":
        series = options["series"]
        name = _series_name(series, tail)
        inner_key = tail.removeprefix(f"{name}.")
        chosen = series if name == "*" else {name: series[name]}
        changed = {label: replace_input(entry, inner_key, value) for label, entry in chosen.items()}
        return {**options, "series": {**series, **changed}}
    if head in options and isinstance(options[head], str | list):
        return {**options, head: _replace_in_specs(options[head], tail, value)}
    return {**options, "replaced": [*options.get("replaced", []), f"{key}={value}"]}


def _series_name(series: JsonObject, tail: str) -> str:
    """Return the name at the beginning of `tail`: the longest match, since a name may hold dots."""
    matches = [name for name in ("*", *series) if tail.startswith(f"{name}.")]
    if not matches:
        raise SkitError(f"series.{tail}: write series.NAME.option, or series.*.option; the series: {', '.join(series)}")
    return max(matches, key=len)


def _of_same_kind(previous: object, value: object) -> object:
    """Return the value, or every entry of a list, in the form of the previous one: in a list, or as text."""
    if isinstance(previous, list):
        return [_of_same_kind(previous[0], entry) for entry in _entries(value)]
    return str(value) if isinstance(previous, str) else value


def _replace_in_specs(specs: str | list[str], key: str, value: object) -> object:
    """Return the specs, with the value replaced in those that have this key."""
    if isinstance(specs, list):
        return [_replace_in_specs(spec, key, value) for spec in specs]
    name, _, tail = specs.partition(":")
    pairs = dict(item.partition("=")[::2] for item in tail.split(",")) if tail else {}
    if key not in pairs:
        return specs
    return f"{name}:" + ",".join(f"{k}={value if k == key else v}" for k, v in pairs.items())

"""TOML files, and the checks of the tables in them that devices, architectures, software and
deployments share.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from specbench_kit.core.errors import SkitError, require, valid_choices
from specbench_kit.core.typed_json import Amount, JsonObject, Rate, convert, shown

T = TypeVar("T")
Size = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Factor = Annotated[float, Meta(gt=0, le=100)]
"""A factor on a time."""
_UnitShare = Annotated[float, Meta(ge=0, le=1)]
Table = JsonObject
"""A table of a TOML file that anybody may write, before a struct says what it holds."""
_NOT_SECONDS: dict[str, Any] = {
    "tile": Rate,
    "corner": Annotated[float, Meta(ge=1, le=100)],
    "missed": _UnitShare,
    "overlap": _UnitShare,
    "uneven": Annotated[float, Meta(ge=0, le=100)],
    "window": Amount,
}
"""The types of coefficients that are no seconds. A tile is a number of tokens: without any it could
not be filled.
"""
Text = Annotated[str, Meta(min_length=1)]


def read_toml(path: Path) -> Table:
    """Return the content of a TOML file; raise SkitError if it cannot be read or is damaged."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SkitError(f"{path} is not valid TOML: {error}") from error


def read_card(path: Path) -> tuple[str, Table]:
    """Return the name and the fields of the card in a file of one's own.

    Its fields stand at the top, or below a name in brackets as in the bundled files; without a name
    it is the file's. Raise SkitError if there are several cards.
    """
    content = read_toml(path)
    named = {name: fields for name, fields in content.items() if isinstance(fields, dict)}
    if not content or len(named) < len(content):
        return path.stem, content
    if len(named) > 1:
        raise SkitError(f"{path} holds several cards, {', '.join(named)}: keep one in each file")
    ((name, fields),) = named.items()
    return name, fields


def parse_table(kind: type[T], table: Table, label: str) -> T:
    """Return the record of type `kind`, a dataclass or a struct, that a TOML table holds.

    Raise SkitError if a key is unknown or missing, or a value is wrong. The message starts with
    `label`, which names the file and the table.
    """
    _require_known_keys(table, list(signature(kind).parameters), label)
    try:
        return convert(kind, table)
    except ValueError as error:
        raise SkitError(f"{label}: {error}") from error


def _require_known_keys(table: Table, valid_keys: Sequence[str], label: str) -> None:
    if unknown_keys := sorted(table.keys() - set(valid_keys)):
        raise SkitError(
            f"{label} has unknown keys: {', '.join(unknown_keys)}; known: {', '.join(valid_keys)}"
        )


def parse_coefficients(
    forms: Mapping[str, Sequence[str]],
    table: Table,
    label: str,
    *,
    not_given: Iterable[str] = (),
    defaults: Mapping[str, float] | None = None,
) -> tuple[str, dict[str, float]]:
    """Return the form of a latency model and its coefficients by name, from a TOML table that holds
    both.

    `forms` names the coefficients of every form. Those in `not_given` have to be absent, those in `defaults` may be.
    """
    form = table.get("form")
    if not isinstance(form, str) or form not in forms:
        raise SkitError(f"{label}: form must be {' or '.join(map(repr, forms))}, not {shown(form)}")
    names = [name for name in forms[form] if name not in not_given]
    numbers = {**(defaults or {}), **{key: value for key, value in table.items() if key != "form"}}
    _require_known_keys(numbers, names, label)
    coefficients: dict[str, float] = {}
    for name in names:
        require(name in numbers, f"{label}: {name} is missing")
        try:
            coefficients[name] = convert(_NOT_SECONDS.get(name, Amount), numbers[name])
        except ValueError as error:
            raise SkitError(f"{label}: {str(error).replace('the document', name, 1)}") from error
    # A form all of whose seconds may be left out has others: those of its kernels.
    needs_time = any(name not in (defaults or {}) for name in coefficients)
    if needs_time and not any(
        value for name, value in coefficients.items() if name not in _NOT_SECONDS
    ):
        raise SkitError(
            f"{label}: all coefficients are 0, so that no forward would take any time; give one above 0"
        )
    return form, coefficients


def names_a_file(name: str) -> bool:
    """Return whether a name on the command line is the path of a TOML file."""
    return name.endswith(".toml")


LISTED = {
    "GPU": "devices",
    "architecture": "architectures",
    "profile": "profiles",
    "deployment": "deployments",
    "software": "software",
}
"""What `skit list` calls the kinds of names that it lists."""


def unknown_name(kind: str, name: str, valid_names: Iterable[str], hint: str = "") -> SkitError:
    """Return the error for a name that is not among the valid ones; `hint` follows their list."""
    listed = LISTED.get(kind)
    choices = valid_choices(name, valid_names, listed and f"skit list {listed}")
    return SkitError(f"unknown {kind} '{name}'{choices}{hint}")

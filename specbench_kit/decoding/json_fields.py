"""Fields of a record as a JSON object holds them, checked against the record's annotations."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from math import isnan
from typing import Any, Literal, get_args, get_origin, get_type_hints

NOTHING = type(None)
SHOWN = 40
"""Characters of a wrong value that a message repeats."""
TOO_LARGE = 2**63
LONGEST = 1e15
"""Beyond every duration, so that sums and squares are numbers too."""
WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "an object",
    NOTHING: "null",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may hold: `types` itself, `items` its elements if it is a list, and `choices` if only these."""

    types: frozenset[Any]
    items: frozenset[Any] = frozenset()
    choices: tuple[Any, ...] = ()

    @classmethod
    def of(cls, hint: Any, may_be_null: bool) -> "Kind":
        """The kind of an annotation; of a list that may be null, the elements may be."""
        null = {NOTHING} if may_be_null else set()
        if get_origin(hint) is Literal:
            return cls(frozenset([str]), choices=get_args(hint))
        if get_origin(hint) in (list, tuple):  # JSON has lists alone
            return cls(frozenset([list]), items=_types(get_args(hint)[0]) | null)
        if get_origin(hint) is dict:
            return cls(frozenset([dict]) | null)
        return cls(_types(hint) | null)

    def holds(self, value: Any) -> bool:
        """Whether a value is of this kind; true and false are no numbers."""
        if type(value) not in self.types:
            return False
        if self.items:
            return self.items.issuperset(map(type, value))
        return not self.choices or value in self.choices

    def __str__(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = " or ".join(_words(self.types))
        return f"{words} of {' or '.join(_words(self.items))}" if self.items else words


def parse(line: str | bytes) -> Any:
    """What a line of JSON holds; NaN, infinities and endless nesting are a ValueError."""
    try:
        return json.loads(line, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def checked(record: Any, found: Any, nullable: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of the dataclass `record` that an object has; others, which a newer kit added, are passed over.

    A field that is missing, of a wrong kind or a negative whole number is a ValueError that names it. `nullable` are
    fields that may be null, or hold null if they are lists.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"expected an object, not {shown(found)}")
    known = {}
    for name, (kind, required) in _kinds(record, nullable).items():
        if name not in found:
            if required:
                raise ValueError(f"{name} is missing")
            continue
        value = known[name] = found[name]
        if not kind.holds(value):
            raise ValueError(f"{name} must be {kind}, not {shown(value)}")
        if type(value) is int and not 0 <= value < TOO_LARGE:
            raise ValueError(f"{name} must be from 0 to 2^63 - 1, not {shown(value)}")
        if any(isinstance(one, float) and not abs(one) < LONGEST for one in _items(value)):
            raise ValueError(f"{name} must be below {LONGEST:g}, not {shown(value)}")
    return known


def all_checked(record: Any, found: list[Any], nullable: tuple[str, ...] = ()) -> bool:
    """Whether `checked` would take each of these objects as it is, all with the same fields and no others.

    Looks at them field by field, which takes a tenth of the time; False says no more than that one has to look closer.
    """
    kinds = _kinds(record, nullable)
    if set(map(type, found)) != {dict}:
        return False
    names = found[0].keys()
    required = {name for name, (_, needed) in kinds.items() if needed}
    if not required <= names <= kinds.keys() or any(one.keys() != names for one in found):
        return False
    return all(_hold([one[name] for one in found], kinds[name][0]) for name in names)


def _hold(values: list[Any], kind: Kind) -> bool:
    """Whether all values are of a kind that is no choice, and all numbers among them of one type and in range."""
    types = set(map(type, values))
    if kind.choices or not types <= kind.types:
        return False
    if kind.items:
        values = [item for value in values if value for item in value]
        types = set(map(type, values))
        if not types <= kind.items:
            return False
    if NOTHING in types:
        values = [value for value in values if value is not None]
        types.remove(NOTHING)
    if types == {float}:
        # The sum shows a NaN, which min and max may pass over.
        return bool(min(values) > -LONGEST and max(values) < LONGEST) and not isnan(sum(values))
    if types == {int}:
        return bool(min(values) >= 0 and max(values) < TOO_LARGE)
    return not types & {int, float}


def shown(value: Any) -> str:
    """A value as its file has it, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else (value,)


@cache
def _kinds(record: Any, nullable: tuple[str, ...]) -> dict[str, tuple[Kind, bool]]:
    """Every field's kind, and whether it has no default."""
    hints = get_type_hints(record)
    return {
        field.name: (
            Kind.of(hints[field.name], field.name in nullable),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(record)
    }


def _types(hint: Any) -> frozenset[Any]:
    """The types that JSON gives for an annotation: a float may be written as a whole number."""
    parts = (dict,) if get_origin(hint) is dict else get_args(hint) or (hint,)
    return frozenset([*parts, int]) if float in parts else frozenset(parts)


def _words(types: Collection[Any]) -> list[str]:
    return [word for one, word in WORDS.items() if one in types and not (one is int and float in types)]

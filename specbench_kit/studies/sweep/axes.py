"""The axes of a sweep: fields of a deployment such as `link.rtt_s`, options of methods such as
`fixed-k.k`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.fields import Value, parse_value
from specbench_kit.methods.base import methods

Values = Mapping[str, Value]
"""One value per axis, by the key of the axis."""
DRAFT = "draft."
"""Prefix of keys that are options of a synthetic draft model."""


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """A key and its values: numbers in rising order, other values in the given order."""

    key: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(set(self.values)) < len(self.values):
            raise SkitError(f"--set {self.key}: a value is given twice")
        if self.numbers:
            object.__setattr__(self, "values", tuple(sorted(self.values, key=float)))

    @property
    def numbers(self) -> list[float]:
        """Return the values as numbers, or an empty list if any of them is not a number."""
        numbers = [
            value
            for value in self.values
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        return [float(value) for value in numbers] if len(numbers) == len(self.values) else []

    @property
    def method(self) -> str | None:
        """Return the method whose option this is, or None for a field of the deployment."""
        name = self.key.partition(".")[0]
        return name if name in methods.all() else None

    @property
    def of_draft(self) -> bool:
        """Return True for an option of a synthetic draft model."""
        return self.key.startswith(DRAFT)


def parse_axes(texts: Sequence[str], proposed: Mapping[str, Sequence[Value]]) -> list[SweepAxis]:
    """Return the axes of `key=value,value,...` texts, those with several values first.

    If no text has several values, the axes that the deployment proposes are added.
    """
    axes = []
    for text in texts:
        key, equals, listed = text.partition("=")
        values = [value.strip() for value in listed.split(",")]
        if not (equals and key.strip() and all(values)):
            raise SkitError(
                f"--set needs a key and values, as in link.rtt_s=0.01,0.02,0.04, not '{text}'"
            )
        name = key.strip()
        axes.append(SweepAxis(name, tuple(parse_value(name, value) for value in values)))
    if len({axis.key for axis in axes}) < len(axes):
        raise SkitError("a key is given twice: put all its values into one --set")
    if not any(len(axis.values) > 1 for axis in axes):
        keys = {axis.key for axis in axes}
        axes += [
            SweepAxis(key, tuple(options)) for key, options in proposed.items() if key not in keys
        ]
    if not any(len(axis.values) > 1 for axis in axes):
        raise SkitError(
            "nothing to sweep over: give --set with several values, as in link.rtt_s=0.01,0.02,0.04"
        )
    return sorted(axes, key=lambda axis: len(axis.values) == 1)


def points(axes: Sequence[SweepAxis]) -> Iterator[Values]:
    """Yield every combination of values; deployments change less often than options of methods."""
    ordered = sorted(axes, key=lambda axis: axis.method is not None)
    for combination in product(*(axis.values for axis in ordered)):
        yield dict(zip((axis.key for axis in ordered), combination, strict=True))

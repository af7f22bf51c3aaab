"""What a sweep varies: fields of a deployment such as `link.rtt_s`, options of methods such as `fixed-k.k`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.fields import Value, parse_value
from specbench_kit.methods.base import methods

Values = Mapping[str, Value]
DRAFT = "draft."


@dataclass(frozen=True, slots=True)
class SweepAxis:
    """A key and its values: numbers in rising order, others as they were given."""

    key: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(set(self.values)) < len(self.values):
            raise SkitError(f"--set {self.key}: a value is given twice")
        if self.numbers:
            object.__setattr__(self, "values", tuple(sorted(self.values, key=float)))

    @property
    def numbers(self) -> list[float]:
        """Its values as points on a line; none where they are not all numbers."""
        numbers = [value for value in self.values if isinstance(value, int | float) and not isinstance(value, bool)]
        return [float(value) for value in numbers] if len(numbers) == len(self.values) else []

    @property
    def method(self) -> str | None:
        """The method whose option it is; None for a field of the deployment."""
        name = self.key.partition(".")[0]
        return name if name in methods.all() else None

    @property
    def of_draft(self) -> bool:
        """Whether it is an option of a synthetic draft model."""
        return self.key.startswith(DRAFT)


def parse_axes(texts: Sequence[str], proposed: Mapping[str, Sequence[Value]]) -> list[SweepAxis]:
    """`key=value,value,...` each; where nothing is varied, what the deployment proposes is."""
    axes = [_parse_axis(text) for text in texts]
    if len({axis.key for axis in axes}) < len(axes):
        raise SkitError("a key is given twice: put all its values into one --set")
    if not any(len(axis.values) > 1 for axis in axes):
        axes += [SweepAxis(key, tuple(values)) for key, values in proposed.items() if key not in {a.key for a in axes}]
    if not any(len(axis.values) > 1 for axis in axes):
        raise SkitError("nothing to sweep over: give --set with several values, as in link.rtt_s=0.01,0.02,0.04")
    return sorted(axes, key=lambda axis: len(axis.values) == 1)


def points(axes: Sequence[SweepAxis]) -> Iterator[Values]:
    """Every combination of values; deployments change more slowly than options of methods."""
    ordered = sorted(axes, key=lambda axis: axis.method is not None)
    for combination in product(*(axis.values for axis in ordered)):
        yield dict(zip((axis.key for axis in ordered), combination, strict=True))


def with_options(spec: str, values: Values) -> str:
    """A method's spec with the options that the values name."""
    name, _, tail = spec.partition(":")
    options = dict(item.partition("=")[::2] for item in filter(None, tail.split(",")))
    prefix = f"{name}."
    options |= {key.removeprefix(prefix): str(value) for key, value in values.items() if key.startswith(prefix)}
    written = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}:{written}" if written else name


def _parse_axis(text: str) -> SweepAxis:
    key, equals, listed = text.partition("=")
    values = [value.strip() for value in listed.split(",")]
    if not (equals and key.strip() and all(values)):
        raise SkitError(f"--set needs a key and values, as in link.rtt_s=0.01,0.02,0.04, not '{text}'")
    return SweepAxis(key.strip(), tuple(map(parse_value, values)))

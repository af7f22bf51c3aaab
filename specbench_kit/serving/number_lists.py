"""Lists of numbers on the command line."""

from collections.abc import Callable, Sequence

from specbench_kit.core.errors import SkitError

Numbers = tuple[float, ...]


def counts_of(flag: str) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of `20`, `10,20,40`, or `10:100:30` (10, 40, 70 and 100), whose errors name
    the flag.
    """

    def parse(text: str) -> tuple[int, ...]:
        try:
            return tuple(number for part in text.split(",") for number in _count_range(part))
        except ValueError:
            raise SkitError(
                f"{flag} takes numbers such as 20, 10,20,40 or from:to:step such as 10:100:10, not '{text}'"
            ) from None

    return parse


parse_devices = counts_of("--devices")


def numbers_of(flag: str) -> Callable[[str], Numbers]:
    """Return a parser of numbers with commas between them, whose errors name the flag."""

    def parse(text: str) -> Numbers:
        try:
            return tuple(map(float, text.split(",")))
        except ValueError:
            raise SkitError(
                f"{flag} takes numbers with commas between them, not '{text}'"
            ) from None

    return parse


def _count_range(part: str) -> Sequence[int]:
    first, *bounds = map(int, part.split(":"))
    if not bounds:
        return (first,)
    last, step = bounds if len(bounds) == 2 else (bounds[0], 1)
    if step < 1 or last < first or len(bounds) > 2:
        raise ValueError
    return range(first, last + 1, step)

"""Options of an experiment with one input moved to another value."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.core.errors import SkitError

Fields = Mapping[str, Any]


def moved(options: Fields, key: str, value: Any) -> dict[str, Any]:
    """`key` is an option, `option.key` one within its specs, `series.NAME.option`, or a field of the deployment."""
    head, _, tail = key.partition(".")
    if not tail:
        return {**options, key: _alike(options.get(key), value)}
    if head == "series":
        series, name = options["series"], _series_named(options["series"], tail)
        inner = tail.removeprefix(f"{name}.")
        chosen = series if name == "*" else {name: series[name]}
        return {**options, "series": {**series, **{n: moved(one, inner, value) for n, one in chosen.items()}}}
    if head in options and isinstance(options[head], str | list):
        return {**options, head: _in_specs(options[head], tail, value)}
    return {**options, "replaced": [*options.get("replaced", []), f"{key}={value}"]}


def _series_named(series: Fields, tail: str) -> str:
    """The one that `tail` begins with; its name may have dots."""
    found = [name for name in ("*", *series) if tail.startswith(f"{name}.")]
    if not found:
        known = ", ".join(series)
        raise SkitError(f"series.{tail}: write series.NAME.option, or series.*.option; the series: {known}")
    return max(found, key=len)


def _alike(before: Any, value: Any) -> Any:
    """A value of the kind that stood there: a list of it, or a text."""
    if isinstance(before, list):
        return [_alike(before[0], value)]
    return str(value) if isinstance(before, str) else value


def _in_specs(specs: Any, key: str, value: Any) -> Any:
    """Of those specs that have such a key."""
    if isinstance(specs, list):
        return [_in_specs(one, key, value) for one in specs]
    name, _, tail = specs.partition(":")
    pairs = dict(item.partition("=")[::2] for item in tail.split(",")) if tail else {}
    if key not in pairs:
        return specs
    return f"{name}:" + ",".join(f"{k}={value if k == key else v}" for k, v in pairs.items())

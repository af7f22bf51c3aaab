"""What a run's method was set to: short beside its name, and whole in a table of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.nested import flat
from specbench_kit.reports.formatting import ABSENT
from specbench_kit.reports.markup import code, table

Fields = Mapping[str, Any]

FEW = 2
"""Options beside a name, unless more were given: tables and legends have little room."""


def label(run: Fields) -> str:
    """`fixed-k (k=4)`: what was given and, up to a few, what else is set; without known options the spec as it is."""
    spec, options = str(run["method"]), run.get("options")
    if not options:
        return spec
    name, _, tail = spec.partition(":")
    given = [item.partition("=")[0] for item in tail.split(",") if item]
    others = [key for key, value in options.items() if key not in given and value not in (None, False)]
    chosen = {*given, *others[: max(0, FEW - len(given))]}
    shown = [_setting(key, value) for key, value in options.items() if key in chosen]
    more = ["…"] if len(others) + len(given) > len(shown) else []
    return f"{name} ({', '.join([*shown, *more])})" if shown else name


def settings(run: Fields) -> str:
    """Every option with its value, in one line; nothing where the run does not say."""
    return ", ".join(_setting(key, value) for key, value in (run.get("options") or {}).items())


def findings(run: Fields) -> str:
    """What the method was made ready with: predictor, threshold, profile, by dotted name."""
    return ", ".join(_setting(name, value) for name, value in flat(run.get("uses") or {}).items())


def section(runs: Sequence[Fields]) -> str:
    """A table of the methods' options and of what they found, each setting once."""
    known = [run for run in runs if run.get("options") or run.get("uses")]
    rows = [(code(str(run["method"])), settings(run) or ABSENT, findings(run) or ABSENT) for run in known]
    return f"## Methods\n\n{table(['method', 'options', 'made ready with'], list(dict.fromkeys(rows)))}" if rows else ""


def _setting(key: str, value: Any) -> str:
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """A value as a spec has it."""
    if isinstance(value, list):
        return "-".join(map(_text, value))
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)

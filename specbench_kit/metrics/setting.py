"""What a run was set to, in few words: its method, its sampling, its deployment."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.core.nested import flat

Fields = Mapping[str, Any]

FEW = 2
"""Options beside a name, unless more were given: tables and legends have little room."""


def method_label(run: Fields) -> str:
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


def describe_options(run: Fields) -> str:
    """Every option with its value, in one line; nothing where the run does not say."""
    return ", ".join(_setting(key, value) for key, value in (run.get("options") or {}).items())


def describe_inputs(run: Fields) -> str:
    """What the method was made ready with: predictor, threshold, profile, by dotted name."""
    return ", ".join(_setting(name, value) for name, value in flat(run.get("uses") or {}).items())


def sampling_sentence(config: Fields) -> str:
    """Greedy, or the sampling parameters that are set."""
    if config.get("temperature", 0) is None:
        return "sampling not stated"
    if not config.get("temperature"):
        return "greedy"
    limits = [f", {name.replace('_', '-')} {config[name]:g}" for name in ("top_p", "top_k") if config.get(name)]
    return f"temperature {config['temperature']:g}{''.join(limits)}, seed {config.get('seed')}"


def deployment_name(run: Fields) -> str | None:
    """Of the deployment that time is modelled on."""
    name: str | None = (run.get("deployment") or {}).get("name")
    return name


def _setting(key: str, value: Any) -> str:
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """A value as a spec has it."""
    if isinstance(value, list):
        return "-".join(map(_text, value))
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)

"""Draft limits that were left at their defaults, fitted to what a trace holds."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import init_fields
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method, with_option
from specbench_kit.runs.document import LoweredOption, RunFields
from specbench_kit.traces.trace import TraceHeader


def fit_spec(spec: str, header: TraceHeader) -> str:
    """Return the spec with a default limit that is beyond the trace's drafts lowered to their
    length.

    A limit that the spec itself states is left as it is, and the replay refuses it where it is too
    large.
    """
    limit = lowered_limit(spec, header)
    return spec if limit is None else with_option(spec, limit["option"], limit["lowered"])


def lowered_limit(spec: str, header: TraceHeader) -> LoweredOption | None:
    """Return what `fit_spec` lowers; None if the limit is stated in the spec or within what the
    trace holds.
    """
    method = parse_method(spec)
    option = type(method).draft_limit
    stated = {item.partition("=")[0] for item in spec.partition(":")[2].split(",")}
    default = next((field.default for field in fields(method) if field.name == option), None)
    # Looked-up tokens do not come from the trace's drafts, and may be more.
    if option in stated or not method.drafting.models or not isinstance(default, int):
        return None
    if default <= header.max_draft and (method.longest_chain or 0) <= header.max_draft:
        return None
    shorter = range(min(default, header.max_draft), 0, -1)
    fitting = (value for value in shorter if _fits(with_option(spec, option, value), header))
    return {"option": option, "default": default, "lowered": next(fitting, header.max_draft)}


def _fits(spec: str, header: TraceHeader) -> bool:
    try:
        return (parse_method(spec).longest_chain or 0) <= header.max_draft
    except SkitError:  # shorter than the method drafts at least
        return False


def shorter_drafts(method: Method, longest: int) -> str:
    """Return what to do, in words, so that drafts have at most `longest` tokens."""
    numbers = {option.name: getattr(method, option.name) for option in init_fields(type(method))}
    beyond = sorted(
        name for name, value in numbers.items() if type(value) is int and value > longest
    )
    # A method that does not say which of its options limits a draft may have one that is called
    # otherwise.
    named = type(method).draft_limit
    option = named if isinstance(numbers.get(named), int) else next(iter(beyond), None)
    if option is not None:
        fitting = (
            value for value in range(longest, 0, -1) if _keeps_to(method, option, value, longest)
        )
        most = next(fitting, longest)
        if numbers[option] > most:
            return f"set {option} to {most} or less"
    return "take another method"


def _keeps_to(method: Method, option: str, value: int, longest: int) -> bool:
    try:
        changed: dict[str, Any] = {option: value}
        return (replace(method, **changed).longest_chain or 0) <= longest
    except SkitError:  # less than the option may be
        return False


def lowered_limits(specs: Iterable[str], header: TraceHeader) -> RunFields:
    """Return the part `lowered_limits` of `run.json`, by spec; empty if no limit is lowered."""
    lowered = {spec: limit for spec in specs if (limit := lowered_limit(spec, header)) is not None}
    return {"lowered_limits": lowered} if lowered else {}

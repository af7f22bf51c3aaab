"""Read `name:key=value,key=value` into a method with checked options."""

from math import isfinite
from typing import Any

from specbench_kit.methods.base import Method, methods
from specbench_kit.specs import given_fields, parse_spec


def parse_method(spec: str) -> Method:
    """The method a spec names; unknown names, unknown keys and bad values are errors that list what is valid."""
    method = parse_spec(spec, methods)
    method.require_drafter()
    return method


def resolved_options(spec: str) -> dict[str, Any]:
    """Every option of the method that a spec names, given or by default, as JSON can hold it."""
    method = parse_method(spec)
    return {field.name: _plain(getattr(method, field.name)) for field in given_fields(method)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value

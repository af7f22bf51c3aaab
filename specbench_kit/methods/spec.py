"""Read `name:key=value,key=value` into a method with checked options."""

from math import isfinite
from typing import Any

from specbench_kit.core.specs import init_fields, parse_spec
from specbench_kit.methods.base import Method, methods


def parse_method(spec: str) -> Method:
    """The method a spec names; unknown names, unknown keys and bad values are errors that list what is valid."""
    method = parse_spec(spec, methods)
    method.require_drafter()
    return method


def resolved_options(spec: str) -> dict[str, Any]:
    """Every option of the method that a spec names, as JSON can hold it; the drafter only where it is not the usual."""
    method = parse_method(spec)
    options = {field: getattr(method, field.name) for field in init_fields(method)}
    # what every method has, as the drafter, goes without saying where it is left as it comes: older runs say nothing
    said = {field: value for field, value in options.items() if not field.kw_only or value != field.default}
    return {field.name: _plain(value) for field, value in said.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value

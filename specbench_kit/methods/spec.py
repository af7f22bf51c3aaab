"""Read `name:key=value,key=value` into a method with checked options."""

from specbench_kit.methods.base import Method, methods
from specbench_kit.specs import parse_spec


def parse_method(spec: str) -> Method:
    """The method a spec names; unknown names, unknown keys and bad values are errors that list what is valid."""
    return parse_spec(spec, methods)

"""Reading a method's spec, `name:key=value,key=value`, into a method with checked options."""

import importlib.util
import sys
from hashlib import sha256
from math import isfinite
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues
from specbench_kit.core.specs import init_fields, parse_spec
from specbench_kit.methods.base import Method, methods
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunFields

OWN = __name__.partition(".")[0]
"""The package of the kit's own methods."""


def parse_method(spec: str) -> Method:
    """Return the method of a spec; raise SkitError, with the valid choices, for unknown names, keys
    and bad values.
    """
    method = parse_spec(spec, methods)
    method.require_drafter()
    return method


def with_options(spec: str, values: OptionValues) -> str:
    """Return the spec of a method with the options whose keys begin with the method's name."""
    name, _, tail = spec.partition(":")
    options = dict(item.partition("=")[::2] for item in filter(None, tail.split(",")))
    prefix = f"{name}."
    options |= {
        key.removeprefix(prefix): str(value)
        for key, value in values.items()
        if key.startswith(prefix)
    }
    joined = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}:{joined}" if joined else name


def known_class(spec: str) -> type[Method] | None:
    """Return the class of a spec's method; None for one of another tool, or of somebody's own that
    is not installed.
    """
    return methods.all().get(spec.partition(":")[0])


def known_method(spec: str) -> Method | None:
    """Return the method of a spec; None where this kit does not know it, or not with these
    options.
    """
    try:
        return parse_method(spec)
    except SkitError:
        return None


def resolved_options(spec: str) -> OptionValues:
    """Return every option of a spec's method, as JSON can hold it; the drafter only if it is not
    the default.
    """
    method = parse_method(spec)
    options = {field: getattr(method, field.name) for field in init_fields(method)}
    # Keyword-only options are those that every method has; at their default they are left out.
    recorded = {
        field: value
        for field, value in options.items()
        if not field.kw_only or value != field.default
    }
    return {field.name: _plain(value) for field, value in recorded.items()}


def with_option(spec: str, key: str, value: object) -> str:
    """Return the spec with one option set, after the options that it states."""
    name, _, options = spec.partition(":")
    stated = [item for item in options.split(",") if item and item.partition("=")[0] != key]
    return f"{name}:{','.join([*stated, f'{key}={value}'])}"


def describe_method(spec: str, method: Method) -> RunFields:
    """Return what `run.json` says of a method: its spec and resolved options without local folders,
    and its inputs.

    `proposal` is there if it takes the most probable tokens where others draw theirs from the drafter's distribution,
    and the hash of its source if it comes from another package: of the kit's own the version and the commit tell.
    """
    options = {
        name: provenance.without_folders(value) if isinstance(value, str) else value
        for name, value in {**resolved_options(spec), **method.chosen_options()}.items()
    }
    uses = method.uses()
    takes: RunFields = (
        {"proposal": "top"}
        if method.proposal == "top" and method.uses_drafter and method.drafting.drawn
        else {}
    )
    is_own = type(method).__module__.partition(".")[0] == OWN
    return {
        "method": provenance.without_folders(spec),
        "options": options,
        **takes,
        **({"uses": uses} if uses else {}),
        **({} if is_own else {"method_source": source_hash(type(method))}),
    }


def source_hash(kind: type[Method]) -> str:
    """Return the hash of the Python files that define a method: its module, and all of a package of
    its own.
    """
    module = sys.modules[kind.__module__]
    files = [Path(module.__file__ or "")]
    root = kind.__module__.partition(".")[0]
    if root != OWN and (spec := importlib.util.find_spec(root)) is not None:
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        files = sorted(file for folder in folders for file in folder.rglob("*.py")) or files
    return sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value

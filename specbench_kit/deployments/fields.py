"""Replaces fields of a deployment by their dotted names, as `--set` gives them."""

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.deployments.profiles import find_profile
from specbench_kit.profilers.base import COEFFICIENTS

Value = str | int | float | bool


def parse_field(text: str) -> tuple[str, Value]:
    """Return the name and the value in `key=value`."""
    key, equals, value = text.partition("=")
    if not (equals and key.strip() and value.strip()):
        raise SkitError(f"--set needs a key and a value, as in link.rtt_s=0.04, not '{text}'")
    return key.strip(), parse_value(value)


def parse_value(text: str) -> Value:
    """Return a value that is written as in TOML; a text needs no quotes."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return value if isinstance(value, str | int | float | bool) else text.strip()


def replace_fields(content: JsonObject, values: Mapping[str, Value], folder: Path) -> JsonObject:
    """Return a copy of a deployment's content with other values; `folder` is where its profiles are looked up.

    A new profile replaces the coefficients of an endpoint, and new coefficients its profile.
    """
    copy = deepcopy(dict(content))
    for key, value in values.items():
        *sections, last = key.split(".")
        endpoint = copy.get(sections[0], {}) if sections else {}
        if sections[1:] == ["coefficients"] and isinstance(endpoint, dict) and "profile" in endpoint:
            # One coefficient is replaced, so the others have to be spelled out.
            profile = find_profile(endpoint.pop("profile"), folder, f"--set {key}")
            if profile.kernels is not None:
                raise SkitError(
                    f"--set {key}: the profile '{profile.name}' holds measured kernels, which have no coefficients; "
                    f"set {sections[0]}.host_s, host_request_s or overlap, or another profile"
                )
            zeros = dict.fromkeys(COEFFICIENTS[profile.form], 0.0)
            endpoint["coefficients"] = {"form": profile.form, **zeros, **profile.coefficients}
        table = copy
        for name in sections:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise SkitError(f"--set {key}: {name} holds no fields")
        table[last] = value
        if last == "profile":
            table.pop("coefficients", None)
    return copy

"""Fields of a deployment by their dotted names, as `--set` gives them."""

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.profiles import find_profile
from specbench_kit.profilers.base import COEFFICIENTS

Value = str | int | float | bool


def parse_field(text: str) -> tuple[str, Value]:
    """`key=value`."""
    key, equals, value = text.partition("=")
    if not (equals and key.strip() and value.strip()):
        raise SkitError(f"--set needs a key and a value, as in link.rtt_s=0.04, not '{text}'")
    return key.strip(), parse_value(value)


def parse_value(text: str) -> Value:
    """A value as TOML writes it; a text needs no quotes."""
    try:
        found = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        found = text.strip()
    return found if isinstance(found, str | int | float | bool) else text.strip()


def replace_fields(content: Mapping[str, Any], values: Mapping[str, Value], folder: Path) -> dict[str, Any]:
    """A copy with other values; a profile makes way for coefficients and the other way round."""
    copy = deepcopy(dict(content))
    for key, value in values.items():
        *sections, last = key.split(".")
        if sections[1:] == ["coefficients"]:
            _spell_out(copy.get(sections[0], {}), folder, key)
        table = _table(copy, sections, key)
        table[last] = value
        if last == "profile":
            table.pop("coefficients", None)
    return copy


def _spell_out(endpoint: dict[str, Any], folder: Path, key: str) -> None:
    """Replace a profile by its coefficients, so that one of them can be changed."""
    if "profile" in endpoint:
        profile = find_profile(endpoint.pop("profile"), folder, f"--set {key}")
        zeros = dict.fromkeys(COEFFICIENTS[profile.form], 0.0)
        endpoint["coefficients"] = {"form": profile.form, **zeros, **profile.coefficients}


def _table(content: dict[str, Any], sections: list[str], key: str) -> dict[str, Any]:
    for name in sections:
        content = content.setdefault(name, {})
        if not isinstance(content, dict):
            raise SkitError(f"--set {key}: {name} holds no fields")
    return content

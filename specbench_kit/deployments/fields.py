"""Replaces fields of a deployment by their dotted names, as `--set` gives them."""

import re
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import IMPOSSIBLE, Endpoint
from specbench_kit.profilers import cards, loading
from specbench_kit.profilers.base import COEFFICIENTS, Profile, Role
from specbench_kit.profilers.cards import Table
from specbench_kit.profilers.devices import Device, bundled_device
from specbench_kit.profilers.roofline import judge
from specbench_kit.profilers.software import KERNELS, describe

Value = str | int | float | bool


def parse_field(text: str) -> tuple[str, Value]:
    """Return the name and the value in `key=value`."""
    key, equals, value = text.partition("=")
    if not (equals and key.strip() and value.strip()):
        raise SkitError(f"--set needs a key and a value, as in link.rtt_s=0.04, not '{text}'")
    return key.strip(), parse_value(key.strip(), value)


def parse_value(key: str, text: str) -> Value:
    """Return the value of a field, written as in TOML; a text needs no quotes, and seconds may be
    given as in 40ms.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    if key.endswith("_s") and (match := DURATION.fullmatch(str(value))):
        value = float(match[1]) * SECONDS[match[2]]
    if key == "link.rtt_s" and isinstance(value, int | float) and value >= LONGEST_RTT_S:
        raise SkitError(
            f"--set {key}={text.strip()} is a round trip of {value:g} s: write {value:g}ms if it is meant"
        )
    return value if isinstance(value, str | int | float | bool) else text.strip()


SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
DURATION = re.compile(rf"([0-9.]+)\s*({'|'.join(SECONDS)})")
"""A duration with its unit."""
LONGEST_RTT_S = 10.0
"""Seconds from which on a round trip is taken to have been written in milliseconds."""


def replace_fields(content: Table, values: Mapping[str, Value], folder: Path) -> Table:
    """Return a copy of a deployment's content with other values; `folder` is where its profiles are
    looked up.

    A new profile replaces the coefficients of an endpoint, and new coefficients its profile.
    """
    copy = deepcopy(dict(content))
    for key, value in values.items():
        *sections, last = key.split(".")
        endpoint = copy.get(sections[0], {}) if sections else {}
        if (
            sections[1:] == ["coefficients"]
            and isinstance(endpoint, dict)
            and "profile" in endpoint
        ):
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


def find_profile(
    name: str, folder: Path, label: str, role: Role | None = None, software: str = KERNELS
) -> Profile:
    """Return the profile of that name, or the one in a .toml file, relative to the deployment's
    folder; one that is derived has the `role`, at the speed of the `software`.
    """
    name = str(folder / name) if cards.names_a_file(name) else name
    try:
        return loading.load(name, role=role, software=software)
    except SkitError as error:
        raise SkitError(f"{label}: {error}") from error


def endpoint_of(profile: Profile, card: Device, price_per_hour: float = 0.0) -> Endpoint:
    """Return the endpoint that a derived profile describes, on one card of that kind or on all that
    share the model.
    """
    members = profile.tensor_parallel
    return Endpoint(
        device=f"{members} x {card.title}" if members > 1 else card.title,
        latency=profile.latency(),
        price_per_hour=price_per_hour,
        origin=origin(profile),
        power_w=power_of(profile),
        range=profile.range(),
    )


def power_of(profile: Profile) -> float:
    """Return the watts of a profile's device, of all its cards together; 0 if its card states
    none.
    """
    card = profile.device_card or bundled_device(profile.device)
    return card.power_w * profile.tensor_parallel if card else 0.0


def origin(profile: Profile) -> str:
    """Return the source of a profile's numbers, with a warning if its device cannot be so fast or
    should be faster.
    """
    parts = [f"profile {profile.name}, {profile.source}"]
    if profile.source == "silicon":
        parts.append(f"stands for {profile.software}")
    elif profile.software:
        parts.append(f"stands for {describe(profile.software, profile.device)}")
    if profile.reference:
        parts.append(profile.reference)
    if profile.not_given:
        parts.append(
            f"taken as 0 because the source does not give them: {', '.join(profile.not_given)}"
        )
    if profile.disturbances:
        parts.append(f"DISTURBED MACHINE: {', '.join(profile.disturbances)}")
    verdict = judge(profile)
    if verdict.kind == "impossible":
        parts.append(IMPOSSIBLE)
    if verdict.slow:
        parts.append(
            f"SLOW: {max(verdict.slow.values()):.0f} times the least that its device needs for some batches"
        )
    return "; ".join(parts)

"""Latency profiles on disk: bundled ones, the user's own, and those in any TOML file."""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs, to_builtins

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.typed_json import shown
from specbench_kit.core.user_data import user_folder
from specbench_kit.profilers import cards
from specbench_kit.profilers.base import COEFFICIENTS, DEFAULTS, Form, Profile, Role
from specbench_kit.profilers.cards import Table
from specbench_kit.profilers.software import KERNELS
from specbench_kit.runs.folder import write_text

if TYPE_CHECKING:
    import torch

PUBLISHED = Path(__file__).with_name("published")
DERIVED = Path(__file__).with_name("derived")
"""Profiles of the deployments that ship with the kit: from measured kernels or from data sheets."""


def data_folder() -> Path:
    """Return the folder of the user's own profiles."""
    return user_folder("profiles")


def load(
    name: str,
    *,
    model_hash: str | None = None,
    role: Role | None = None,
    software: str = KERNELS,
) -> Profile:
    """Return the profile of that name, the one in a .toml file, or the one that is derived for a
    name such as `MODEL@GPU` or `MODEL@2xGPU`, in a `role` and at the speed of a `software`.

    Raise SkitError if it was measured with a model whose hash is not `model_hash`; None accepts
    every model.
    """
    if cards.names_a_file(name):
        profile = read(Path(name).expanduser())
    else:
        profiles = all_profiles()
        if name not in profiles and (derived := _derived(name, role, software)):
            return derived
        if name not in profiles:
            raise cards.unknown_name("profile", name, profiles, HINT)
        entry = profiles[name]
        if isinstance(entry, SkitError):
            raise entry
        profile = entry
    if model_hash is not None and profile.model_hash not in (None, model_hash):
        raise SkitError(
            f"the profile '{profile.name}' was measured with another model ({profile.model}): "
            "profile this one with 'skit profile-verifier' or 'skit profile-drafter'"
        )
    return profile


HINT = (
    ", or give a .toml file, or an architecture and a device card, as in qwen3-32b@h100 or "
    "eagle3:llama3.3-70b@4xh100"
)


def _derived(name: str, role: Role | None, software: str) -> Profile | None:
    """Return the profile of a model on a card, or on several that share it, from measured kernels
    where the kit has them, else from the data sheet; None if the name states no card.

    Without a `role`, a drafter that is derived from a target drafts, and every other model verifies.
    """
    from specbench_kit.profilers.derived_run import shared_profile
    from specbench_kit.profilers.devices import find_device
    from specbench_kit.profilers.subject import find_subject
    from specbench_kit.profilers.variants import VARIANTS, split_variant

    match = re.fullmatch(r"(.+)@(?:([1-9]\d{0,2})x)?([^@]+)", name)
    if match is None:
        return None
    variant = split_variant(match[1])
    drafts = variant is not None and VARIANTS[variant[0]].drafts
    return shared_profile(
        find_device(match[3]),
        int(match[2] or 1),
        find_subject(match[1], "target"),
        role or ("drafter" if drafts else "verifier"),
        software=software,
    )


def all_profiles() -> dict[str, Profile | SkitError]:
    """Return the bundled and the user's own profiles by name; for an unusable file, the error by
    the file's name.
    """
    profiles: dict[str, Profile | SkitError] = {}
    for path in [
        file
        for folder in (PUBLISHED, DERIVED, data_folder())
        for file in sorted(folder.glob("*.toml"))
    ]:
        try:
            profile = read(path)
            profiles[profile.name] = profile
        except SkitError as error:
            profiles[path.stem] = error
    return profiles


def find_measured(
    model_hash: str,
    role: Role,
    device: "str | torch.device",
    *,
    form: Form | None = None,
    disturbed: bool = False,
) -> Profile | None:
    """Return the newest profile of these weights that was measured on this machine's device, or
    None.

    A profile that was measured while the machine was disturbed counts only if its use was forced,
    or if `disturbed` is true.
    """
    from specbench_kit.models.pair import resolve_device
    from specbench_kit.profilers.measurement import hardware_text

    hardware = hardware_text(resolve_device(str(device)))
    matching = [
        profile
        for profile in all_profiles().values()
        if isinstance(profile, Profile)
        and (profile.source, profile.role, profile.model_hash) == ("measured", role, model_hash)
        and profile.hardware == hardware
        and form in (None, profile.form)
        and (disturbed or not profile.must_be_named)
    ]
    return max(matching, key=lambda profile: profile.date, default=None)


def read(path: Path) -> Profile:
    """Return the profile in a TOML file; raise SkitError with the file and the key if it is
    damaged.
    """
    # The file's time is part of the cache key: a file that was written again is read again.
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


@cache
def _read(path: Path, _modified_ns: int) -> Profile:
    """Return the profile in a file, parsed once, since deployments name the same profiles again and
    again.
    """
    content = cards.read_toml(path)
    label = f"the profile {path}"
    require(
        "form" not in content, f"{label} has unknown keys: form; it belongs into [coefficients]"
    )
    table = content.get("coefficients")
    require(table is not None, f"{label}: coefficients is missing; add a table [coefficients]")
    if not isinstance(table, dict) or not isinstance(not_given := table.get("not_given", []), list):
        raise SkitError(
            f"{label}: coefficients must be a table, and its not_given a list, not {shown(table)}"
        )
    numbers = {key: value for key, value in table.items() if key != "not_given"}
    form, coefficients = cards.parse_coefficients(
        COEFFICIENTS,
        numbers,
        f"{label}, [coefficients]",
        not_given=not_given,
        defaults=DEFAULTS.get(str(numbers.get("form"))),
    )
    profile = cards.parse_table(
        Profile, {**content, "form": form, "coefficients": coefficients}, label
    )
    test = profile.fit.get("test", {})
    readable = isinstance(test, Mapping) and isinstance(test.get("r2"), float | int | None)
    require(readable, f"{label}: fit.test must be a table, and its r2 a number; remove [fit]")
    require(
        profile.source != "published" or bool(profile.reference),
        f"{label} is published and lacks its reference: name the paper with its table or equation",
    )
    return profile


def save(path: Path, profile: Profile) -> None:
    """Write a profile, over an older one if there is one."""
    import tomli_w

    content = {
        name: to_builtins(value) if isinstance(value, Struct) or is_dataclass(value) else value
        for name, value in structs.asdict(profile).items()
    }
    coefficients = {"form": content.pop("form"), **profile.coefficients}
    if profile.not_given:
        coefficients["not_given"] = list(profile.not_given)
    write_text(path, tomli_w.dumps(_without_empty({**content, "coefficients": coefficients})))


def _without_empty(table: Table) -> Table:
    """Return a table without null, which TOML does not have, and without empty texts and tables."""
    filled = {
        key: _without_empty(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
    }
    return {key: value for key, value in filled.items() if value not in (None, "", {})}

"""Profiles on disk: bundled ones, the user's own, and any file."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.user_data import user_folder
from specbench_kit.profilers import architectures, cards, devices
from specbench_kit.profilers.base import COEFFICIENTS, ROLES, SOURCES, Form, Profile, Role
from specbench_kit.runs.folder import write_text

if TYPE_CHECKING:
    import torch

BUNDLED = Path(__file__).with_name("published")
REQUIRED = ("name", "role", "device", "model", "dtype", "source", "coefficients")
_CARDS = ("architecture", "device_card")
MOST_CARDS = 1024
_PARSED = (*_CARDS, "form", "coefficients")


def data_folder() -> Path:
    """The user's profiles."""
    return user_folder("profiles")


def load(name: str, *, model_hash: str | None = None) -> Profile:
    """The profile in a .toml file, or of that name; one measured on other weights than `model_hash` is refused."""
    profile = read(Path(name).expanduser()) if cards.names_a_file(name) else _by_name(name)
    if model_hash is not None and profile.model_hash not in (None, model_hash):
        raise SkitError(
            f"the profile '{profile.name}' was measured with another model ({profile.model}): "
            "profile this one with 'skit profile-verifier' or 'skit profile-drafter'"
        )
    return profile


def all_profiles() -> dict[str, Profile | SkitError]:
    """Every bundled profile and the user's own by name; a file that cannot be used by its own name, with why."""
    found: dict[str, Profile | SkitError] = {}
    for path in [file for folder in (BUNDLED, data_folder()) for file in sorted(folder.glob("*.toml"))]:
        try:
            profile = read(path)
            found[profile.name] = profile
        except SkitError as error:
            found[path.stem] = error
    return found


def find_measured(
    model_hash: str, role: Role, device: "str | torch.device", *, form: Form | None = None, disturbed: bool = False
) -> Profile | None:
    """The newest profile of these weights that was measured on this machine's device, if there is one.

    One that `skit bench` measured while the machine was disturbed counts only if `disturbed`.
    """
    from specbench_kit.models.pair import resolve_device
    from specbench_kit.profilers.measurement import hardware_text

    hardware = hardware_text(resolve_device(str(device)))
    fitting = [
        profile
        for profile in all_profiles().values()
        if isinstance(profile, Profile)
        and (profile.source, profile.role, profile.model_hash) == ("measured", role, model_hash)
        and profile.hardware == hardware
        and form in (None, profile.form)
        and (disturbed or not profile.fit.get("disturbed"))
    ]
    return max(fitting, key=lambda profile: profile.date, default=None)


def read(path: Path) -> Profile:
    """The profile in a file; one line says what is wrong with it."""
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


@cache
def _read(path: Path, changed_ns: int) -> Profile:
    """A file is read once as long as it stays as it is: deployments name the same profiles again and again."""
    del changed_ns  # another time is another entry of the cache
    content = cards.read_toml(path)
    place = f"the profile {path}"
    allowed = [one.name for one in fields(Profile) if one.name != "form"]
    cards.require_keys(content, REQUIRED, allowed, place)
    for key, choices in (("role", ROLES), ("source", SOURCES)):
        if content[key] not in choices:
            raise SkitError(f"{place}: {key} must be {' or '.join(choices)}, not {content[key]!r}")
    if content["source"] == "published" and not content.get("reference"):
        raise SkitError(f"{place} is published and lacks its reference: name the paper with its table or equation")
    form, coefficients = _coefficients(content["coefficients"], place)
    if (members := content.get("tensor_parallel", 1)) not in range(1, MOST_CARDS + 1):
        raise SkitError(f"{place}: tensor_parallel must be a whole number from 1 to {MOST_CARDS}, not {members!r}")
    plain = {key: value for key, value in content.items() if key not in _PARSED}
    return Profile(
        **plain,
        form=form,
        coefficients=coefficients,
        architecture=_optional(content, "architecture", architectures.parse_architecture, place),
        device_card=_optional(content, "device_card", devices.parse_device, place),
    )


def save(path: Path, profile: Profile) -> None:
    """Write a profile, over an older one if there is one."""
    import tomli_w

    write_text(path, tomli_w.dumps(_without_none(_describe(profile))))


def _by_name(name: str) -> Profile:
    known = all_profiles()
    if name not in known:
        raise cards.unknown_name("profile", name, known, ", or a .toml file")
    found = known[name]
    if isinstance(found, SkitError):
        raise found
    return found


def _coefficients(table: Any, place: str) -> tuple[Form, dict[str, float]]:
    if not isinstance(table, dict) or table.get("form") not in COEFFICIENTS:
        raise SkitError(f"{place}: [coefficients] needs form = {' or '.join(map(repr, COEFFICIENTS))}")
    form: Form = table["form"]
    absent = table.get("not_given", [])
    given = {key: value for key, value in table.items() if key not in ("form", "not_given")}
    wanted = [name for name in COEFFICIENTS[form] if name not in absent]
    cards.require_keys(given, wanted, wanted, f"{place}, [coefficients]")
    cards.require_numbers(given, f"{place}, which would have time fall with more work")
    if not any(given.values()):
        raise SkitError(f"{place}: all coefficients are 0, so that no forward would take any time")
    return form, {name: float(given[name]) for name in wanted}


def _optional(content: Mapping[str, Any], key: str, parse: Any, place: str) -> Any:
    return parse(content[key], f"{place}, [{key}]") if key in content else None


def _describe(profile: Profile) -> dict[str, Any]:
    """A profile as TOML holds it."""
    coefficients: dict[str, Any] = {"form": profile.form, **profile.coefficients}
    if profile.not_given:
        coefficients["not_given"] = list(profile.not_given)
    plain = {one.name: getattr(profile, one.name) for one in fields(Profile) if one.name not in _PARSED}
    plain |= {key: card.describe() for key in _CARDS if (card := getattr(profile, key)) is not None}
    return {**plain, "coefficients": coefficients}


def _without_none(content: Any) -> Any:
    """TOML has no null, and empty texts and tables say nothing."""
    if isinstance(content, Mapping):
        kept = {key: _without_none(value) for key, value in content.items()}
        return {key: value for key, value in kept.items() if value not in (None, "", {})}
    if isinstance(content, list | tuple):
        return [_without_none(value) for value in content]
    return content

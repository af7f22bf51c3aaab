"""Finds the latency profiles that deployments name, and describes their origin."""

from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import IMPOSSIBLE
from specbench_kit.profilers import cards, loading
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.devices import bundled_device
from specbench_kit.profilers.roofline import judge
from specbench_kit.profilers.software import describe


def find_profile(name: str, folder: Path, label: str) -> Profile:
    """Return the profile of that name, or the one in a .toml file, relative to the deployment's folder."""
    try:
        return loading.load(str(folder / name) if cards.names_a_file(name) else name)
    except SkitError as error:
        raise SkitError(f"{label}: {error}") from error


def power_of(profile: Profile) -> float:
    """Return the watts of a profile's device, of all its cards together; 0 if its card states none."""
    card = profile.device_card or bundled_device(profile.device)
    return card.power_w * profile.tensor_parallel if card else 0.0


def origin(profile: Profile) -> str:
    """Return the source of a profile's numbers, with a warning if its device cannot be so fast or should be faster."""
    parts = [f"profile {profile.name}, {profile.source}"]
    if profile.source == "silicon":
        parts.append(f"stands for {profile.software}")
    elif profile.software:
        parts.append(f"stands for {describe(profile.software, profile.device)}")
    if profile.reference:
        parts.append(profile.reference)
    if profile.not_given:
        parts.append(f"taken as 0 because the source does not give them: {', '.join(profile.not_given)}")
    if profile.disturbances:
        parts.append(f"DISTURBED MACHINE: {', '.join(profile.disturbances)}")
    verdict = judge(profile)
    if verdict.kind == "impossible":
        parts.append(IMPOSSIBLE)
    if verdict.slow:
        parts.append(f"SLOW: {max(verdict.slow.values()):.0f} times the least that its device needs for some batches")
    return "; ".join(parts)

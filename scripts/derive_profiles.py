"""Derive the profiles of the deployments that ship again: `python scripts/derive_profiles.py [DATE]`.

Each file keeps its role, device, model, dtype, software and number of cards. It is derived
from measured kernels where the kit has those of its model and device, and by the law otherwise, as its name says.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.derived_run import derive
from specbench_kit.profilers.devices import bundled_device
from specbench_kit.profilers.loading import DERIVED, read, save
from specbench_kit.profilers.parts import ProfiledDevice, ProfiledPart
from specbench_kit.profilers.settings import VerifierProfileSettings
from specbench_kit.profilers.software import KERNELS, bundled_software
from specbench_kit.profilers.subject import find_subject

INTERCONNECT = "nvlink3"
"""The interconnect of every profile in the library that spreads over several cards."""


def derived_again(profile: Profile, date: str) -> Profile:
    """Return a profile of the library as it is derived today."""
    card = profile.device_card or bundled_device(profile.device)
    assert card is not None
    several = profile.tensor_parallel > 1
    settings = VerifierProfileSettings(
        target=profile.model,
        gpu=profile.device,
        dtype=profile.dtype,
        software=profile.software if profile.software in bundled_software() else KERNELS,
        cards=profile.tensor_parallel,
        interconnect=INTERCONNECT if several else None,
    )
    part = ProfiledPart(profile.role, "work", find_subject(profile.model, "target"), ())
    device = ProfiledDevice(profile.device, profile.dtype, None, card)
    return structs.replace(derive(settings, device, card, part, date).profile, note=profile.note)


def main() -> None:
    """Write every profile again, in place of the file that it was read from."""
    date = sys.argv[1] if len(sys.argv) > 1 else datetime.now(UTC).date().isoformat()
    for path in sorted(DERIVED.glob("*.toml")):
        profile = derived_again(read(path), date)
        path.unlink()
        save(Path(path.with_name(f"{profile.name}.toml")), profile)
        print(f"{path.stem} -> {profile.name}")


if __name__ == "__main__":
    main()

"""Software cards: the share of a data sheet that a serving stack achieves, and the time that it
adds to a forward.
"""

from functools import cache
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Amount
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Factor
from specbench_kit.profilers.devices import bundled_devices

KERNELS = "kernels"
"""The software card that a derived profile assumes by default."""
Share = Annotated[float, Meta(gt=0, le=1)]
"""A share of what the data sheet states."""
_FILE = Path(__file__).with_name("software.toml")


class AchievedSpeed(Struct, frozen=True, forbid_unknown_fields=True):
    """Shares of a card's peak, its bandwidth and its interconnect's, and seconds added to each
    forward and layer.

    `corner` says how far operations and traffic hide each other, 1 not at all; `wide_layer_s` are seconds per layer
    of steps in which a request has several new tokens. The host takes `launch_s` per layer and `request_s` per
    request, in parallel to the device as far as `overlap` says. Steps of up to `narrow` new tokens are computed
    vector by vector, at the share `narrow_compute` of the peak; larger ones take longer by the share `wider` of the
    time of the weights. `spread` are the factors on a time between which nine of ten measured ones lie, of a model
    or a card that the numbers were not fitted to.
    """

    compute: Share = 1.0
    bandwidth: Share = 1.0
    corner: Annotated[float, Meta(ge=1, le=100)] = 1.6
    step_s: Amount = 0.0
    layer_s: Amount = 0.0
    wide_layer_s: Amount = 0.0
    interconnect: Share = 1.0
    launch_s: Amount = 0.0
    request_s: Amount = 0.0
    overlap: Annotated[float, Meta(ge=0, le=1)] | None = None
    narrow: Annotated[int, Meta(ge=0, le=4096)] = 0
    narrow_compute: Share = 1.0
    wider: Amount = 0.0
    spread: tuple[Factor, Factor] | None = None
    source: str = ""


class Software(Struct, frozen=True):
    """The speed of a serving stack on each device in `cards`, and `anywhere`, if it is set, on all
    other devices.
    """

    name: str
    title: str
    source: str
    anywhere: AchievedSpeed | None = None
    cards: dict[str, AchievedSpeed] = {}

    def on(self, device: str) -> AchievedSpeed:
        """Return the speed on a device; raise SkitError if it is not known."""
        speed = self.cards.get(device, self.anywhere)
        if speed is None:
            raise SkitError(
                f"the speed of {self.title} on {device} is not known; known: {', '.join(self.cards)}"
            )
        return speed

    def describe_on(self, device: str) -> str:
        """Return the speed on a device in words, with its source."""
        speed = self.on(device)
        added_us = [f"{1e6 * speed.step_s:g} us a step"] * (speed.step_s > 0)
        added_us += [f"{1e6 * speed.layer_s:g} us a layer"] * (speed.layer_s > 0)
        added_us += [f"{1e6 * speed.wide_layer_s:g} us more for several tokens"] * (
            speed.wide_layer_s > 0
        )
        added_us += [f"no less than {1e6 * speed.launch_s:g} us a layer on the host"] * (
            speed.launch_s > 0
        )
        added_us += [f"{1e6 * speed.request_s:g} us a request there"] * (speed.request_s > 0)
        added_us += [
            f"a kernel that takes up to {speed.narrow} tokens one by one at {speed.narrow_compute:.0%} of the peak"
        ] * (speed.narrow > 0)
        return (
            f"{self.title}, at {speed.compute:.0%} of the peak and {speed.bandwidth:.0%} of the bandwidth and "
            f"{' and '.join(added_us) or 'nothing'} besides ({speed.source})"
        )


def describe(name: str, device: str) -> str:
    """Return the speed of a software on a device in words; the bare name if no card describes
    it.
    """
    software = bundled_software().get(name)
    return software.describe_on(device) if software else name


def find_software(name: str) -> Software:
    """Return the card of that name; an unknown name lists the known ones."""
    software = bundled_software()
    if name not in software:
        raise cards.unknown_name("software", name, software)
    return software[name]


@cache
def bundled_software() -> dict[str, Software]:
    """Return every card that ships with the kit, by name."""
    bundled = {}
    for name, card in cards.read_toml(_FILE).items():
        label = f"the software card '{name}' in {_FILE}"
        bundled[name] = cards.parse_table(Software, {"name": name, **card}, label)
        if unknown_devices := sorted(bundled[name].cards.keys() - bundled_devices().keys()):
            raise SkitError(f"{label} names devices without a card: {', '.join(unknown_devices)}")
    return bundled

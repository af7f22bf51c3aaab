"""Software cards: what part of a data sheet a serving stack reaches, and the time that it adds to each forward."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers import cards
from specbench_kit.profilers.devices import bundled_devices

FUSED = "fused"
_FILE = Path(__file__).with_name("software.toml")


@dataclass(frozen=True, slots=True)
class AchievedSpeed:
    """Shares of a card's peak, of its bandwidth and of its interconnect's, and what is added to each forward and layer.

    The host takes `launch_s` for each layer and `request_s` for each request, beside the device's work; a forward is no
    faster than either.
    """

    compute: float = 1.0
    bandwidth: float = 1.0
    step_s: float = 0.0
    layer_s: float = 0.0
    interconnect: float = 1.0
    launch_s: float = 0.0
    request_s: float = 0.0
    source: str = ""

    @property
    def is_hosted(self) -> bool:
        """Whether the host can be what a forward waits for."""
        return self.launch_s > 0 or self.request_s > 0


@dataclass(frozen=True, slots=True)
class Software:
    """`cards` are the devices on which it is known; any other is an error, unless `anywhere` says what to take."""

    name: str
    title: str
    source: str
    anywhere: AchievedSpeed | None = None
    cards: Mapping[str, AchievedSpeed] = field(default_factory=dict)

    def on(self, device: str) -> AchievedSpeed:
        """What it reaches on a device."""
        reached = self.cards.get(device, self.anywhere)
        if reached is None:
            raise SkitError(f"the speed of {self.title} on {device} is not known; known: {', '.join(self.cards)}")
        return reached

    def describe_on(self, device: str) -> str:
        """How far its speed there is known."""
        reached = self.on(device)
        added_us = [f"{1e6 * reached.step_s:g} us a step"] * (reached.step_s > 0)
        added_us += [f"{1e6 * reached.layer_s:g} us a layer"] * (reached.layer_s > 0)
        added_us += [f"no less than {1e6 * reached.launch_s:g} us a layer on the host"] * (reached.launch_s > 0)
        added_us += [f"{1e6 * reached.request_s:g} us a request there"] * (reached.request_s > 0)
        return (
            f"{self.title}, at {reached.compute:.0%} of the peak and {reached.bandwidth:.0%} of the bandwidth and "
            f"{' and '.join(added_us) or 'nothing'} besides ({reached.source})"
        )


def describe(name: str, device: str) -> str:
    """Whose speed a derived profile of a device stands for."""
    known = bundled_software().get(name)
    return known.describe_on(device) if known else name


def find_software(name: str) -> Software:
    """The card of that name; an unknown one lists the known ones."""
    known = bundled_software()
    if name not in known:
        raise cards.unknown_name("software", name, known)
    return known[name]


@cache
def bundled_software() -> dict[str, Software]:
    """Every card that ships with the kit, by name."""
    content = cards.read_toml(_FILE)
    return {name: _software(name, card, f"the software card '{name}' in {_FILE}") for name, card in content.items()}


def _software(name: str, content: Mapping[str, Any], place: str) -> Software:
    names = [one.name for one in fields(Software) if one.name != "name"]
    cards.require_keys(content, ("title", "source"), names, place)
    known = {device: _reached(card, f"{place}, {device}") for device, card in content.get("cards", {}).items()}
    anywhere = _reached(content["anywhere"], f"{place}, anywhere") if "anywhere" in content else None
    if foreign := sorted(set(known) - set(bundled_devices())):
        raise SkitError(f"{place} names devices without a card: {', '.join(foreign)}")
    return Software(name, content["title"], content["source"], anywhere, known)


def _reached(content: Mapping[str, Any], place: str) -> AchievedSpeed:
    names = [one.name for one in fields(AchievedSpeed)]
    cards.require_keys(content, ("source",), names, place)
    cards.require_numbers({key: value for key, value in content.items() if key != "source"}, place)
    for key in ("compute", "bandwidth", "interconnect"):
        if not 0 < content.get(key, 1.0) <= 1:
            raise SkitError(f"{place}: {key} is a share of the data sheet from above 0 to 1, not {content[key]:g}")
    return AchievedSpeed(**content)

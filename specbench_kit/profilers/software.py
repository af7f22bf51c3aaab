"""Software cards: what part of a data sheet a serving stack reaches, and the time that it adds to each forward."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from specbench_kit.errors import SkitError
from specbench_kit.profilers import cards
from specbench_kit.profilers.devices import bundled_devices

FUSED = "fused"
_FILE = Path(__file__).with_name("software.toml")


@dataclass(frozen=True, slots=True)
class Reached:
    """Shares of a card's peak and of its bandwidth, and where they come from."""

    compute: float = 1.0
    bandwidth: float = 1.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Software:
    """`step_s` and `layer_s` are added to a forward, once and for each layer; `cards` are the devices whose share is
    known, and on any other it counts as the whole data sheet."""

    name: str
    title: str
    source: str
    step_s: float = 0.0
    layer_s: float = 0.0
    cards: Mapping[str, Reached] = field(default_factory=dict)

    def on(self, device: str) -> Reached:
        """What it reaches on a device."""
        return self.cards.get(device, Reached())

    def describe_on(self, device: str) -> str:
        """How far its speed there is known."""
        reached = self.cards.get(device)
        if reached is None:
            return f"{self.title}, at the whole data sheet; {self.source}"
        return (
            f"{self.title}, at {reached.compute:.0%} of the peak and {reached.bandwidth:.0%} of the bandwidth "
            f"({reached.source}); {self.source}"
        )


def find_software(name: str) -> Software:
    """The card of that name; an unknown one lists the known ones."""
    known = bundled_software()
    if name not in known:
        raise cards.unknown("software", name, known)
    return known[name]


@cache
def bundled_software() -> dict[str, Software]:
    """Every card that ships with the kit, by name."""
    content = cards.read_toml(_FILE)
    return {name: _software(name, card, f"the software card '{name}' in {_FILE}") for name, card in content.items()}


def _software(name: str, content: Mapping[str, Any], place: str) -> Software:
    names = [one.name for one in fields(Software) if one.name != "name"]
    cards.require_keys(content, ("title", "source"), names, place)
    times = {key: content[key] for key in ("step_s", "layer_s") if key in content}
    cards.require_numbers(times, place)
    known = {device: _reached(card, f"{place}, {device}") for device, card in content.get("cards", {}).items()}
    if foreign := sorted(set(known) - set(bundled_devices())):
        raise SkitError(f"{place} names devices without a card: {', '.join(foreign)}")
    return Software(name, content["title"], content["source"], cards=known, **times)


def _reached(content: Mapping[str, Any], place: str) -> Reached:
    names = [one.name for one in fields(Reached)]
    cards.require_keys(content, names, names, place)
    for key in ("compute", "bandwidth"):
        cards.require_numbers({key: content[key]}, place)
        if not 0 < content[key] <= 1:
            raise SkitError(f"{place}: {key} is a share of the data sheet from above 0 to 1, not {content[key]:g}")
    return Reached(**content)

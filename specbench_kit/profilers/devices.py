"""Device cards: what a data sheet says a device can do at most."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers import cards

CPU = "cpu"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Per number, by dtype."""
_FILE = Path(__file__).with_name("devices.toml")


@dataclass(frozen=True, slots=True)
class Device:
    """Dense peaks in FLOP/s by dtype, bandwidth in bytes/s, memory in bytes; a CPU's are those of `cores` cores.

    `power_w` is what its maker says it draws at most, 0 where that is not known. `reported` are the names by which a
    driver reports exactly this device.
    """

    name: str
    title: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    peak_flops: Mapping[str, float]
    reported: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str = ""
    power_w: float = 0.0
    cores: int = field(default=1)

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    @property
    def default_dtype(self) -> str:
        """What a verifier is served in."""
        if self.is_cpu:
            return "float32"
        return next(dtype for dtype in ("bfloat16", "float16", "float32") if dtype in self.peak_flops)

    def peak(self, dtype: str) -> float:
        """FLOP/s; a dtype that the device cannot compute in is an error."""
        if dtype not in self.peak_flops:
            raise SkitError(f"{self.name} has no units for {dtype}; use {' or '.join(self.peak_flops)}")
        return self.peak_flops[dtype]

    def describe(self) -> dict[str, Any]:
        """The card, as TOML holds it."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "cores"}

    def of_cores(self, cores: int) -> "Device":
        """The card of a whole CPU; others do not come in parts."""
        if not self.is_cpu or cores == 1:
            return self
        peaks = {dtype: peak * cores for dtype, peak in self.peak_flops.items()}
        return replace(self, cores=cores, peak_flops=peaks, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * cores)

    def times(self, members: int) -> "Device":
        """So many of them, as far as they hold one model together."""
        if members == 1:
            return self
        peaks = {dtype: peak * members for dtype, peak in self.peak_flops.items()}
        memory, bandwidth = self.memory_bytes * members, self.bandwidth_bytes_per_s * members
        return replace(self, peak_flops=peaks, memory_bytes=memory, bandwidth_bytes_per_s=bandwidth)


def find_device(name: str) -> Device:
    """The card of that name or alias, or in a TOML file of one's own; an unknown name lists the known ones."""
    if cards.names_a_file(name):
        path = Path(name).expanduser()
        return parse_device({"name": path.stem, **cards.read_toml(path)}, f"the device card {path}")
    known = bundled_devices()
    for card in known.values():
        if name.lower() in (card.name, *card.aliases):
            return card
    raise cards.unknown_name("GPU", name, known, ", or a .toml file with a card of your own")


def bundled_device(name: str) -> Device | None:
    """The bundled card of that name, if there is one."""
    return bundled_devices().get(name)


def device_reported_as(name: str) -> Device | None:
    """The bundled card of the device that a driver calls so."""
    return next((card for card in bundled_devices().values() if name in card.reported), None)


@cache
def bundled_devices() -> dict[str, Device]:
    """Every card that ships with the kit, by name."""
    content = cards.read_toml(_FILE)
    return {
        name: parse_device({"name": name, **card}, f"the device card '{name}' in {_FILE}")
        for name, card in content.items()
    }


def parse_device(content: Mapping[str, Any], place: str) -> Device:
    """A card from its fields, checked."""
    wanted = ("name", "title", "memory_bytes", "bandwidth_bytes_per_s", "peak_flops")
    allowed = [one.name for one in fields(Device) if one.name != "cores"]
    cards.require_keys(content, wanted, allowed, place)
    cards.require_numbers({"memory_bytes": content["memory_bytes"]}, place)
    cards.require_numbers({"bandwidth_bytes_per_s": content["bandwidth_bytes_per_s"]}, place, least=1)
    if not isinstance(content["peak_flops"], dict) or not content["peak_flops"]:
        raise SkitError(f"{place}: peak_flops must be a table of FLOP/s by dtype")
    cards.require_keys(content["peak_flops"], (), BYTES, f"{place}, peak_flops")
    cards.require_numbers(content["peak_flops"], place, least=1)
    cards.require_numbers({"power_w": content.get("power_w", 0.0)}, place)
    lists = {key: tuple(content.get(key, ())) for key in ("reported", "aliases")}
    return Device(**{**content, **lists})

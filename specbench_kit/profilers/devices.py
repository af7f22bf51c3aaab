"""Data sheets: the most that a device can do, and the interconnects between cards that hold one
model.
"""

from functools import cache
from pathlib import Path

from msgspec import Struct, structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Amount, Rate
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Table, Text

CPU = "cpu"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per number, by dtype."""
LOW_PRECISION = ("float8", "float4")
"""Numbers that some devices multiply matrices in at a higher peak; a model is served in a dtype of
`BYTES` all the same.
"""
_FILE = Path(__file__).with_name("devices.toml")
_INTERCONNECTS = Path(__file__).with_name("interconnects.toml")
REDUCTIONS_PER_LAYER = 2
"""One all-reduce after the attention, one after the feed-forward network (Megatron-LM)."""
EXCHANGES_PER_LAYER = 2
"""One all-to-all that takes tokens to their experts, one that brings the results back (GShard)."""


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    """Dense peaks in FLOP/s by dtype, those of `LOW_PRECISION` too where there are units for them,
    bandwidth in bytes/s, memory in bytes.

    The card of a CPU is that of one core. `power_w` is the largest power draw that its maker states, 0 if unknown,
    entered on the day `power_date`.
    `reported` are the names by which a driver reports exactly this device.
    """

    name: Text
    title: Text
    memory_bytes: Amount
    bandwidth_bytes_per_s: Rate
    peak_flops: dict[str, Rate]
    reported: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    note: str = ""
    power_w: Amount = 0.0
    power_date: str = ""

    def __post_init__(self) -> None:
        known = (*BYTES, *LOW_PRECISION)
        if not self.dtypes or self.peak_flops.keys() - set(known):
            raise ValueError(
                f"peak_flops must be a table of FLOP/s for some of {', '.join(known)}, one of the "
                f"first {len(BYTES)} among them"
            )

    @property
    def power_source(self) -> str:
        """Where the power comes from; empty if it is unknown."""
        if not self.power_w:
            return ""
        return (
            f"the maker's data sheet, entered on {self.power_date}"
            if self.power_date
            else "the card's own file"
        )

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes that a model can be served in on this device."""
        return tuple(dtype for dtype in self.peak_flops if dtype in BYTES)

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    @property
    def default_dtype(self) -> str:
        """The dtype in which a verifier is served on this device by default."""
        if self.is_cpu:
            return "float32"
        return next(
            dtype for dtype in ("bfloat16", "float16", "float32") if dtype in self.peak_flops
        )

    def peak(self, dtype: str) -> float:
        """Return the peak in FLOP/s; raise SkitError for a dtype that the device cannot compute
        in.
        """
        if dtype not in self.dtypes:
            raise SkitError(f"{self.name} has no units for {dtype}; use {' or '.join(self.dtypes)}")
        return self.peak_flops[dtype]

    def with_cores(self, cores: int) -> "Device":
        """Return the card of a CPU with so many cores; a card that is no CPU's is returned as it
        is.
        """
        if not self.is_cpu or cores == 1:
            return self
        peaks = {dtype: peak * cores for dtype, peak in self.peak_flops.items()}
        return structs.replace(
            self, peak_flops=peaks, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s * cores
        )

    def combined(self, cards: int) -> "Device":
        """Return the device that so many of these cards make together if they hold one model."""
        if cards == 1:
            return self
        peaks = {dtype: peak * cards for dtype, peak in self.peak_flops.items()}
        memory = self.memory_bytes * cards
        bandwidth = self.bandwidth_bytes_per_s * cards
        return structs.replace(
            self, peak_flops=peaks, memory_bytes=memory, bandwidth_bytes_per_s=bandwidth
        )


def find_device(name: str) -> Device:
    """Return the card of that name or alias, or the one in a TOML file; an unknown name lists the
    known ones.
    """
    if cards.names_a_file(name):
        path = Path(name).expanduser()
        own, content = cards.read_card(path)
        return parse_device({"name": own, **content}, f"the device card {path}")
    devices = bundled_devices()
    for card in devices.values():
        if name.lower() in (card.name, *card.aliases):
            return card
    raise cards.unknown_name("GPU", name, devices, ", or give a .toml file with a card of your own")


def bundled_device(name: str) -> Device | None:
    """Return the bundled card of that name, or None."""
    return bundled_devices().get(name)


def device_reported_as(name: str) -> Device | None:
    """Return the bundled card of the device that a driver reports by this name, or None."""
    return next((card for card in bundled_devices().values() if name in card.reported), None)


@cache
def bundled_devices() -> dict[str, Device]:
    """Return every card that ships with the kit, by name."""
    return {
        name: parse_device({"name": name, **card}, f"the device card '{name}' in {_FILE}")
        for name, card in cards.read_toml(_FILE).items()
    }


def parse_device(content: Table, label: str) -> Device:
    """Return the card that a TOML table holds; `label` names the table in errors."""
    return cards.parse_table(Device, content, label)


class Interconnect(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes per second of one card in one direction, and the latency of an all-reduce.

    The fields that begin with `slow_` are those of the slow end of the range: of cards without peer
    access, say.
    """

    name: Text
    title: Text
    bytes_per_s: Rate
    latency_s: Amount
    slow_bytes_per_s: Rate
    slow_latency_s: Amount

    def per_byte_s(self, members: int) -> float:
        """Return the seconds per byte of a ring all-reduce: each member sends all but its own
        share, twice.
        """
        return 2 * (members - 1) / members / self.bytes_per_s

    def exchange_per_byte_s(self, members: int, experts: int) -> float:
        """Return the seconds per byte of the tokens that are sent to the members with their
        experts, and back.

        The members begin with equal shares of the tokens. A token of several `experts`, each of
        which is with any member as likely, crosses once to every other member that has one of them.
        """
        other_members = (members - 1) * (1 - (1 - 1 / members) ** experts)
        return 2 * other_members / members / self.bytes_per_s

    @property
    def slow(self) -> "Interconnect":
        """The interconnect at the slow end of its range."""
        return structs.replace(
            self, bytes_per_s=self.slow_bytes_per_s, latency_s=self.slow_latency_s
        )


@cache
def bundled_interconnects() -> dict[str, Interconnect]:
    """Return every interconnect that the kit knows, by name."""
    return {
        name: cards.parse_table(
            Interconnect, {"name": name, **entry}, f"the interconnect '{name}' in {_INTERCONNECTS}"
        )
        for name, entry in cards.read_toml(_INTERCONNECTS).items()
    }


def find_interconnect(name: str) -> Interconnect:
    """Return the interconnect of that name; an unknown name lists the known ones."""
    interconnects = bundled_interconnects()
    if name not in interconnects:
        raise cards.unknown_name("interconnect", name, interconnects)
    return interconnects[name]

"""Interconnects between the cards that hold one model, and the duration of an all-reduce over them."""

from dataclasses import dataclass

from specbench_kit.profilers import cards

REDUCTIONS_PER_LAYER = 2
"""One all-reduce after the attention, one after the feed-forward network (Megatron-LM)."""


@dataclass(frozen=True, slots=True)
class Interconnect:
    """Bytes per second of one card in one direction, as its maker states them, and the latency of an all-reduce."""

    name: str
    title: str
    bytes_per_s: float
    latency_s: float

    def per_byte_s(self, members: int) -> float:
        """Return the seconds per byte of a ring all-reduce: each member sends all but its own share, twice."""
        return 2 * (members - 1) / members / self.bytes_per_s


INTERCONNECTS = {
    interconnect.name: interconnect
    for interconnect in (
        Interconnect("nvlink3", "NVLink of an A100", 300e9, 10e-6),
        Interconnect("nvlink4", "NVLink of an H100", 450e9, 10e-6),
        Interconnect("pcie4", "PCIe 4.0 x16", 31.5e9, 20e-6),
        Interconnect("pcie3", "PCIe 3.0 x16", 15.75e9, 20e-6),
    )
}
"""Latencies are assumed: of the order that NCCL reports for small messages."""


def find_interconnect(name: str) -> Interconnect:
    """Return the interconnect of that name; an unknown name lists the known ones."""
    if name not in INTERCONNECTS:
        raise cards.unknown_name("interconnect", name, INTERCONNECTS)
    return INTERCONNECTS[name]

"""Interconnects between the cards that hold one model, and the duration of an all-reduce over them."""

from functools import cache
from pathlib import Path

from msgspec import Struct, structs

from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Amount, Rate, Text

REDUCTIONS_PER_LAYER = 2
"""One all-reduce after the attention, one after the feed-forward network (Megatron-LM)."""
EXCHANGES_PER_LAYER = 2
"""One all-to-all that takes tokens to their experts, one that brings the results back (GShard)."""
_FILE = Path(__file__).with_name("interconnects.toml")


class Interconnect(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes per second of one card in one direction, and the latency of an all-reduce.

    The fields that begin with `slow_` are those of the slow end of the range: of cards without peer access, say.
    """

    name: Text
    title: Text
    bytes_per_s: Rate
    latency_s: Amount
    slow_bytes_per_s: Rate
    slow_latency_s: Amount

    def per_byte_s(self, members: int) -> float:
        """Return the seconds per byte of a ring all-reduce: each member sends all but its own share, twice."""
        return 2 * (members - 1) / members / self.bytes_per_s

    def exchange_per_byte_s(self, members: int, experts: int) -> float:
        """Return the seconds per byte of the tokens that are sent to the members with their experts, and back.

        The members begin with equal shares of the tokens. A token of several `experts`, each of which is with any
        member as likely, crosses once to every other member that has one of them.
        """
        other_members = (members - 1) * (1 - (1 - 1 / members) ** experts)
        return 2 * other_members / members / self.bytes_per_s

    @property
    def slow(self) -> "Interconnect":
        """The interconnect at the slow end of its range."""
        return structs.replace(self, bytes_per_s=self.slow_bytes_per_s, latency_s=self.slow_latency_s)


@cache
def bundled_interconnects() -> dict[str, Interconnect]:
    """Return every interconnect that the kit knows, by name."""
    return {
        name: cards.parse_table(Interconnect, {"name": name, **entry}, f"the interconnect '{name}' in {_FILE}")
        for name, entry in cards.read_toml(_FILE).items()
    }


def find_interconnect(name: str) -> Interconnect:
    """Return the interconnect of that name; an unknown name lists the known ones."""
    interconnects = bundled_interconnects()
    if name not in interconnects:
        raise cards.unknown_name("interconnect", name, interconnects)
    return interconnects[name]

"""The servers of a pool and their outages, as options name them. Imports no simulator."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

from specbench_kit.core.errors import SkitError, require
from specbench_kit.deployments.base import Deployment
from specbench_kit.serving.memory import KvCapacity

MOST_SERVERS = 64


@dataclass(frozen=True)
class PoolServer:
    """One server: its verifier, what its own drafting takes if it drafts, and its room for KV."""

    name: str
    deployment: Deployment
    memory: KvCapacity


@dataclass(frozen=True, slots=True)
class Outage:
    """The time in which a server is away; `server` is its index in the pool, from 0 on."""

    server: int
    from_s: float
    to_s: float


def parse_servers(text: str) -> int | list[str]:
    """Return the number of equal servers that a text states, or the names of unequal ones.

    These are as in `adaspec-7b-a100=2,adaspec-7b-l40`, or cards that share the model, as in
    `4xh100,8xa100/pp4=2`.
    """
    if text.strip().lstrip("-").isdigit():
        number = int(text)
        require(
            1 <= number <= MOST_SERVERS,
            f"--servers takes from 1 to {MOST_SERVERS} servers, not {number}",
        )
        return number
    names: list[str] = []
    for part in text.split(","):
        name, equals, number_text = part.strip().partition("=")
        count = int(number_text) if number_text.isdigit() else 0 if equals else 1
        if not name or not count:
            raise SkitError(
                f"--servers takes a number of equal servers, or deployments with their verifiers and how many of each, "
                f"as in adaspec-7b-a100=2,adaspec-7b-l40, not '{text}'"
            )
        names += [name] * count
    require(
        len(names) <= MOST_SERVERS,
        f"--servers takes from 1 to {MOST_SERVERS} servers, not {len(names)}",
    )
    return names


class NamedCards(NamedTuple):
    """The cards of one server: `members` of the kind `card`, in so many pipeline `stages`."""

    members: int
    card: str
    stages: int


def named_cards(name: str) -> NamedCards | None:
    """Return the cards that a server's name such as `4xh100` or `8xh100/pp4` states; None if it is
    no such name.
    """
    match = re.fullmatch(r"([1-9]\d{0,2})x(.+?)(?:/pp([1-9]\d?))?", name)
    return NamedCards(int(match[1]), match[2], int(match[3] or 1)) if match else None


def parse_outage(text: str) -> Outage:
    """Return the outage that `SERVER:FROM:TO` names: the server's number from 1 on, and simulated
    seconds.
    """
    try:
        server_text, from_text, to_text = text.split(":")
        outage = Outage(int(server_text) - 1, float(from_text), float(to_text))
    except ValueError:
        outage = Outage(-1, inf, inf)
    if not (outage.server >= 0 and 0 <= outage.from_s < outage.to_s < inf):
        raise SkitError(
            f"--outage takes SERVER:FROM:TO, the server's number and seconds, as in 2:60:90, not '{text}'"
        )
    return outage


def availability_changes(outages: Sequence[Outage]) -> list[tuple[float, int, bool]]:
    """Return when servers fail or come back, in order: the time, the server, and whether it comes
    back.
    """
    changes = [(outage.from_s, outage.server, False) for outage in outages]
    return sorted([*changes, *((outage.to_s, outage.server, True) for outage in outages)])


def check_outages(outages: Sequence[Outage], servers: int, duration_s: float) -> None:
    """Raise SkitError if an outage is of no server, begins after the end, or overlaps another of
    the same server.
    """
    for outage in outages:
        number = outage.server + 1
        require(outage.server < servers, f"--outage: there is no server {number} of {servers}")
        require(
            outage.from_s < duration_s,
            f"--outage: server {number} fails at {outage.from_s:g} s, after the end at {duration_s:g} s",
        )
    ordered = sorted(outages, key=lambda outage: (outage.server, outage.from_s))
    for before, after in pairwise(ordered):
        require(
            before.server != after.server or before.to_s < after.from_s,
            f"--outage: server {after.server + 1} fails at {after.from_s:g} s, before it is back at {before.to_s:g} s",
        )

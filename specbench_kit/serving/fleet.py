"""The devices of a server: of one kind, or of several with their shares, each with a drafter, a link and odds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import Deployment
from specbench_kit.serving.counter_rng import Floats, Integers
from specbench_kit.serving.round_sources import ResponseStarts, RoundArrays, RoundSource

GOLDEN = (5**0.5 - 1) / 2
"""Steps of this size fill the unit interval evenly, and mix every kind into every class of promises."""


@dataclass(frozen=True)
class DeviceKind:
    """Devices of which a share of all are: drafter, link and price are the deployment's, its server counts for nothing.

    `source` is how often their drafts are accepted.
    """

    name: str
    share: float
    deployment: Deployment
    source: RoundSource


class Fleet:
    """All devices, each of its kind; arrays are [devices]."""

    def __init__(self, kinds: Sequence[DeviceKind], devices: int) -> None:
        self.kinds = kinds
        bounds = np.cumsum([kind.share for kind in kinds])[:-1]
        self.kind = np.searchsorted(bounds, (np.arange(devices) + 0.5) * GOLDEN % 1, side="right")
        """The place of each device's kind."""
        links = [kind.deployment.link for kind in kinds]
        self._rtt_s, self._jitter_s, self._up, self._down = (
            np.array([getattr(link, name) for link in links])[self.kind]
            for name in ("rtt_s", "jitter_s", "up_bytes_per_s", "down_bytes_per_s")
        )
        self.has_jitter = any(link.jitter_s for link in links)
        self.draft_bytes, self._loss, self._retry_s = (
            np.array([getattr(link, name) for link in links])[self.kind] for name in ("draft_bytes", "loss", "retry_s")
        )
        self.has_loss = any(link.loss for link in links)
        self.acceptance = np.array([kind.source.typical.acceptance for kind in kinds])[self.kind]
        self.power_w = np.array([kind.deployment.drafter.power_w for kind in kinds])[self.kind]
        self.price_per_hour = np.array([kind.deployment.drafter.price_per_hour for kind in kinds])[self.kind]

    def link(self, devices: Integers, *, up: bool) -> tuple[Floats, Floats, Floats]:
        """Round trip, jitter and bytes per second of messages in one direction."""
        return self._rtt_s[devices], self._jitter_s[devices], (self._up if up else self._down)[devices]

    def lost_s(self, devices: Integers, chance: Floats) -> Floats:
        """What a message loses to copies of it that do not arrive: as many as a random number from 0 to 1 says."""
        with np.errstate(divide="ignore"):
            lost = np.floor(np.log1p(-chance) / np.log(self._loss[devices]))
        seconds: Floats = lost * self._retry_s[devices]
        return seconds

    def begin(self, devices: Integers, chance: Floats) -> ResponseStarts:
        """A response for each, from the source of its kind."""
        if len(self.kinds) == 1:
            return self.kinds[0].source.begin(chance)
        found = np.zeros((3, len(devices)), dtype=np.int64)
        for kind, at in self._by_kind(devices):
            found[:, at] = kind.source.begin(chance[at])
        return ResponseStarts(*found)

    def rounds(self, devices: Integers, place: Integers, chance: Floats) -> tuple[RoundArrays, Integers]:
        """The next round of each, and the place of the one after it."""
        if len(self.kinds) == 1:
            return self.kinds[0].source.rounds(place, chance)
        found, after = np.zeros((4, len(devices)), dtype=np.int64), np.zeros_like(place)
        for kind, at in self._by_kind(devices):
            found[:, at], after[at] = kind.source.rounds(place[at], chance[at])
        return RoundArrays(*found), after

    def _by_kind(self, devices: Integers) -> list[tuple[DeviceKind, Integers]]:
        of = self.kind[devices]
        places = ((kind, np.flatnonzero(of == number)) for number, kind in enumerate(self.kinds))
        return [(kind, at) for kind, at in places if len(at)]


def parse_fleet(text: str) -> list[tuple[str, float, str | None]]:
    """`wisp=0.5;raspberry-pi=0.5@iid:alpha=0.6,length=4`: deployments with shares, and odds of their own."""
    found = []
    for part in text.split(";"):
        named, _, odds = part.partition("@")
        name, _, share = named.partition("=")
        try:
            found.append((name.strip(), float(share), odds.strip() or None))
        except ValueError:
            raise SkitError(
                f"--fleet takes deployments with their shares, as in wisp=0.5;raspberry-pi=0.5, not '{part}'"
            ) from None
    if any(not 0 < share <= 1 for _, share, _ in found) or abs(sum(share for _, share, _ in found) - 1) > 1e-6:
        raise SkitError(f"the shares in --fleet '{text}' must be above 0 and add up to 1")
    return found

"""The devices of one server: all of one kind, or of several kinds with their shares."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import Deployment
from specbench_kit.runs.deployment import Link
from specbench_kit.serving.arrays import Floats, Integers
from specbench_kit.serving.round_sources import ResponseStarts, RoundArrays, RoundSource

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of this, modulo 1, fill the unit interval evenly, which mixes every kind into every SLO
class.
"""


@dataclass(frozen=True)
class DeviceKind:
    """A kind that makes up `share` of all devices.

    Drafter, link and price are those of `deployment`, whose verifier is ignored; `source` has the
    rounds of its drafts.
    """

    name: str
    share: float
    deployment: Deployment
    source: RoundSource


class Fleet:
    """All devices with their kinds; attributes are arrays [devices]."""

    def __init__(self, kinds: Sequence[DeviceKind], devices: int) -> None:
        self.kinds = kinds
        bounds = np.cumsum([kind.share for kind in kinds])[:-1]
        self.kind = np.searchsorted(bounds, (np.arange(devices) + 0.5) * GOLDEN % 1, side="right")
        """Index of each device's kind."""
        links = [kind.deployment.link for kind in kinds]
        self._rtt_s, self._jitter_s = (
            self._per_device(links, "rtt_s"),
            self._per_device(links, "jitter_s"),
        )
        self._up, self._down = (
            np.array([link.up_bytes_per_s or inf for link in links])[self.kind],
            np.array([link.down_bytes_per_s or inf for link in links])[self.kind],
        )
        self._loss, self._retry_s = (
            self._per_device(links, "loss"),
            self._per_device(links, "retry_s"),
        )
        self.draft_bytes = self._per_device(links, "draft_bytes")
        self.has_jitter = any(link.jitter_s for link in links)
        self.has_loss = any(link.loss for link in links)
        self.acceptance = np.array([kind.source.typical.acceptance for kind in kinds])[self.kind]
        self.power_w = np.array([kind.deployment.drafter.power_w for kind in kinds])[self.kind]
        self.price_per_hour = np.array([kind.deployment.drafter.price_per_hour for kind in kinds])[
            self.kind
        ]

    def _per_device(self, links: Sequence[Link], field: str) -> Floats:
        values: Floats = np.array([getattr(link, field) for link in links])[self.kind]
        return values

    def link(self, devices: Integers, *, up: bool) -> tuple[Floats, Floats, Floats]:
        """Return round trip, jitter and bytes per second of messages in one direction."""
        return (
            self._rtt_s[devices],
            self._jitter_s[devices],
            (self._up if up else self._down)[devices],
        )

    def retransmission_s(self, devices: Integers, uniform: Floats) -> Floats:
        """Return the delay of one message per device by lost copies, whose number is geometric in
        the link's loss.
        """
        with np.errstate(divide="ignore"):
            lost_copies = np.floor(np.log1p(-uniform) / np.log(self._loss[devices]))
        seconds: Floats = lost_copies * self._retry_s[devices]
        return seconds

    def begin(self, devices: Integers, uniform: Floats) -> ResponseStarts:
        """Start one response per device, from the source of its kind."""
        if len(self.kinds) == 1:
            return self.kinds[0].source.begin(uniform)
        starts = np.zeros((3, len(devices)), dtype=np.int64)
        for kind, index in self._by_kind(devices):
            starts[:, index] = kind.source.begin(uniform[index])
        return ResponseStarts(*starts)

    def rounds(
        self, devices: Integers, cursor: Integers, uniform: Floats
    ) -> tuple[RoundArrays, Integers]:
        """Return the next round of each device and the cursors behind it, from the source of its
        kind.
        """
        if len(self.kinds) == 1:
            return self.kinds[0].source.rounds(cursor, uniform)
        rounds = np.zeros((len(RoundArrays._fields), len(devices)), dtype=np.int64)
        cursors = np.zeros_like(cursor)
        for kind, index in self._by_kind(devices):
            rounds[:, index], cursors[index] = kind.source.rounds(cursor[index], uniform[index])
        return RoundArrays(*rounds), cursors

    def _by_kind(self, devices: Integers) -> list[tuple[DeviceKind, Integers]]:
        kind_of = self.kind[devices]
        groups = (
            (kind, np.flatnonzero(kind_of == number)) for number, kind in enumerate(self.kinds)
        )
        return [(kind, index) for kind, index in groups if len(index)]


def parse_fleet(text: str) -> list[tuple[str, float, str | None]]:
    """Return (deployment, share, acceptance or None) of every kind in a text.

    The text is as in `wisp=0.5;raspberry-pi=0.5@iid:alpha=0.6,length=4`.
    """
    kinds = []
    for part in text.split(";"):
        deployment, _, acceptance = part.partition("@")
        name, _, share = deployment.partition("=")
        try:
            kinds.append((name.strip(), float(share), acceptance.strip() or None))
        except ValueError:
            raise SkitError(
                f"--fleet takes deployments with their shares, as in wisp=0.5;raspberry-pi=0.5, not '{part}'"
            ) from None
    if (
        any(not 0 < share <= 1 for _, share, _ in kinds)
        or abs(sum(share for _, share, _ in kinds) - 1) > 1e-6
    ):
        raise SkitError(f"the shares in --fleet '{text}' must be above 0 and add up to 1")
    return kinds

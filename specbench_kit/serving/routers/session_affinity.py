"""The same server for all responses of a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from specbench_kit.serving.routers.base import Route, RoutedServer, Router, routers
from specbench_kit.serving.schedulers.waiting import WaitingRound


@routers.register("session-affinity")
@dataclass(frozen=True)
class SessionAffinity(Router):
    """Gives all responses of a device to one server, by a hash of both, whatever the servers have
    to do.

    While that server is away, the device's responses go to the one that is second by the hash;
    other devices stay.
    """

    source = "highest random weight (Thaler and Ravishankar 1998)"

    def routing(self) -> Route:
        return self._route

    def _route(self, request: WaitingRound, servers: Sequence[RoutedServer], now_s: float) -> int:
        weights = [weight(request.client, server.index) for server in servers]
        return weights.index(max(weights))


def weight(client: int, server: int) -> bytes:
    """Return how much a device prefers a server, by a hash of both."""
    return sha256(f"{client}/{server}".encode()).digest()

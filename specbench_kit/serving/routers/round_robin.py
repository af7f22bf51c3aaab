"""Servers in turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.serving.routers.base import Route, RoutedServer, Router, routers
from specbench_kit.serving.schedulers.waiting import WaitingRound


@routers.register("round-robin")
@dataclass(frozen=True)
class RoundRobin(Router):
    """Gives each response, or each round with `per_round`, to the next server, whatever the servers
    have to do.
    """

    per_round: bool = False
    source = "baseline"

    def routing(self) -> Route:
        return _Turns().route


class _Turns:
    def __init__(self) -> None:
        self._last = -1

    def route(self, request: WaitingRound, servers: Sequence[RoutedServer], now_s: float) -> int:
        place = next(
            (place for place, server in enumerate(servers) if server.index > self._last), 0
        )
        self._last = servers[place].index
        return place

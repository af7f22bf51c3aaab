"""The server that is expected to answer first."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.serving.routers.base import Route, RoutedServer, Router, least, routers
from specbench_kit.serving.schedulers.waiting import WaitingRound


@routers.register("shortest-expected-time")
@dataclass(frozen=True)
class ShortestExpectedTime(Router):
    """Chooses by a server's work and the time that this round takes there, its KV rebuilt where
    that is missing.

    So an idle slow server does not take what a busy fast one would finish sooner, and with
    `per_round` a session moves only where that pays.
    """

    per_round: bool = False
    source = "shortest expected delay"

    def routing(self) -> Route:
        return self._route

    def _route(self, request: WaitingRound, servers: Sequence[RoutedServer], now_s: float) -> int:
        return least(
            [server.work_s(request, now_s) + server.round_s(request) for server in servers]
        )

"""The server with the least work."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench_kit.serving.routers.base import Route, RoutedServer, Router, least, routers
from specbench_kit.serving.schedulers.waiting import WaitingRound


@routers.register("least-work")
@dataclass(frozen=True)
class LeastWork(Router):
    """Chooses the server that is through first with its batch and one more round of each of its
    sessions.
    """

    per_round: bool = False
    source = "join the least work left"

    def routing(self) -> Route:
        return self._route

    def _route(self, request: WaitingRound, servers: Sequence[RoutedServer], now_s: float) -> int:
        return least([server.work_s(request, now_s) for server in servers])

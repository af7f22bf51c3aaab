"""A pool of servers behind a router: which server has which session, and what happens when one fails.

A response belongs to the server that its router chose, until it ends, the server fails, or a router that is asked at
every round moves it. The KV of a session that leaves a server is dropped there and computed again on the next one.
"""

from collections import deque
from collections.abc import Sequence
from math import inf

from specbench_kit.serving.devices import Devices
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.simulated_server import SimulatedServer


class ServerPool:
    """All servers, and the sessions on them.

    By server, `moved` counts the sessions whose KV it dropped because the router moved them, and `lost` those whose KV
    it lost when it failed.
    """

    def __init__(self, scenario: Scenario, servers: Sequence[SimulatedServer], devices: Devices) -> None:
        router = scenario.make_router()
        self.moved, self.lost = [0] * len(servers), [0] * len(servers)
        self.unrouted: list[WaitingRound] = []
        """Rounds that wait at the router while no server is up."""
        self._route = router.routing()
        self._per_round = router.per_round
        self._servers = servers
        self._devices = devices
        self._up = list(servers)
        self._home: dict[int, SimulatedServer] = {}
        """The server of each response under way, by client."""
        self._to_decide: set[int] = set()
        """Indices of the servers about which something has changed since their schedulers were asked."""
        outages = scenario.outages
        changes = [(outage.from_s, outage.server, False) for outage in outages]
        changes += [(outage.to_s, outage.server, True) for outage in outages]
        self._changes = deque(sorted(changes))

    @property
    def next_s(self) -> float:
        """When a batch ends, a scheduler wants to be asked again, or a server fails or comes back."""
        change_s = self._changes[0][0] if self._changes else inf
        return min([change_s, *(server.next_s for server in self._up)])

    def complete(self, now_s: float) -> int:
        """End the batches that end now; return how many."""
        ended = [(server, batch) for server in self._up for batch in server.in_flight if batch.ended_s <= now_s]
        for server, batch in ended:
            answers = server.complete(batch)
            self._to_decide.add(server.index)
            if answers is None:
                continue
            clients, answered = answers
            for client in clients[answered.rows["ends"] > 0].tolist():
                server.sessions.discard(client)
                del self._home[client]
            self._devices.expect_next_rounds(clients)
        return len(ended)

    def change_availability(self, now_s: float) -> None:
        """Let servers fail and come back whose time it is."""
        while self._changes and self._changes[0][0] <= now_s:
            _, index, comes_back = self._changes.popleft()
            server = self._servers[index]
            if comes_back:
                server.overhead.restart(now_s)
                self._up = [other for other in self._servers if other in self._up or other is server]
                waiting, self.unrouted = self.unrouted, []
                self.receive(waiting, now_s)
            else:
                self._fail(server, now_s)

    def _fail(self, server: SimulatedServer, now_s: float) -> None:
        """Take a server away: its sessions lose their KV, and its rounds go to the router again."""
        self._up.remove(server)
        for client in server.sessions:
            self.lost[server.index] += bool(self._devices.cached[client])
            self._devices.evict(client)
            del self._home[client]
        requests = server.fail(now_s)
        for request in requests:
            request.lose_kv()
            request.scheduled = False
        self.receive(requests, now_s)

    def receive(self, requests: Sequence[WaitingRound], now_s: float) -> None:
        """Hand rounds to the servers of their sessions, or to those that the router chooses, one after the other."""
        if not self._up:
            self.unrouted += requests
            return
        for request in requests:
            client = request.client
            server = home = self._home.get(client)
            if server is None or self._per_round:
                server = self._up[self._route(request, self._up, now_s)]
            if home is not None and home is not server:
                self._leave(home, request)
            self._home[client] = server
            server.sessions.add(client)
            server.receive([request])
            self._to_decide.add(server.index)

    def _leave(self, home: SimulatedServer, request: WaitingRound) -> None:
        """Drop a session's KV on the server that it leaves, so that all of it has to be computed on the next one."""
        self.moved[home.index] += request.cached > 0
        self._devices.evict(request.client)
        request.lose_kv()
        home.release(request.client)
        self._to_decide.add(home.index)

    def decide(self, now_s: float) -> None:
        """Ask the schedulers of servers that have room for a batch if something has changed, or if they want to be."""
        for server in self._up:
            asked = server.index in self._to_decide or server.retry_s <= now_s
            if asked and server.has_room and server.waiting:
                server.decide(now_s)
        self._to_decide.clear()

"""The event loop: devices send rounds, a server or a pool of them verifies them in batches, answers
go back.
"""

from collections import deque
from collections.abc import Sequence
from math import inf

from specbench_kit.core.errors import require
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.deployments.base import Deployment
from specbench_kit.serving.arrays import Integers
from specbench_kit.serving.devices import Devices
from specbench_kit.serving.execution import BatchExecution, RoundDrafting, VerificationOnly
from specbench_kit.serving.native_core import NativeCore, native_core
from specbench_kit.serving.pool_spec import availability_changes
from specbench_kit.serving.result import PoolCounts, ResultRecorder, SimulationResult
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.schedulers.waiting import WaitingRound
from specbench_kit.serving.simulated_server import SimulatedServer
from specbench_kit.serving.traced_drafts import TracedDrafts


def simulate(scenario: Scenario, seed: int = 0, *, native: bool = True) -> SimulationResult:
    """Return everything that happens in a scenario; identical for equal seeds on every machine.

    It is the same without `native`, the compiled event loop, but takes longer.
    """
    return Simulation(scenario, seed, native=native).run(scenario.duration_s)


class Simulation:
    """Devices and the server that verifies their rounds, or a pool of servers; `run` goes on where
    it stopped.

    Devices are arrays, and so is what they do. Only a round that waits at the server is an object,
    which schedulers see. Between two batches of a single server nothing happens on it, so that the
    loop steps from batch to batch: arrivals during a batch are taken together at its end. Routers
    go by what servers have to do at the moment, so that a pool takes every arrival at its own time;
    so does a pipeline, which has room for a batch while others are under way. A compiled loop does
    the same where it knows all parts of the scenario.
    """

    def __init__(self, scenario: Scenario, seed: int, *, native: bool = True) -> None:
        self._devices = Devices(scenario, seed)
        self._recorder = ResultRecorder(self._devices)
        servers = [
            SimulatedServer(
                scenario,
                server,
                index,
                self._devices,
                _execution(scenario, server.deployment, self._devices),
                self._recorder,
                seed,
            )
            for index, server in enumerate(scenario.pool)
        ]
        self._server = servers[0]
        self._pool = ServerPool(scenario, servers, self._devices) if scenario.has_pool else None
        self._servers = servers
        self._events = 0
        self._core = native_core(scenario, servers, self._devices) if native else None

    def run(self, until_s: float) -> SimulationResult:
        """Return everything that happens up to `until_s`, or until nothing is left to do.

        Events at the same moment happen in this order: a batch ends and its answers leave, rounds
        arrive by device number, the scheduler decides. So a round that arrives just then can be in
        the next batch. In a pool, servers fail and come back after batches have ended.
        """
        with gc_paused():
            if self._core is not None:
                return self._run_native(self._core, until_s)
            if self._pool is None:
                self._run_alone(self._server, until_s)
            else:
                self._run_pool(self._pool, until_s)
            return self._result(until_s)

    def _run_alone(self, server: SimulatedServer, until_s: float) -> None:
        while (now_s := self._next_s(server)) <= until_s:
            if (batch := server.batch) is not None:
                # Rounds that arrived during the batch were there before the memory that it frees,
                # so they are admitted first.
                self._receive(server, self._devices.arrived(batch.ended_s, before=True))
                server.complete(batch)
                self._events += 1
            self._receive(server, self._devices.arrived(now_s))
            if server.waiting:
                server.decide(now_s)
        self._receive(server, self._devices.arrived(until_s))

    def _next_s(self, server: SimulatedServer) -> float:
        """Return when the server is free to decide and has something new to decide about."""
        if server.batch is not None:
            return server.batch.ended_s
        next_s = min(float(self._devices.arrives_s.min()), server.retry_s)
        return next_s if next_s >= server.overhead.free_s else server.overhead.free_s

    def _receive(self, server: SimulatedServer, devices: Integers) -> None:
        if len(devices):
            self._events += len(devices)
            server.receive(self._devices.take_arrived(devices))

    def _run_pool(self, pool: "ServerPool", until_s: float) -> None:
        while (now_s := min(float(self._devices.arrives_s.min()), pool.next_s)) <= until_s:
            self._events += pool.complete(now_s)
            pool.change_availability(now_s)
            arrived = self._devices.arrived(now_s)
            if len(arrived):
                self._events += len(arrived)
                pool.receive(self._devices.take_arrived(arrived), now_s)
            pool.decide(now_s)

    def _run_native(self, core: NativeCore, until_s: float) -> SimulationResult:
        figures = core.run(until_s)
        servers = figures.servers
        idle_s = sum(until_s - each.idle_since_s for each in servers if each.idle_since_s < inf)
        moved, lost = tuple(each.moved for each in servers), tuple(each.lost for each in servers)
        return self._recorder.result(
            until_s,
            figures.unanswered,
            refusals=sum(each.refusals for each in servers),
            idle_waiting_s=sum(each.idle_waiting_s for each in servers) + idle_s,
            evictions=sum(each.evictions for each in servers),
            peak_kv_tokens=max(each.peak_kv_tokens for each in servers),
            events=figures.events,
            pool=PoolCounts(moved, lost) if self._pool else None,
            kept=core.tables(figures),
        )

    def _result(self, end_s: float) -> SimulationResult:
        servers = self._servers
        at_server = [request for server in servers for request in server.unanswered]
        idle_s = sum(end_s - server.idle_since_s for server in servers if server.idle_since_s < inf)
        pool = self._pool
        return self._recorder.result(
            end_s,
            [request.client for request in [*at_server, *(pool.unrouted if pool else ())]],
            refusals=sum(server.refusals for server in servers),
            idle_waiting_s=sum(server.idle_waiting_s for server in servers) + idle_s,
            evictions=sum(server.memory.evictions for server in servers),
            peak_kv_tokens=max(server.memory.peak for server in servers),
            events=self._events,
            pool=PoolCounts(tuple(pool.moved), tuple(pool.lost)) if pool else None,
        )


class ServerPool:
    """Servers behind a router: which server has which session, and what happens when one fails.

    A response belongs to the server that its router chose, until it ends, the server fails, or a
    router that is asked at every round moves it. The KV of a session that leaves a server is
    dropped there and computed again on the next one. By server, `moved` counts the sessions whose
    KV it dropped because the router moved them, and `lost` those whose KV it lost when it failed.
    """

    def __init__(
        self, scenario: Scenario, servers: Sequence[SimulatedServer], devices: Devices
    ) -> None:
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
        """Indices of the servers about which something has changed since their schedulers were
        asked.
        """
        self._changes = deque(availability_changes(scenario.outages))

    @property
    def next_s(self) -> float:
        """When a batch ends, a scheduler wants to be asked again, or a server fails or comes
        back.
        """
        change_s = self._changes[0][0] if self._changes else inf
        return min([change_s, *(server.next_s for server in self._up)])

    def complete(self, now_s: float) -> int:
        """End the batches that end now; return how many."""
        ended = [
            (server, batch)
            for server in self._up
            for batch in server.in_flight
            if batch.ended_s <= now_s
        ]
        for server, batch in ended:
            answers = server.complete(batch)
            self._to_decide.add(server.index)
            if answers is None:
                continue
            clients, answered = answers
            for client in clients[answered.rows.ends > 0].tolist():
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
                self._up = [
                    other for other in self._servers if other in self._up or other is server
                ]
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
        """Hand rounds to the servers of their sessions, or to those that the router chooses, one
        after the other.
        """
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
        """Drop a session's KV on the server that it leaves, so that all of it has to be computed on
        the next one.
        """
        self.moved[home.index] += request.cached > 0
        self._devices.evict(request.client)
        request.lose_kv()
        home.release(request.client)
        self._to_decide.add(home.index)

    def decide(self, now_s: float) -> None:
        """Ask the schedulers of servers that have room for a batch if something has changed, or if
        they want to be.
        """
        for server in self._up:
            asked = server.index in self._to_decide or server.retry_s <= now_s
            if asked and server.has_room and server.waiting:
                server.decide(now_s)
        self._to_decide.clear()


def _execution(scenario: Scenario, deployment: Deployment, devices: Devices) -> BatchExecution:
    """Return how the server with this deployment processes a batch."""
    typical = scenario.source.typical
    if scenario.system.drafting != "server":
        return VerificationOnly(deployment, None if scenario.system.drafting == "edge" else 0)
    longest = (
        typical.longest
        if scenario.longest_draft is None
        else min(scenario.longest_draft, typical.longest)
    )
    if scenario.batch_method is None:
        require(
            not any(
                kind.source.works for kind in scenario.kinds if kind.source is not scenario.source
            ),
            "a server that drafts from a trace takes the works of one: give no acceptance to a part of --fleet",
        )
        return RoundDrafting(
            deployment,
            devices.drafts,
            longest,
            scenario.source.costs,
            scenario.source.works,
            mixes_prompts=scenario.make_scheduler().mixes_prompts,
        )
    from specbench_kit.serving.policy_drafting import PolicyDrafting

    traced = [isinstance(kind.source, TracedDrafts) for kind in scenario.kinds]
    name = scenario.batch_method.display_name
    require(
        len(set(traced)) == 1,
        f"{name} decides for the whole batch by what a trace holds of every device: give no acceptance to a part of "
        "--fleet",
    )
    chains = devices.chains if all(traced) else None
    return PolicyDrafting(deployment, scenario.batch_method, devices.confidences, longest, chains)

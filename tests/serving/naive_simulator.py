"""A simulator as plain as possible, against which the kit's is tested: one event after the other, and no arrays.

It shares no code with the kit. Every number of it is worked out from its definition: latency is
a * new + b * new * (cached + new) + r * cached + c, summed over a batch; a message takes half the round trip and its
bytes over the bandwidth; each round drafts `draft` tokens, of which the first `accepted` are right. Of several servers
each response gets the next one in turn.
"""

from dataclasses import dataclass, field

TOKEN_BYTES = 4
Latency = tuple[float, float, float, float]


def seconds(latency: Latency, rows: list[tuple[int, int]]) -> float:
    """Return the seconds of one forward over rows of new and cached tokens."""
    a_s, block_s, read_s, c_s = latency
    return c_s + sum(
        a_s * new + block_s * new * (cached + new) + read_s * cached for new, cached in rows
    )


@dataclass
class Scene:
    """A scene to simulate: requests as (arrival, prompt, output tokens), dealt to the devices in turn."""

    devices: int
    requests: list[tuple[float, int, int]]
    drafter: Latency
    verifier: Latency
    rtt_s: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    draft: int
    accepted: int
    scheduler: str = "fcfs"
    size: int = 4
    timeout_s: float = 0.1
    largest: int = 64
    prefix_cache: bool = True
    on_edge: bool = True
    speed: float = 2.0
    turn_s: float = 0.0
    shared_bytes_per_s: float = float("inf")
    servers: int = 1
    stages: int = 1
    hand_over_s: float = 0.0


@dataclass
class NaiveDevice:
    """A device with its request under way: how far it is, and what both sides hold in KV."""

    queue: list[tuple[float, int, int]]
    start_s: float = 0.0
    first_s: float = 0.0
    prompt: int = 0
    tokens_left: int = 0
    context: int = 0
    at_server: int = 0
    at_device: int = 0
    busy_until_s: float = 0.0
    reaches_s: float = float("inf")
    """When its message is through its own link."""
    occupies_s: float = 0.0
    deadlines_s: tuple[float, float] = (0.0, 0.0)
    server: int = -1
    """The server of the request under way, -1 until its first message is there."""


@dataclass
class Server:
    """A server: the messages that wait there, and the devices that it verifies."""

    waiting: list[tuple[float, int]] = field(default_factory=list)
    under_way: list[tuple[float, list[int]]] = field(default_factory=list)
    """End and devices of the batches in the stages of the server's pipeline, in the order in which they entered it."""
    stage_free_s: list[float] = field(default_factory=list)
    free_s: float = 0.0
    ask_again_s: float = float("inf")


@dataclass
class Simulator:
    """Runs a scene to its end.

    `responses` are (device, start, first, end), `batches` (start, end, devices, server).
    """

    scene: Scene
    responses: list[tuple[int, float, float, float]] = field(default_factory=list)
    batches: list[tuple[float, float, list[int], int]] = field(default_factory=list)

    def run(self) -> None:
        """Send and verify rounds until no request is left."""
        scene = self.scene
        self.devices = [
            NaiveDevice(scene.requests[number :: scene.devices]) for number in range(scene.devices)
        ]
        self.servers = [Server(stage_free_s=[0.0] * scene.stages) for _ in range(scene.servers)]
        self.turn = 0
        self.link_free_s = 0.0
        for device in self.devices:
            self._begin(device)
        while (now_s := self._next_event()) < float("inf"):
            # All that reaches the link before an answer sends the next message is through it in order.
            self._receive(now_s)
            for server in self.servers:
                if self._end_s(server) <= now_s:
                    self._end(server)
            self._receive(now_s)
            for index, server in enumerate(self.servers):
                self._serve(index, server, now_s)

    def _next_event(self) -> float:
        """Return when a message arrives, a batch ends, or an idle server looks again at what waits."""
        times_s = [min(self._end_s(server), server.ask_again_s) for server in self.servers]
        return min(self._next_message()[0], *times_s)

    def _end_s(self, server: Server) -> float:
        return server.under_way[0][0] if server.under_way else float("inf")

    def _end(self, server: Server) -> None:
        """Send the answers of a server's first batch."""
        end_s, chosen = server.under_way.pop(0)
        server.free_s = end_s + self.scene.turn_s
        for number in chosen:
            self._answer(number, end_s)

    def _serve(self, index: int, server: Server, now_s: float) -> None:
        """Start a batch on a server if its first stage is idle and something waits for it."""
        server.ask_again_s = float("inf")
        if len(server.under_way) == self.scene.stages or not server.waiting:
            return
        free_s = max(server.free_s, server.stage_free_s[0])
        if now_s < free_s:
            server.ask_again_s = free_s
            return
        chosen, server.ask_again_s = self._choose(server.waiting, now_s)
        if chosen:
            end_s = self._pass(
                server, [self._row(self.devices[number]) for number in chosen], now_s
            )
            server.under_way.append((end_s, chosen))
            server.waiting = [entry for entry in server.waiting if entry[1] not in chosen]
            self.batches.append((now_s, end_s, chosen, index))
            if server.waiting and len(server.under_way) < self.scene.stages:
                server.ask_again_s = server.stage_free_s[0]

    def _pass(self, server: Server, rows: list[tuple[int, int]], now_s: float) -> float:
        """Return when a batch is through all stages: in each of them it waits until the batch before it has left."""
        at_s = now_s
        for stage in range(self.scene.stages):
            at_s = (
                max(at_s, server.stage_free_s[stage])
                + seconds(self.scene.verifier, rows) / self.scene.stages
            )
            server.stage_free_s[stage] = at_s
            at_s += self.scene.hand_over_s
        return server.stage_free_s[-1]

    def _begin(self, device: NaiveDevice) -> None:
        """Take the device's next request, if there is one."""
        device.reaches_s = float("inf")
        if device.queue:
            device.start_s, device.prompt, device.tokens_left = device.queue.pop(0)
            device.context, device.at_server, device.at_device = device.prompt, 0, device.prompt - 1
            device.first_s, device.server = float("inf"), -1
            self._send(device, max(device.start_s, device.busy_until_s), first=True)

    def _send(self, device: NaiveDevice, from_s: float, first: bool) -> None:
        scene = self.scene
        draft_s = 0.0
        if scene.on_edge:
            missing, cached = device.context - device.at_device, device.at_device
            for _ in range(scene.draft):
                draft_s += seconds(scene.drafter, [(missing, cached)])
                missing, cached = 1, cached + missing
            draft_s += (
                seconds(scene.drafter, [(device.prompt - 1, 0)])
                if first and device.prompt > 1
                else 0.0
            )
        size = (
            (device.prompt if first else 0) + (scene.draft if scene.on_edge else 0)
        ) * TOKEN_BYTES
        crosses = first or scene.on_edge
        up_s = scene.rtt_s / 2 + size / scene.up_bytes_per_s if crosses else 0.0
        device.reaches_s = (from_s + draft_s) + up_s
        device.occupies_s = size / scene.shared_bytes_per_s if crosses else 0.0
        expected = 1 + (scene.accepted if scene.on_edge else 0)
        back_s = scene.rtt_s / 2 if scene.on_edge else 0.0
        budget_s = expected / scene.speed
        if scene.on_edge:
            # In the order of the kit's sum: rounds that are answered together have the same deadline but for rounding.
            budget_s = budget_s - draft_s - (up_s + back_s)
        done = device.context - device.prompt
        device.deadlines_s = (
            device.reaches_s + budget_s,
            device.start_s + (done + expected) / scene.speed - back_s,
        )

    def _next_message(self) -> tuple[float, int]:
        """Return when the next message arrives, and whose it is.

        Those that cross the shared link do so one after the other, in the order in which they reach it.
        """
        arrivals = [
            (device.reaches_s, number)
            for number, device in enumerate(self.devices)
            if not device.occupies_s
        ]
        crossing = [
            (device.reaches_s, number)
            for number, device in enumerate(self.devices)
            if device.occupies_s
        ]
        if crossing:
            reaches_s, number = min(crossing)
            arrivals.append(
                (max(reaches_s, self.link_free_s) + self.devices[number].occupies_s, number)
            )
        return min(arrivals)

    def _receive(self, until_s: float) -> None:
        """Let messages arrive one by one."""
        while (message := self._next_message())[0] <= until_s:
            arrived_s, number = message
            if self.devices[number].occupies_s:
                self.link_free_s = arrived_s
            device = self.devices[number]
            device.reaches_s = float("inf")
            if device.server < 0:
                device.server = self.turn
                self.turn = (self.turn + 1) % self.scene.servers
            self.servers[device.server].waiting.append((arrived_s, number))

    def _row(self, device: NaiveDevice) -> tuple[int, int]:
        return device.context - device.at_server + (
            self.scene.draft if self.scene.on_edge else 0
        ), device.at_server

    def _choose(self, waiting: list[tuple[float, int]], now_s: float) -> tuple[list[int], float]:
        """Return the devices of the next batch, or when to ask again."""
        scene = self.scene
        order = sorted(waiting)
        largest = -(-scene.largest // scene.stages)
        largest_batch = min(scene.size, largest) if scene.scheduler == "static" else largest
        if scene.scheduler == "static" and 0 < len(order) < largest_batch:
            timed_out_s = order[0][0] + scene.timeout_s
            if now_s < timed_out_s:
                return [], timed_out_s
        if scene.scheduler.startswith("edf"):
            deadline_kind = int(scene.scheduler == "edf:by=promise")
            order.sort(key=lambda entry: self.devices[entry[1]].deadlines_s[deadline_kind])
        return [number for _, number in order[:largest_batch]], float("inf")

    def _answer(self, number: int, end_s: float) -> None:
        scene = self.scene
        device = self.devices[number]
        accepted = scene.accepted if scene.on_edge else 0
        committed = min(accepted + 1, device.tokens_left)
        first = device.context == device.prompt
        if scene.on_edge:
            device.at_device = device.context + min(accepted, scene.draft - 1)
        device.context += committed
        device.tokens_left -= committed
        device.at_server = device.context - 1 if scene.prefix_cache else 0
        crosses = scene.on_edge or first
        down_s = (
            scene.rtt_s / 2 + (accepted + 1) * TOKEN_BYTES / scene.down_bytes_per_s
            if crosses
            else 0.0
        )
        device.busy_until_s = end_s + down_s
        device.first_s = min(device.first_s, end_s + down_s)
        if device.tokens_left:
            self._send(device, device.busy_until_s, first=False)
        else:
            self.responses.append((number, device.start_s, device.first_s, device.busy_until_s))
            self._begin(device)

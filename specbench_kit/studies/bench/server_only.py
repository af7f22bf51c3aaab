"""The second baseline of a live run: the same method with draft and target both at the server, which streams."""

from collections import defaultdict
from typing import TypedDict

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request
from specbench_kit.studies.bench.conversations import ConversationScript
from specbench_kit.studies.bench.lanes import MethodLane
from specbench_kit.studies.bench.workbench import Workbench


class OutputCounts(TypedDict):
    """The number of requests that were decoded in both ways, and of those with the same output."""

    compared: int
    identical: int


class ServerOnly:
    """Lets the server decode each request by itself before a device drafts for it, where the server offers the method.

    The records of the method then hold how long that took, as those of a modelled run do.
    """

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self.counts: dict[str, OutputCounts] = defaultdict(lambda: {"compared": 0, "identical": 0})
        """Counts by spec, for the methods that the server offers."""
        self._clocks_s: dict[str, float] = {}

    def lanes(self, lane: MethodLane, script: ConversationScript) -> list[MethodLane]:
        """Return a method's lane, after the one of the server if there is one; `script` is for the server's."""
        engine = self._bench.server_only_engine(lane.name, self._clocks_s.get(lane.name, 0.0))
        if engine is None:
            return [lane]
        records: dict[str, RequestRecord] = {}

        def keep(record: RequestRecord) -> None:
            records[record.request_id] = record
            self._clocks_s[lane.name] = record.finished_s or 0.0

        def complete(record: RequestRecord) -> None:
            server, counts = records[record.request_id], self.counts[lane.name]
            record.colocated_s = server.e2e_s
            record.colocated_draft_s = sum(step.draft_s for step in server.rounds)
            counts["compared"] += 1
            counts["identical"] += server.output_ids == record.output_ids

        name = f"{lane.name}, server-only"
        server_lane = MethodLane(name, engine, script, lane.decode, [keep], repeat=lane.repeat)
        lane.after, lane.sinks = records, [complete, *lane.sinks]
        return [server_lane, lane]

    def warm_up(self, spec: str, request: Request) -> None:
        """Decode a request whose time does not count."""
        engine = self._bench.server_only_engine(spec)
        if engine is not None:
            engine.submit(request)
            while not engine.idle:
                engine.step()

"""gRPC: who may come in, what goes over a stream, and how the server ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.activity import EventLog, ServerActivity
from specbench_kit.live.server.batches import VerifiedRound
from specbench_kit.live.server.stream import DeviceStream, FrameHandler
from specbench_kit.live.wire import SERVICE, Down, Status, Up

CODES = {
    Status.WRONG_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Status.FLOOD: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Status.IDLE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Status.MALFORMED_FRAME: grpc.StatusCode.INVALID_ARGUMENT,
}
"""Of a stream that is ended; FAILED_PRECONDITION for all else."""
GRACE_S = 5.0
TIDY_S = 1.0


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the server listens, and with which certificate and key, if any."""

    address: str
    certificate: bytes | None = None
    key: bytes | None = None


class VerificationService:
    """The server's side of all streams."""

    def __init__(self, desk: FrameHandler, door: ListenAddress, journal: EventLog | None = None) -> None:
        self.desk, self._door = desk, door
        self.journal = journal or EventLog()
        self.report: Callable[[ServerActivity], None] = lambda _: None
        """Is told every second how the server is doing."""
        self._streams: set[DeviceStream] = set()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`; `ready` is told the port."""
        self._loop = asyncio.get_running_loop()
        self.desk.batches.deliver = self._deliver
        server, status = self._server(), health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(status, server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        port = self._bind(server)
        self.desk.batches.start()
        await server.start()
        for name in ("", SERVICE):
            await status.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.journal.note("ready", port=port)
        ready(port)
        tidying = asyncio.create_task(self._tidy())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((stopping, tidying), return_when=asyncio.FIRST_COMPLETED)
        tidying.cancel()
        await status.enter_graceful_shutdown()
        await self._leave(server)
        if not stopping.done():
            raise SkitError("the verification broke, see above; devices go on when the server is started again")

    def stop(self) -> None:
        """End once the batch in hand is answered; may be called from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    def _server(self) -> grpc.aio.Server:
        bounds = self.desk.bounds
        heartbeat_ms = round(bounds.heartbeat_s * 1000)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", bounds.frame_bytes),
                ("grpc.keepalive_time_ms", heartbeat_ms),
                ("grpc.keepalive_timeout_ms", heartbeat_ms // 2),
                ("grpc.http2.ping_timeout_ms", heartbeat_ms // 2),  # else a minute, whatever the line above says
                ("grpc.http2.max_pings_without_data", 0),  # else only the first two of a silent stream are sent
                ("grpc.http2.min_ping_interval_without_data_ms", heartbeat_ms // 4),
                ("grpc.so_reuseport", 0),
            ]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._decode, _read_up, Down.SerializeToString)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Decode": handler})])
        return server

    def _bind(self, server: grpc.aio.Server) -> int:
        door = self._door
        try:
            if door.certificate is None or door.key is None:
                return int(server.add_insecure_port(door.address))
            credentials = grpc.ssl_server_credentials([(door.key, door.certificate)])
            return int(server.add_secure_port(door.address, credentials))
        except RuntimeError as error:
            raise SkitError(
                f"cannot listen on {door.address}: choose another --listen, or end what is there"
            ) from error

    async def _decode(self, frames: AsyncIterator[Any], context: Any) -> None:
        """One stream from hello to end."""
        stream, desk = DeviceStream(self.desk), self.desk
        try:
            await context.write(desk.greet(await self._hello(context)))
            self._streams.add(stream)
            self.journal.note("stream", peer=context.peer())
            desk.counters.streams.set(len(self._streams))
            await self._serve(stream, context)
        except Refusal as refusal:
            desk.counters.refused.labels(refusal.status.name).inc()
            self.journal.note("refused", peer=context.peer(), status=refusal.status.name, reason=refusal.reason)
            self._forget(stream)  # who does not read does not hear of the end either, and that may take long
            await context.abort(CODES.get(refusal.status, grpc.StatusCode.FAILED_PRECONDITION), str(refusal))
        finally:
            self._forget(stream)

    def _forget(self, stream: DeviceStream) -> None:
        self.desk.leave(stream)
        self._streams.discard(stream)
        self.desk.counters.streams.set(len(self._streams))

    async def _hello(self, context: Any) -> Any:
        try:
            frame = await asyncio.wait_for(context.read(), self.desk.bounds.hello_s)
        except TimeoutError:
            raise Refusal(Status.NO_HELLO, "nothing was said") from None
        if frame is grpc.aio.EOF or frame is None or frame.WhichOneof("kind") != "hello":
            raise Refusal(Status.NO_HELLO, "the first frame has to be a hello")
        return frame.hello

    async def _serve(self, stream: DeviceStream, context: Any) -> None:
        """Read and write side by side until either ends."""
        tasks = [asyncio.create_task(work(stream, context)) for work in (self._read, self._write)]
        stream.heard_s = monotonic_s()
        try:
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:  # of a stream that is lost, this is cancelled itself
            for task in tasks:
                task.cancel()
        for task in pending:
            with suppress(asyncio.CancelledError, grpc.RpcError):
                await task
        for task in done:
            task.result()

    async def _read(self, stream: DeviceStream, context: Any) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            if frame is None:
                raise Refusal(Status.MALFORMED_FRAME, "a frame that cannot be read")
            stream.heard_s = monotonic_s()
            stream.take(frame)

    async def _write(self, stream: DeviceStream, context: Any) -> None:
        while (answer := await stream.out.get()) is not None:
            if isinstance(answer, Refusal):
                raise answer
            await context.write(answer)

    def _deliver(self, done: list[VerifiedRound]) -> None:
        """Called in the verifying thread."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._answer, done)

    def _answer(self, done: list[VerifiedRound]) -> None:
        """The answers go out before they are counted."""
        assert self._loop is not None
        self.desk.done(done)
        self._loop.call_soon(self.desk.counters.count, done)

    async def _tidy(self) -> None:
        """Forget what nobody uses, and tell the gauges."""
        desk, asked_s = self.desk, monotonic_s()
        while True:
            await asyncio.sleep(TIDY_S)
            for held in desk.sessions.idle(monotonic_s()):
                desk.batches.forget(held)
            desk.counters.sessions.set(len(desk.sessions))
            desk.counters.waiting.set(desk.batches.waiting)
            desk.counters.evictions.set(desk.batches.evictions)
            now_s = monotonic_s()
            for stream in self._streams:
                if now_s - stream.heard_s > desk.bounds.idle_s:
                    stream.answered(Refusal(Status.IDLE, "nothing was said for long"))
            rates = desk.counters.tally.per_second(now_s - asked_s)
            asked_s = now_s
            self.report(ServerActivity(len(self._streams), len(desk.sessions), desk.batches.waiting, *rates))
            if not desk.batches.is_alive():
                return

    async def _leave(self, server: grpc.aio.Server) -> None:
        """No new rounds; those in hand are answered, and the others told to come again."""
        self.desk.leaving = True
        self.journal.note("leaving", streams=len(self._streams))
        self.desk.batches.stop()
        await asyncio.to_thread(self.desk.batches.join)
        for stream in self._streams:
            for held in stream.held.values():
                if held.in_flight:
                    going = {"session": held.name, "round": held.round, "status": Status.GOING_AWAY, "retry_ms": 500}
                    stream.answered(Down(refused=going))
            stream.answered(None)
        await server.stop(GRACE_S)


def _read_up(content: bytes) -> Any | None:
    """A frame; None where the bytes are none: an exception here would end more than this stream."""
    from google.protobuf.message import DecodeError

    try:
        return Up.FromString(content)
    except DecodeError:
        return None

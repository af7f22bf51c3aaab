"""The gRPC service: one task per device stream, and an orderly start and end of the server.

A stream serves its device's frames, and refuses faulty ones without harm to others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import grpc
from grpc_health.v1 import health_pb2

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import LONGEST_NAME, ByteRate, Caller
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.listening import ListenAddress, make_server
from specbench_kit.live.server.metrics import EventLog, ServerActivity
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import SERVICE, Down, Refusal, Status, Up

SESSION_KINDS = ("open", "draft", "close", "generate", "cancel", "score")
"""The kinds of frames that name a session."""
LOGGED_REFUSALS = 20
"""Refusals of one stream that are logged, so that no device can fill the disk; metrics count all of
them.
"""


class DeviceStream:
    """The stream of one device, with the sessions that it serves and the answers that wait to be
    written.
    """

    def __init__(self, handler: FrameHandler, caller: Caller | None = None, peer: str = "") -> None:
        self._handler = handler
        self.caller = caller or handler.admission.caller(messages.Hello(), peer)
        self.peer = peer
        self.sessions: dict[str, ServerSession] = {}
        self.answers: asyncio.Queue[Down | Refusal | None] = asyncio.Queue()
        self.active_s = monotonic_s()
        """When the device sent or read its latest frame."""
        self._rate = ByteRate(handler.limits.stream_bytes_per_s)
        self._refusals = 0
        self._unread_bytes = 0
        self._has_ended = False
        self.expired = asyncio.Event()
        """Set once the device was silent for too long."""

    @property
    def unread(self) -> int:
        """The number of answers that were not written."""
        return self.answers.qsize()

    @property
    def overfull(self) -> bool:
        """Return True while so many bytes of answers are unread that no further frame is read."""
        limits = self._handler.limits
        of_token = self.caller.account.unread_bytes
        return self._unread_bytes > limits.unread_bytes or of_token > limits.token_unread_bytes

    def written(self, answer: Down) -> None:
        """Resume what was paused because the device did not read, now that one more answer is
        written.
        """
        self.active_s = monotonic_s()
        self._count_unread(-answer.ByteSize())
        self._handler.generations.resume(self)

    def end(self) -> None:
        """Forget the answers that nobody will read."""
        self._has_ended = True
        self._count_unread(-self._unread_bytes)
        self.answers = asyncio.Queue()

    def _count_unread(self, size: int) -> None:
        self._unread_bytes += size
        self.caller.account.unread_bytes += size

    def attach(self, session: ServerSession) -> None:
        """Send the answers of a session over this stream from now on."""
        known = self.sessions.get(session.name)
        if known is not session:
            self.sessions = {
                name: open_ for name, open_ in self.sessions.items() if not open_.closed
            }
        session.stream = self
        self.sessions[session.name] = session

    def answer(self, frame: Down | Refusal | None) -> None:
        """Queue an answer; a Refusal ends the stream with its reason, and None ends it without
        one.
        """
        if self._has_ended:
            return
        if isinstance(frame, Down):
            self._count_unread(frame.ByteSize())
        self.answers.put_nowait(frame)

    def pause_s(self, frame: Up) -> float:
        """Return for how long nothing more should be read, now that this frame was."""
        size = frame.ByteSize()
        now_s = monotonic_s()
        return max(self._rate.pause_s(size, now_s), self.caller.account.rate.pause_s(size, now_s))

    def receive(self, frame: Up) -> None:
        """Serve one frame. A fault of the stream itself is raised as Refusal, one of a session is
        answered.
        """
        if self.answers.qsize() >= self._handler.limits.credit:
            raise Refusal(
                Status.FLOOD, f"more than {self._handler.limits.credit} answers were not read"
            )
        kind = frame.WhichOneof("kind")
        if kind == "ping":
            self.answer(Down(pong=messages.Pong(count=frame.ping.count)))
        elif kind in SESSION_KINDS:
            content = getattr(frame, kind)
            try:
                if len(content.session) > LONGEST_NAME:
                    raise Refusal(
                        Status.MALFORMED_FRAME, f"a name has up to {LONGEST_NAME} characters"
                    )
                self._serve(frame)
            except Refusal as refusal:
                # Of the frames that name a session, drafts and generations are numbered.
                self._refuse(refusal, content.session, getattr(content, "round", 0))
        else:
            raise Refusal(Status.MALFORMED_FRAME, "a frame without a known kind")

    def _serve(self, frame: Up) -> None:
        """Let the handler serve a frame that names a session."""
        handler = self._handler
        match frame.WhichOneof("kind"):
            case "open":
                handler.open(frame.open, self)
            case "draft":
                handler.draft(frame.draft, self)
            case "close":
                handler.close(frame.close, self)
            case "generate":
                handler.generate(frame.generate, self)
            case "cancel":
                handler.cancel(frame.cancel, self)
            case "score":
                handler.score(frame.score, self)

    def _refuse(self, refusal: Refusal, session: str, number: int) -> None:
        """Answer a frame of a session, with the number of its round, with a refusal, and count and
        log it.
        """
        self._handler.metrics.refused.labels(refusal.status.name).inc()
        refused = messages.Refused(
            session=session[:LONGEST_NAME], round=number, status=refusal.status
        )
        refused.reason = refusal.reason
        refused.retry_ms = refusal.retry_ms
        self.answer(Down(refused=refused))
        self._refusals += 1
        if self._refusals <= LOGGED_REFUSALS:
            self._handler.log.write(
                "refused",
                peer=self.peer,
                account=self.caller.account.name,
                session=refused.session,
                status=refusal.status.name,
                reason=refusal.reason,
                **({"further": "not logged"} if self._refusals == LOGGED_REFUSALS else {}),
            )


CODES = {
    Status.WRONG_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Status.FLOOD: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Status.TOO_MANY_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Status.IDLE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Status.MALFORMED_FRAME: grpc.StatusCode.INVALID_ARGUMENT,
}
"""gRPC's code for the end of a stream by its reason; any other reason is FAILED_PRECONDITION."""
GRACE_S = 5.0
"""Time that streams have to take their last answers when the server stops."""
OVERFULL_PAUSE_S = 0.01
"""Interval at which a stream with too many bytes of unread answers is looked at again."""
MAINTENANCE_S = 1.0
"""Interval at which idle sessions are dropped and gauges updated."""
SILENCE_CHECK_S = 0.025
"""Interval at which silent devices are looked for."""
STOPPING_RETRY_MS = 500
"""After how long devices may try again when the server stops."""


class StreamContext(Protocol):
    """gRPC's context of one stream, for which grpc ships no types."""

    async def read(self) -> object:
        """Return the next frame, None for bytes that are no frame, or `grpc.aio.EOF`."""

    async def write(self, frame: Down) -> None:
        """Send a frame."""

    def peer(self) -> str:
        """Return the device's address."""

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return what is known of the device's certificate."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End the stream with an error."""


class VerificationService:
    """The server's side of all streams."""

    def __init__(
        self, handler: FrameHandler, listen: ListenAddress, log: EventLog | None = None
    ) -> None:
        self.handler = handler
        self._listen = listen
        self.log = handler.log = log or EventLog()
        self.report: Callable[[ServerActivity], None] = lambda _: None
        """Called about every second with the server's activity."""
        self._streams: set[DeviceStream] = set()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until `stop`; call `ready` with the port once the server listens."""
        self._loop = asyncio.get_running_loop()
        self.handler.batch_runner.deliver = self._deliver
        server, health_status, port = make_server(self._decode, self._listen, self.handler.limits)
        self.handler.batch_runner.start()
        await server.start()
        for name in ("", SERVICE):
            await health_status.set(name, health_pb2.HealthCheckResponse.SERVING)
        self.log.write("ready", port=port)
        ready(port)
        maintenance = asyncio.create_task(self._maintain())
        relief = asyncio.create_task(self._relieve_silent_devices())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((stopped, maintenance), return_when=asyncio.FIRST_COMPLETED)
        maintenance.cancel()
        relief.cancel()
        await health_status.enter_graceful_shutdown()
        await self._shut_down(server)
        if not stopped.done():
            # The maintenance ends by itself only if the verification thread has died.
            raise SkitError(
                "the verification broke, see above; devices go on when the server is started again"
            )

    def stop(self) -> None:
        """End the server after the current batch is answered; a signal handler may call it, and
        more than once.
        """
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, since the server has ended
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _decode(self, _: AsyncIterator[Up], context: StreamContext) -> None:
        """Serve one stream from its hello to its end."""
        handler = self.handler
        peer = context.peer()
        stream = None
        reason = "ended"
        try:
            hello = await self._hello(context)
            stream = DeviceStream(
                handler, handler.admission.greet(hello, peer, _certified(context)), peer
            )
            self._streams.add(stream)
            handler.admission.count_stream(stream.caller.account, 1)
            self.log.write("stream", peer=peer, account=stream.caller.account.name)
            await context.write(Down(welcome=handler.welcome))
            await self._serve(stream, context)
        except Refusal as refusal:
            reason = refusal.status.name
            handler.metrics.refused.labels(reason).inc()
            self.log.write("refused", peer=peer, status=reason, reason=refusal.reason)
            # Before `abort`: it waits until the device reads, which a flooding device may never do.
            self._remove(stream, reason)
            await context.abort(
                CODES.get(refusal.status, grpc.StatusCode.FAILED_PRECONDITION), str(refusal)
            )
        finally:
            self._remove(stream, reason)

    def _remove(self, stream: DeviceStream | None, reason: str) -> None:
        if stream is not None and stream in self._streams:
            self._streams.discard(stream)
            self.handler.leave(stream, reason)
            stream.end()

    async def _hello(self, context: StreamContext) -> messages.Hello:
        """Return the first frame; raise Refusal if it is no hello, or does not come in time."""
        try:
            frame = await asyncio.wait_for(context.read(), self.handler.limits.hello_s)
        except TimeoutError:
            raise Refusal(Status.NO_HELLO, "no frame came in time") from None
        if not isinstance(frame, Up) or frame.WhichOneof("kind") != "hello":
            raise Refusal(Status.NO_HELLO, "the first frame must be a hello")
        return frame.hello

    async def _serve(self, stream: DeviceStream, context: StreamContext) -> None:
        """Read frames and write answers concurrently until either ends."""
        tasks = [
            asyncio.create_task(work(stream, context))
            for work in (self._read, self._write, _expire)
        ]
        try:
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # When a connection is lost, gRPC cancels this coroutine, but not the tasks that it
            # started.
            for task in tasks:
                task.cancel()
        for task in pending:
            with suppress(asyncio.CancelledError, grpc.RpcError):
                await task
        for task in done:
            task.result()

    async def _read(self, stream: DeviceStream, context: StreamContext) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            if not isinstance(frame, Up):
                raise Refusal(Status.MALFORMED_FRAME, "bytes that are no frame")
            stream.active_s = monotonic_s()
            await self.handler.grammars.prepare(frame)
            stream.receive(frame)
            if (pause_s := stream.pause_s(frame)) > 0:
                # What is not read fills the buffers of the network, and this device waits for
                # itself.
                self.handler.metrics.paused.inc()
                await asyncio.sleep(pause_s)
            while stream.overfull:
                await asyncio.sleep(OVERFULL_PAUSE_S)

    async def _write(self, stream: DeviceStream, context: StreamContext) -> None:
        while (answer := await stream.answers.get()) is not None:
            if isinstance(answer, Refusal):
                raise answer
            await context.write(answer)
            stream.written(answer)

    def _deliver(self, batch: list[VerifiedRound]) -> None:
        """Hand a verified batch from the verification thread, which calls this, to the event
        loop.
        """
        loop = self._loop
        assert loop is not None

        def answer() -> None:
            self.handler.answer(batch)
            # Devices wait for the answers: the metrics are counted after these are written.
            loop.call_soon(self.handler.metrics.count, batch)

        with suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(answer)

    async def _relieve_silent_devices(self) -> None:
        while True:
            await asyncio.sleep(SILENCE_CHECK_S)
            self.handler.relieve_silent()

    async def _maintain(self) -> None:
        """Drop idle sessions, end idle streams and update the gauges, until the verification thread
        ends.
        """
        handler = self.handler
        reported_s = monotonic_s()
        runner = handler.batch_runner
        metrics = handler.metrics
        while True:
            await asyncio.sleep(MAINTENANCE_S)
            now_s = monotonic_s()
            handler.drop_idle()
            metrics.sessions.set(len(handler.sessions))
            metrics.waiting.set(runner.waiting)
            metrics.slots.set(len(runner.slots))
            metrics.evicted(runner.evictions)
            for stream in self._streams:
                # A device that waits for an answer has nothing to send meanwhile, but it reads.
                waits = any(
                    session.in_flight for session in stream.sessions.values()
                ) or runner.scorer.serves(stream)
                if (stream.unread or not waits) and now_s - stream.active_s > handler.limits.idle_s:
                    stream.expired.set()
            rates = metrics.rates(now_s - reported_s)
            reported_s = now_s
            self.report(
                ServerActivity(len(self._streams), len(handler.sessions), runner.waiting, *rates)
            )
            if not runner.is_alive():
                return

    async def _shut_down(self, server: grpc.aio.Server) -> None:
        """Take no new rounds, answer the current batch, and tell the devices of all other rounds to
        come again.
        """
        self.handler.admission.stopping = True
        self.log.write("leaving", streams=len(self._streams))
        self.handler.batch_runner.stop()
        self.handler.grammars.close()
        # In a thread of its own, so that the event loop can send the answers of the current batch
        # meanwhile.
        await asyncio.to_thread(self.handler.batch_runner.join)
        for stream in self._streams:
            for session in stream.sessions.values():
                if session.in_flight:
                    refused = messages.Refused(
                        session=session.name,
                        round=session.round,
                        status=Status.GOING_AWAY,
                        retry_ms=STOPPING_RETRY_MS,
                    )
                    stream.answer(Down(refused=refused))
            stream.answer(None)
        await server.stop(GRACE_S)


async def _expire(stream: DeviceStream, _: StreamContext) -> None:
    """End a stream whose device is silent, also one that does not read the answers in front of this
    one.
    """
    await stream.expired.wait()
    raise Refusal(Status.IDLE, "the device sent nothing for too long")


def _certified(context: StreamContext) -> str:
    """Return the name in a device's certificate; empty if it needed none."""
    names = context.auth_context().get("x509_common_name", [])
    return names[0].decode(errors="replace") if names else ""

"""One device's stream: its frames are served, and faulty ones refused without harm to others."""

import asyncio

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.accounts import Caller
from specbench_kit.live.server.byte_rate import ByteRate
from specbench_kit.live.server.drafts import LONGEST_NAME
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import Down, Status, Up

SESSION_KINDS = ("open", "draft", "close", "generate", "cancel", "score")
"""The kinds of frames that name a session."""
LOGGED_REFUSALS = 20
"""Refusals of one stream that are logged, so that no device can fill the disk; metrics count all of them."""


class DeviceStream:
    """The stream of one device, with the sessions that it serves and the answers that wait to be written."""

    def __init__(self, handler: FrameHandler, caller: Caller | None = None, peer: str = "") -> None:
        self._handler = handler
        self.caller = caller or handler.reception.accounts.caller(messages.Hello(), peer)
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
        limits, of_token = self._handler.limits, self.caller.account.unread_bytes
        return self._unread_bytes > limits.unread_bytes or of_token > limits.token_unread_bytes

    def written(self, answer: Down) -> None:
        """Resume what was paused because the device did not read, now that one more answer is written."""
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
            self.sessions = {name: open_ for name, open_ in self.sessions.items() if not open_.closed}
        session.stream = self
        self.sessions[session.name] = session

    def answer(self, frame: Down | Refusal | None) -> None:
        """Queue an answer; a Refusal ends the stream with its reason, and None ends it without one."""
        if self._has_ended:
            return
        if isinstance(frame, Down):
            self._count_unread(frame.ByteSize())
        self.answers.put_nowait(frame)

    def pause_s(self, frame: Up) -> float:
        """Return for how long nothing more should be read, now that this frame was."""
        size, now_s = frame.ByteSize(), monotonic_s()
        return max(self._rate.pause_s(size, now_s), self.caller.account.rate.pause_s(size, now_s))

    def receive(self, frame: Up) -> None:
        """Serve one frame. A fault of the stream itself is raised as Refusal, one of a session is answered."""
        if self.answers.qsize() >= self._handler.limits.credit:
            raise Refusal(Status.FLOOD, f"more than {self._handler.limits.credit} answers were not read")
        kind = frame.WhichOneof("kind")
        try:
            if kind in SESSION_KINDS and len(getattr(frame, kind).session) > LONGEST_NAME:
                raise Refusal(Status.MALFORMED_FRAME, f"a name has up to {LONGEST_NAME} characters")
            if kind == "ping":
                self.answer(Down(pong=messages.Pong(count=frame.ping.count)))
            elif kind == "open":
                self.answer(self._handler.open(frame.open, self))
            elif kind == "draft":
                if (answer := self._handler.draft(frame.draft, self)) is not None:
                    self.answer(answer)
            elif kind == "close":
                self._handler.close(frame.close, self)
            elif kind == "generate":
                if (answer := self._handler.generate(frame.generate, self)) is not None:
                    self.answer(answer)
            elif kind == "cancel":
                self._handler.cancel(frame.cancel, self)
            elif kind == "score":
                self._handler.score(frame.score, self)
        except Refusal as refusal:
            self._refuse(refusal, frame, kind)
        if kind not in ("ping", *SESSION_KINDS):
            raise Refusal(Status.MALFORMED_FRAME, "a frame without a known kind")

    def _refuse(self, refusal: Refusal, frame: Up, kind: str) -> None:
        """Answer a frame of a session with a refusal, and count and log it."""
        self._handler.metrics.refused.labels(refusal.status.name).inc()
        refused = messages.Refused(session=getattr(frame, kind).session[:LONGEST_NAME], status=refusal.status)
        refused.reason, refused.retry_ms = refusal.reason, refusal.retry_ms
        refused.round = frame.generate.round if kind == "generate" else frame.draft.round
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

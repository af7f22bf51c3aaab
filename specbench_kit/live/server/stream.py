"""The frames of devices: sessions are opened, rounds queued, and faulty frames refused without harm to others."""

import asyncio
from collections.abc import Sequence
from hmac import compare_digest

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.batches import BatchRunner
from specbench_kit.live.server.drafts import read_draft, require_times
from specbench_kit.live.server.generating import Generations
from specbench_kit.live.server.metrics import ServerMetrics
from specbench_kit.live.server.rounds import PendingRound, VerifiedRound
from specbench_kit.live.server.sessions import ServerSession, SessionTable
from specbench_kit.live.wire import PROTOCOL, Down, Status, Up

DEFAULT_DEADLINE_S = 60.0
"""The deadline, from arrival, of a round whose device names none."""
BACKOFF_MS = 100
"""After how long a device may send a round again that an overloaded or stopping server refused."""


class FrameHandler:
    """Answers the frames of all streams. Everything but the verification itself runs in one thread, the event loop."""

    def __init__(
        self, sessions: SessionTable, batch_runner: BatchRunner, welcome: messages.Welcome, tokens: Sequence[str]
    ) -> None:
        self.sessions, self.batch_runner, self.welcome, self.tokens = sessions, batch_runner, welcome, tokens
        self.limits, self.metrics = sessions.limits, ServerMetrics()
        self.generations = Generations(sessions, batch_runner, welcome.drafting)
        self.stopping = False
        """True from when on no new rounds are taken."""

    def greet(self, hello: messages.Hello) -> Down:
        """Return the welcome for a device; raise Refusal if its protocol, token or tokenizer is wrong."""
        if hello.protocol != PROTOCOL:
            raise Refusal(Status.WRONG_PROTOCOL, f"protocol {hello.protocol}; this server speaks {PROTOCOL}")
        if self.tokens and not any(compare_digest(hello.token.encode(), token.encode()) for token in self.tokens):
            raise Refusal(Status.WRONG_TOKEN, "this server needs a token from its --token-file")
        # A device that replays a recording has no tokenizer; it names the hash of the target that was recorded.
        if hello.tokenizer != self.welcome.tokenizer and hello.model_hash != self.welcome.model_hash:
            raise Refusal(Status.WRONG_TOKENIZER, "the draft model has another tokenizer than this server's target")
        return Down(welcome=self.welcome)

    def open(self, frame: messages.Open, stream: "DeviceStream") -> Down:
        """Open or resume a session, and return how far the server's text and KV of it reach."""
        session, dropped = self.sessions.open(frame, monotonic_s())
        if dropped is not None:
            self.batch_runner.forget(dropped)
        stream.attach(session)
        # While a round is in flight the text belongs to the verification thread.
        committed = 0 if session.in_flight else len(session.text.tokens)
        return Down(opened=messages.Opened(session=session.name, committed=committed, cached=session.cached))

    def draft(self, frame: messages.Draft, stream: "DeviceStream") -> Down | None:
        """Queue a new round; return an answer if there is one at once.

        A device sends a round again after it lost its connection. Such a round is answered once more, or if it is in
        flight, when its verdict comes; it is never verified twice.
        """
        session = self.sessions.find(frame.session, monotonic_s())
        stream.attach(session)
        if session.round == frame.round and (session.in_flight or session.last_answer is not None):
            return None if session.in_flight else session.last_answer
        if session.in_flight:
            raise Refusal(Status.IN_FLIGHT, f"round {session.round} is not answered yet", retry_ms=10)
        if session.round is not None and frame.round != session.round + 1:
            raise Refusal(Status.OUT_OF_ORDER, f"round {frame.round} after round {session.round}")
        text = session.text
        if frame.base > len(text.tokens) or frame.base < len(text.request.prompt_ids):
            raise Refusal(Status.WRONG_BASE, f"after {frame.base} tokens; the session has {len(text.tokens)}")
        if session.layers:
            self._require_states(frame, session)
        if frame.base < len(text.tokens):
            # The device missed an answer: it gets the tokens that it lacks in place of a verdict.
            session.round = frame.round
            rebase = messages.Verdict(
                session=session.name, round=frame.round, status=Status.REBASE, suffix=text.tokens[frame.base :]
            )
            session.last_answer = Down(verdict=rebase)
            return session.last_answer
        waiting = self._require_capacity()
        require_times(frame)
        draft = read_draft(frame, text, session.sampler, self.limits, self.sessions.vocabulary)
        session.round, session.in_flight, session.last_answer = frame.round, True, None
        round_s, remaining_s = (ms / 1e3 or DEFAULT_DEADLINE_S for ms in (frame.round_ms, frame.remaining_ms))
        degraded = waiting >= self.limits.waiting
        self.batch_runner.submit(
            PendingRound(
                session, frame.round, draft, monotonic_s(), round_s, remaining_s, degraded, states=frame.states
            )
        )
        return None

    def _require_states(self, frame: messages.Draft, session: ServerSession) -> None:
        """Raise Refusal if the next forward cannot give the hidden states that a device lacks."""
        if frame.states >= frame.base:
            raise Refusal(Status.BROKEN_STATES, f"states of {frame.states} tokens before a draft after {frame.base}")
        if frame.base < len(session.text.tokens) or frame.states < session.cached:
            # The device missed an answer. A forward gives the states of tokens that are not in KV: the session starts
            # over, with the text that the device has.
            self.sessions.drop(session.name)
            self.batch_runner.forget(session)
            raise Refusal(Status.UNKNOWN_SESSION, "open it again: hidden states that the device lacks are gone")

    def generate(self, frame: messages.Generate, stream: "DeviceStream") -> Down | None:
        """Begin a generation; return an answer if there is one at once."""
        session = self.sessions.find(frame.session, monotonic_s())
        stream.attach(session)
        self._require_capacity()
        return self.generations.begin(session, frame)

    def _require_capacity(self) -> int:
        """Return the number of rounds in the queue; raise Refusal if no further one is taken now."""
        waiting = self.batch_runner.waiting
        if self.stopping or waiting >= 2 * self.limits.waiting:
            status = Status.GOING_AWAY if self.stopping else Status.OVERLOADED
            raise Refusal(status, f"{waiting} rounds wait", retry_ms=BACKOFF_MS)
        return waiting

    def close(self, frame: messages.Close, stream: "DeviceStream") -> None:
        """End a session."""
        stream.sessions.pop(frame.session, None)
        if (session := self.sessions.drop(frame.session)) is not None:
            self.batch_runner.forget(session)

    def detach(self, stream: "DeviceStream") -> None:
        """Note that a device is gone; its sessions stay, so that it can resume them over another stream."""
        for session in stream.sessions.values():
            if session.stream is stream:
                session.stream = None
                self.generations.cancel(session)

    def answer(self, batch: list[VerifiedRound]) -> None:
        """Send the answers of a verified batch to the devices that are connected."""
        for verified in batch:
            session = verified.pending.session
            if verified.verdict is not None and verified.pending.generation is not None:
                self.generations.answer(verified, verified.pending.generation)
                continue
            session.in_flight, session.generation = False, None
            if verified.verdict is None:
                # The session's KV is gone: the device may open it again, but must not get an old answer.
                session.last_answer = None
                self.metrics.refused.labels(Status.FAILED.name).inc()
                failed = messages.Refused(session=session.name, round=verified.pending.number)
                failed.status, failed.reason = Status.FAILED, verified.error
                answer = Down(refused=failed)
                self.sessions.drop(session.name)
                self.batch_runner.forget(session)
            else:
                answer = session.last_answer = _verdict_frame(verified, self.limits.credit)
            if session.stream is not None:
                session.stream.answer(answer)


class DeviceStream:
    """The stream of one device, with the sessions that it serves and the answers that wait to be written."""

    def __init__(self, handler: FrameHandler) -> None:
        self._handler = handler
        self.sessions: dict[str, ServerSession] = {}
        self.answers: asyncio.Queue[Down | Refusal | None] = asyncio.Queue()
        self.heard_s = 0.0
        """When the device sent its latest frame."""

    @property
    def unread(self) -> int:
        """The number of answers that were not written."""
        return self.answers.qsize()

    def written(self) -> None:
        """Resume what was paused because the device did not read, now that one more answer is written."""
        self._handler.generations.resume(self)

    def attach(self, session: ServerSession) -> None:
        """Send the answers of a session over this stream from now on."""
        session.stream = self
        self.sessions[session.name] = session

    def answer(self, frame: Down | Refusal | None) -> None:
        """Queue an answer; a Refusal ends the stream with its reason, and None ends it without one."""
        self.answers.put_nowait(frame)

    def receive(self, frame: Up) -> None:
        """Serve one frame. A fault of the stream itself is raised as Refusal, one of a session is answered."""
        if self.answers.qsize() >= self._handler.limits.credit:
            raise Refusal(Status.FLOOD, f"more than {self._handler.limits.credit} answers were not read")
        kind = frame.WhichOneof("kind")
        try:
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
                self._handler.generations.cancel(self._handler.sessions.find(frame.cancel.session, self.heard_s))
        except Refusal as refusal:
            self._handler.metrics.refused.labels(refusal.status.name).inc()
            refused = messages.Refused(session=getattr(frame, kind).session, status=refusal.status)
            refused.reason, refused.retry_ms = refusal.reason, refusal.retry_ms
            refused.round = frame.generate.round if kind == "generate" else frame.draft.round
            self.answer(Down(refused=refused))
        if kind not in ("ping", "open", "draft", "close", "generate", "cancel"):
            raise Refusal(Status.MALFORMED_FRAME, "a frame without a known kind")


def _verdict_frame(verified: VerifiedRound, credit: int) -> Down:
    verdict, pending, batch = verified.verdict, verified.pending, verified.batch
    assert verdict is not None
    return Down(
        verdict=messages.Verdict(
            session=pending.session.name,
            round=pending.number,
            status=Status.DEGRADED if pending.degraded else Status.OK,
            path=verdict.path,
            bonus=verdict.bonus,
            queue_us=round(verified.queue_s * 1e6),
            verify_us=round(batch.verify_s * 1e6),
            expected_us=round(batch.expected_s * 1e6),
            batch_size=batch.size,
            batch_number=batch.number,
            waiting=batch.waiting,
            cached=verified.cached,
            states=verified.states,
            computed=verdict.computed,
            credit=credit,
        )
    )

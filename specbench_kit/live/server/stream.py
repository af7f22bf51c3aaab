"""One device's stream: its frames come in, answers go out, and what it may not do ends it alone."""

import asyncio
from collections.abc import Callable, Sequence
from hmac import compare_digest
from typing import Any

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.live.refusal import Refusal
from specbench_kit.live.server.batches import BatchRunner, PendingRound, VerifiedRound
from specbench_kit.live.server.drafts import read_draft, require_times
from specbench_kit.live.server.limits import ServerLimits
from specbench_kit.live.server.metrics import ServerMetrics
from specbench_kit.live.server.sessions import ServerSession, SessionTable
from specbench_kit.live.wire import PROTOCOL, Down, Status

PATIENCE_S = 60.0
"""Of a device that names no deadline."""


class FrameHandler:
    """What all streams share; everything but the verification runs in one thread."""

    def __init__(
        self, sessions: SessionTable, batches: BatchRunner, welcome: Any, tokens: Sequence[str], counters: ServerMetrics
    ) -> None:
        self.sessions, self.batches, self.welcome, self.tokens = sessions, batches, welcome, tokens
        self.counters, self.leaving = counters, False
        self.bounds: ServerLimits = sessions.bounds

    def greet(self, hello: Any) -> Any:
        """The answer to a device that may come in."""
        if hello.protocol != PROTOCOL:
            raise Refusal(Status.WRONG_PROTOCOL, f"protocol {hello.protocol}; this server speaks {PROTOCOL}")
        if self.tokens and not any(compare_digest(hello.token.encode(), one.encode()) for one in self.tokens):
            raise Refusal(Status.WRONG_TOKEN, "this server asks for a token that it knows")
        if hello.tokenizer != self.welcome["tokenizer"] and hello.model_hash != self.welcome["model_hash"]:
            raise Refusal(Status.WRONG_TOKENIZER, "the draft model has another tokenizer than this server's target")
        return Down(welcome=self.welcome)

    def open(self, frame: Any, stream: "DeviceStream") -> Any:
        """A session begins or goes on."""
        held, forgotten = self.sessions.open(frame, monotonic_s())
        if forgotten is not None:
            self.batches.forget(forgotten)
        held.stream = stream
        stream.held[held.name] = held
        # Of a round in hand the text belongs to the verifying thread.
        committed = 0 if held.in_flight else len(held.text.tokens)
        return Down(opened={"session": held.name, "committed": committed, "cached": held.cached})

    def draft(self, frame: Any, stream: "DeviceStream") -> Any | None:
        """A round begins, unless it is known already."""
        held = self.sessions.find(frame.session, monotonic_s())
        held.stream, stream.held[held.name] = stream, held
        if held.round == frame.round and (held.in_flight or held.last is not None):
            return None if held.in_flight else held.last
        if held.in_flight:
            raise Refusal(Status.IN_FLIGHT, f"round {held.round} is not answered yet", retry_ms=10)
        if held.round is not None and frame.round != held.round + 1:
            raise Refusal(Status.OUT_OF_ORDER, f"round {frame.round} after round {held.round}")
        return self._begin(frame, held)

    def close(self, frame: Any, stream: "DeviceStream") -> None:
        """A session ends."""
        stream.held.pop(frame.session, None)
        if (held := self.sessions.drop(frame.session)) is not None:
            self.batches.forget(held)

    def leave(self, stream: "DeviceStream") -> None:
        """A device has gone; its sessions may be gone on with."""
        for held in stream.held.values():
            if held.stream is stream:
                held.stream = None

    def done(self, found: list[VerifiedRound]) -> None:
        """A batch was verified."""
        for one in found:
            held = one.job.held
            held.in_flight = False
            if one.verdict is None:
                answer, held.last = self._failed(one), None
                self.sessions.drop(held.name)
                self.batches.forget(held)
            else:
                answer = held.last = _verdict(one, self.bounds.credit)
            if held.stream is not None:
                held.stream.answered(answer)

    def _begin(self, frame: Any, held: ServerSession) -> Any | None:
        text = held.text
        if frame.base > len(text.tokens) or frame.base < len(text.request.prompt_ids):
            raise Refusal(Status.WRONG_BASE, f"after {frame.base} tokens; the session has {len(text.tokens)}")
        if frame.base < len(text.tokens):
            held.round = frame.round
            suffix = text.tokens[frame.base :]
            answer = {"session": held.name, "round": frame.round, "status": Status.REBASE, "suffix": suffix}
            held.last = Down(verdict=answer)
            return held.last
        waiting = self.batches.waiting
        if self.leaving or waiting >= 2 * self.bounds.waiting:
            status = Status.GOING_AWAY if self.leaving else Status.OVERLOADED
            raise Refusal(status, f"{waiting} rounds wait", retry_ms=100)
        require_times(frame)
        draft = read_draft(frame, text, held.sampler, self.bounds, self.sessions.vocabulary)
        held.round, held.in_flight, held.last = frame.round, True, None
        round_s, remaining_s = frame.round_ms / 1e3 or PATIENCE_S, frame.remaining_ms / 1e3 or PATIENCE_S
        behind = waiting >= self.bounds.waiting
        self.batches.submit(PendingRound(held, frame.round, draft, monotonic_s(), round_s, remaining_s, behind))
        return None

    def _failed(self, one: VerifiedRound) -> Any:
        self.counters.refused.labels(Status.FAILED.name).inc()
        told = {"session": one.job.held.name, "round": one.job.number, "status": Status.FAILED, "reason": one.error}
        return Down(refused=told)


class DeviceStream:
    """What a device sent and has not been told yet; answers wait in `out`."""

    def __init__(self, desk: FrameHandler) -> None:
        self.desk, self.held = desk, dict[str, ServerSession]()
        self.out: asyncio.Queue[Any] = asyncio.Queue()
        self.heard_s = 0.0
        self._takes: dict[str, Callable[[Any, DeviceStream], Any | None]] = {
            "open": desk.open,
            "draft": desk.draft,
            "close": desk.close,
        }

    def answered(self, answer: Any) -> None:
        """An answer is there; None is the end of all of them, a `Refusal` the end with a reason."""
        self.out.put_nowait(answer)

    def take(self, frame: Any) -> None:
        """Serve one frame; a `Refusal` of the stream itself is raised."""
        if self.out.qsize() >= self.desk.bounds.credit:
            raise Refusal(Status.FLOOD, f"more than {self.desk.bounds.credit} answers were not read")
        kind = frame.WhichOneof("kind")
        if kind == "ping":
            self.answered(Down(pong={"count": frame.ping.count}))
            return
        if kind not in self._takes:
            raise Refusal(Status.MALFORMED_FRAME, "a frame without a known kind")
        content = getattr(frame, kind)
        try:
            answer = self._takes[kind](content, self)
        except Refusal as refusal:
            answer = self._refused(content, kind, refusal)
        if answer is not None:
            self.answered(answer)

    def _refused(self, content: Any, kind: str, refusal: Refusal) -> Any:
        self.desk.counters.refused.labels(refusal.status.name).inc()
        told = {"session": content.session, "status": refusal.status, "reason": refusal.reason}
        number = content.round if kind == "draft" else 0
        return Down(refused={**told, "round": number, "retry_ms": refusal.retry_ms})


def _verdict(one: VerifiedRound, credit: int) -> Any:
    assert one.verdict is not None
    job, verdict = one.job, one.verdict
    return Down(
        verdict={
            "session": job.held.name,
            "round": job.number,
            "status": Status.DEGRADED if job.degraded else Status.OK,
            "path": verdict.path,
            "bonus": verdict.bonus,
            "queue_us": round(one.queue_s * 1e6),
            "verify_us": round(one.batch.verify_s * 1e6),
            "expected_us": round(one.batch.expected_s * 1e6),
            "batch_size": one.batch.size,
            "batch_number": one.batch.number,
            "waiting": one.batch.left,
            "cached": one.cached,
            "computed": verdict.computed,
            "credit": credit,
        }
    )

"""The loop that all engines share: requests wait, are admitted, are decoded step by step and are
handed back.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import torch

from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.detail import FinishedRound
from specbench_kit.decoding.lossy import LossyRule
from specbench_kit.decoding.records import UNLIMITED, RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.timeline import REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingSetup:
    """How requests are decoded, whichever loop does it.

    `batch_size` requests are decoded at a time. A request ends with one of `eos_ids`, and reaches at most `capacity`
    tokens, prompt and output. The loop's clock begins at `started_s`. Sampled draft tokens are drawn from the
    `draft_top_n` likeliest; 0 draws from all. A `lossy` rule of verification takes the place of the lossless ones.
    With `skip_forced`, a token that is the only one that a request's grammar allows is committed without being
    verified.
    """

    sampler: Sampler = field(default_factory=Sampler)
    seed: int = 0
    eos_ids: frozenset[int] = frozenset()
    batch_size: int = 1
    capacity: int = UNLIMITED
    started_s: float = 0.0
    draft_top_n: int = 0
    lossy: LossyRule | None = None
    skip_forced: bool = False

    def within(self, capacity: int) -> "DecodingSetup":
        """Return the setup with requests of at most so many tokens."""
        return replace(self, capacity=min(self.capacity, capacity))


class Loop(ABC):
    """Decodes requests in a closed loop: a request is submitted when one of the setup's
    `batch_size` slots is free.

    Its clock stands still between steps, so that several loops can take turns on one machine.
    """

    runs_on = False
    """True if its requests go on elsewhere while its clock stands still: its turns must then leave
    none in flight.
    """

    def __init__(self, clock: Clock, setup: DecodingSetup) -> None:
        self.clock = clock
        self.setup = setup
        self.sessions: list[Session] = []
        self.waiting: deque[Request] = deque()
        self.on_round: Callable[[Sequence[FinishedRound]], None] | None = None
        """Called with the rounds of every step while the clock stands still."""
        self._refused: list[RequestRecord] = []
        self.admissions = inf
        """The number of waiting requests that may still be admitted."""

    def submit(self, request: Request, *, first: bool = False) -> None:
        """Queue a request; `first` puts it at the head of the queue, which the next turn of a
        dialogue needs.
        """
        (self.waiting.appendleft if first else self.waiting.append)(request)

    @property
    def effective_batch_size(self) -> int:
        """The number of requests decoded at the same time if enough of them wait."""
        return self.setup.batch_size

    @property
    def idle(self) -> bool:
        """True if no request is running or waiting."""
        return not (self.sessions or self.waiting)

    def step(self) -> list[RequestRecord]:
        """Admit waiting requests, run one round of the whole batch, and return the records of
        finished requests.
        """
        rounds: Sequence[FinishedRound] = ()
        with torch.inference_mode(), self.clock.running():
            while (
                self.waiting and self.admissions > 0 and len(self.sessions) < self.setup.batch_size
            ):
                self.admissions -= 1
                self._begin(self.waiting.popleft())
            if self.sessions:
                rounds = self.run_round()
        if self.on_round is not None:
            self.on_round(rounds)
        return self.collect()

    @abstractmethod
    def run_round(self) -> Sequence[FinishedRound]:
        """Decode one round of every session, and return the rounds that ended."""

    @abstractmethod
    def admit(self, session: Session) -> None:
        """Reserve what a new request needs."""

    @abstractmethod
    def release(self, session: Session) -> None:
        """Free what a finished request held."""

    def collect(self) -> list[RequestRecord]:
        """Remove the finished requests from the batch, and return their records and those of
        refused requests.
        """
        records = self._refused
        self._refused = []
        for session in [session for session in self.sessions if session.finish_reason]:
            self.sessions.remove(session)
            self.release(session)
            assert session.finish_reason is not None
            output_ids = session.tokens[len(session.request.prompt_ids) :]
            session.record.finish(output_ids, session.finish_reason, self.clock.now_s())
            if session.request.constraint is not None:
                session.record.grammar = session.request.constraint.outcome(output_ids)
            records.append(session.record)
        return records

    def _begin(self, request: Request) -> None:
        prompt_tokens = len(request.prompt_ids)
        record = RequestRecord(
            request.id, request.category, list(request.prompt_ids), time_kind=self.clock.time_kind
        )
        record.dialogue = request.dialogue
        capacity = self.setup.capacity
        room = capacity - prompt_tokens
        if not prompt_tokens or room < 1:
            record.finish_reason = "error"
            record.error = (
                f"the prompt has {prompt_tokens} tokens; the context holds 1 to {capacity - 1}"
            )
            self._refused.append(record)
            return
        request = replace(request, max_new_tokens=min(request.max_new_tokens, room))
        random = RequestRandom(self.setup.seed, request.id)
        session = Session(
            request,
            random,
            self.setup.eos_ids,
            self.clock.now_s(),
            record,
            self.setup.skip_forced,
        )
        # Before a verifier knows of the request: one elsewhere is told the text that it begins with.
        self._begin_forced(session)
        self.admit(session)
        self.sessions.append(session)

    def _begin_forced(self, session: Session) -> None:
        """Commit the tokens that an output has to begin with: they are computed with the prompt."""
        forced = session.skipped_after(())
        if not forced:
            return
        if len(forced) == session.request.max_new_tokens or not session.eos_ids.isdisjoint(forced):
            # A request has one round at least, so that its times are known.
            del forced[-1]
        session.commit(forced)
        session.record.forced_first = len(forced)


def mark_round(clock: Clock, session: Session) -> None:
    """Add a request's latest round to the timeline."""
    rounds = session.record.rounds
    name = session.request.id
    began_s = rounds[-2].end_s if len(rounds) > 1 else 0.0
    ended_s = rounds[-1].end_s
    start_s = session.arrival_s + began_s
    end_s = session.arrival_s + ended_s
    clock.mark(
        f"{REQUESTS}/{name}", f"round {len(rounds)} (+{rounds[-1].committed})", start_s, end_s, name
    )

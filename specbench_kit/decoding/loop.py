"""The loop that all engines share: requests wait, are admitted, are decoded step by step and are handed back."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import torch

from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.detail import FinishedRound
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.timeline import REQUESTS


class Loop(ABC):
    """Decodes requests in a closed loop: a request is submitted when one of `batch_size` slots is free.

    Its clock stands still between steps, so that several loops can take turns on one machine. `capacity` is the
    largest number of tokens, prompt and output, that a request may reach.
    """

    runs_on = False
    """True if its requests go on elsewhere while its clock stands still: its turns must then leave none in flight."""

    def __init__(self, clock: Clock, *, seed: int, eos_ids: frozenset[int], batch_size: int, capacity: int) -> None:
        self.clock = clock
        self.sessions: list[Session] = []
        self.waiting: deque[Request] = deque()
        self.on_round: Callable[[Sequence[FinishedRound]], None] | None = None
        """Called with the rounds of every step while the clock stands still."""
        self._seed = seed
        self._eos_ids = eos_ids
        self._batch_size = batch_size
        self._capacity = capacity
        self._refused: list[RequestRecord] = []
        self.admissions = inf
        """The number of waiting requests that may still be admitted."""

    def submit(self, request: Request, *, first: bool = False) -> None:
        """Queue a request; `first` puts it at the head of the queue, which the next turn of a dialogue needs."""
        (self.waiting.appendleft if first else self.waiting.append)(request)

    @property
    def effective_batch_size(self) -> int:
        """The number of requests decoded at the same time if enough of them wait."""
        return self._batch_size

    @property
    def idle(self) -> bool:
        """True if no request is running or waiting."""
        return not (self.sessions or self.waiting)

    def step(self) -> list[RequestRecord]:
        """Admit waiting requests, run one round of the whole batch, and return the records of finished requests."""
        rounds: Sequence[FinishedRound] = ()
        with torch.inference_mode(), self.clock.running():
            while self.waiting and self.admissions > 0 and len(self.sessions) < self._batch_size:
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
        """Remove the finished requests from the batch, and return their records and those of refused requests."""
        records = self._refused
        self._refused = []
        for session in [session for session in self.sessions if session.finish_reason]:
            self.sessions.remove(session)
            self.release(session)
            assert session.finish_reason is not None
            output_ids = session.tokens[len(session.request.prompt_ids) :]
            session.record.finish(output_ids, session.finish_reason, self.clock.now_s())
            records.append(session.record)
        return records

    def _begin(self, request: Request) -> None:
        prompt_tokens = len(request.prompt_ids)
        record = RequestRecord(request.id, request.category, list(request.prompt_ids), time_kind=self.clock.time_kind)
        room = self._capacity - prompt_tokens
        if not prompt_tokens or room < 1:
            record.finish_reason = "error"
            record.error = f"the prompt has {prompt_tokens} tokens; the context holds 1 to {self._capacity - 1}"
            self._refused.append(record)
            return
        request = replace(request, max_new_tokens=min(request.max_new_tokens, room))
        random = RequestRandom(self._seed, request.id)
        session = Session(request, random, self._eos_ids, self.clock.now_s(), record)
        self.admit(session)
        self.sessions.append(session)


def mark_round(clock: Clock, session: Session) -> None:
    """Add a request's latest round to the timeline."""
    rounds = session.record.rounds
    name = session.request.id
    began_s = rounds[-2].end_s if len(rounds) > 1 else 0.0
    ended_s = rounds[-1].end_s
    start_s = session.arrival_s + began_s
    end_s = session.arrival_s + ended_s
    clock.mark(f"{REQUESTS}/{name}", f"round {len(rounds)} (+{rounds[-1].committed})", start_s, end_s, name)

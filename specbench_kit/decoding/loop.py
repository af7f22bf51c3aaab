"""What every loop shares: requests that wait, are admitted, decoded step by step, and handed back."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from specbench_kit.decoding.clock import Clock
from specbench_kit.decoding.detail import FinishedRound
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.timeline import REQUESTS


class Loop(ABC):
    """Decodes requests. Its clock stands still between steps, so loops can take turns.

    A closed loop: a request is submitted when one of `batch_size` places is free. `capacity` is the most tokens,
    prompt and output, that a request can come to.
    """

    def __init__(self, clock: Clock, *, seed: int, eos_ids: frozenset[int], batch_size: int, capacity: int) -> None:
        self.clock = clock
        self.sessions: list[Session] = []
        self.waiting: deque[Request] = deque()
        self.on_round: Callable[[Sequence[FinishedRound]], None] | None = None
        """Is shown every round, while the clock stands still."""
        self._seed, self._eos_ids = seed, eos_ids
        self._batch_size, self._capacity = batch_size, capacity
        self._refused: list[RequestRecord] = []

    def submit(self, request: Request, *, first: bool = False) -> None:
        """Queue a request; `first` puts it at the head, as the next turn of a dialogue goes."""
        (self.waiting.appendleft if first else self.waiting.append)(request)

    @property
    def effective_batch_size(self) -> int:
        """Requests that are decoded at the same time where enough are asked."""
        return self._batch_size

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.sessions or self.waiting)

    def step(self) -> list[RequestRecord]:
        """One step of every request of the batch; returns those that finished."""
        rounds: Sequence[FinishedRound] = ()
        with torch.inference_mode(), self.clock.running():
            self._refill()
            if self.sessions:
                rounds = self._round()
        if self.on_round is not None:
            self.on_round(rounds)
        return self._collect()

    @abstractmethod
    def _round(self) -> Sequence[FinishedRound]:
        """Go on with every session."""

    @abstractmethod
    def _admit(self, session: Session) -> None:
        """Make room for a new request."""

    @abstractmethod
    def _release(self, session: Session) -> None:
        """Forget a finished request."""

    def _refill(self) -> None:
        while self.waiting and len(self.sessions) < self._batch_size:
            self._begin(self.waiting.popleft())

    def _begin(self, request: Request) -> None:
        record = RequestRecord(request.id, request.category, list(request.prompt_ids), time_kind=self.clock.time_kind)
        room = self._capacity - len(request.prompt_ids)
        if not request.prompt_ids or room < 1:
            record.finish_reason = "error"
            record.error = (
                f"the prompt has {len(request.prompt_ids)} tokens; the context holds 1 to {self._capacity - 1}"
            )
            self._refused.append(record)
            return
        request = replace(request, max_new_tokens=min(request.max_new_tokens, room))
        random = RequestRandom(self._seed, request.id)
        session = Session(request, random, self._eos_ids, self.clock.now_s(), record)
        self._admit(session)
        self.sessions.append(session)

    def _collect(self) -> list[RequestRecord]:
        done, self._refused = self._refused, []
        for session in [session for session in self.sessions if session.finish_reason]:
            self.sessions.remove(session)
            self._release(session)
            done.append(_close(session, self.clock.now_s()))
        return done


def mark_round(clock: Clock, session: Session) -> None:
    """Note a request's latest round on the timeline."""
    rounds, name = session.record.rounds, session.request.id
    began_s, ended_s = rounds[-2].end_s if len(rounds) > 1 else 0.0, rounds[-1].end_s
    start_s, end_s = session.arrival_s + began_s, session.arrival_s + ended_s
    clock.mark(f"{REQUESTS}/{name}", f"round {len(rounds)} (+{rounds[-1].committed})", start_s, end_s, name)


def _close(session: Session, now_s: float) -> RequestRecord:
    assert session.finish_reason is not None
    session.record.finish(session.tokens[len(session.request.prompt_ids) :], session.finish_reason, now_s)
    return session.record

"""A target behind a wire, as the loop sees it: frames go out with the drafts, verdicts come back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Event
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock, monotonic_s
from specbench_kit.decoding.distributions import FullDistributions
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.live.connection import Connection, ConnectionLostError
from specbench_kit.live.wire import RETRYABLE, Status, Up

MOST_TRIES = 200
"""Times that one round is sent, where the server puts it off."""


@dataclass(slots=True)
class _Round:
    """A draft on its way, and when it was sent."""

    draft: Draft
    nodes: list[int]
    frame: Any
    sent_s: float
    tries: int = 0
    verdict: Verdict | None = None
    arrived_s: float = 0.0
    told: Any = None


@dataclass(slots=True)
class _Known:
    """A session: its name at the server, and its latest round."""

    session: Session
    name: str
    round: int = 0


@dataclass
class WireVerifier:
    """Verifies over a connection, which others may use in turn.

    A round whose answer was lost is sent again: the server knows it by its number, and answers it once.
    """

    connection: Connection
    sampler: Sampler
    seed: int
    clock: MeasuringClock
    asynchronous: bool = True
    _known: dict[str, _Known] = field(default_factory=dict)
    _nonce: str = field(default_factory=lambda: token_hex(8))
    _opened: int = 0

    def admit(self, session: Session) -> None:
        """Open a session."""
        self._opened += 1
        name = f"{self._nonce}/{self._opened}/{session.request.id}"
        known = self._known[session.request.id] = _Known(session, name)
        self._open(known)

    def release(self, session: Session) -> None:
        """Close it."""
        known = self._known.pop(session.request.id)
        self.connection.send(Up(close={"session": known.name}))

    def commit(self, verdict: Verdict) -> None:
        """The server has committed with its verdict."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Send every draft; the answer waits for all verdicts."""
        began_s = monotonic_s()
        rounds = {}
        for draft, nodes in zip(drafts, chosen, strict=True):
            known = self._known[draft.request_id]
            known.round += 1
            frame = Up(draft=self._frame(known, draft, nodes))
            self.connection.send(frame)
            rounds[known.name] = _Round(draft, nodes, frame, began_s)
        sending_s = monotonic_s() - began_s
        return lambda: self._answer(rounds, sending_s)

    def answer_arrived(self) -> bool:
        """Whether an answer has arrived."""
        return self.connection.answer_arrived

    def _answer(self, rounds: dict[str, _Round], sending_s: float) -> list[Verdict]:
        began_s = monotonic_s()
        while any(one.verdict is None for one in rounds.values()):
            try:
                arrived_s, down = self.connection.receive()
            except ConnectionLostError:
                self.connection.reconnect()
                for one in rounds.values():
                    self._send_again(one)
                continue
            self._take(rounds, arrived_s, down)
        self._tell(list(rounds.values()), sending_s + monotonic_s() - began_s)
        return [one.verdict for one in rounds.values() if one.verdict is not None]

    def _take(self, rounds: dict[str, _Round], arrived_s: float, down: Any) -> None:
        """One frame; those of other rounds are passed over."""
        kind = down.WhichOneof("kind")
        if kind not in ("verdict", "refused"):
            return
        content = getattr(down, kind)
        one = rounds.get(content.session)
        if one is None or one.verdict is not None:
            return
        if kind == "refused":
            self._refused(one, content)
        elif content.round == one.frame.draft.round:
            one.verdict, one.arrived_s, one.told = _verdict(one, content), arrived_s, content

    def _refused(self, one: _Round, refused: Any) -> None:
        """Send again what may be sent again."""
        status = Status(refused.status)
        one.tries += 1
        if status is Status.UNKNOWN_SESSION:
            self._open(self._known[one.draft.request_id])
        elif status not in RETRYABLE or one.tries > MOST_TRIES:
            raise SkitError(f"the server refused a draft: {status.name}: {refused.reason}")
        Event().wait(refused.retry_ms / 1000)
        self._send_again(one)

    def _send_again(self, one: _Round) -> None:
        if one.verdict is None:
            self.connection.send(one.frame)

    def _open(self, known: _Known) -> None:
        session, sampler = known.session, self.sampler
        prompt = session.request.prompt_ids
        sampling = {
            "temperature": sampler.temperature,
            "top_p": sampler.top_p,
            "top_k": sampler.top_k,
            "seed": self.seed,
            "request": session.request.id,
        }
        frame = {"session": known.name, "prompt": prompt, "output": session.tokens[len(prompt) :]}
        self.connection.send(Up(open={**frame, "sampling": sampling}))

    def _frame(self, known: _Known, draft: Draft, nodes: list[int]) -> dict[str, Any]:
        tree = draft.tree
        place = {0: 0} | {node: number for number, node in enumerate(nodes, 1)}
        parents = [place[tree.parents[node]] for node in nodes]
        return {
            "session": known.name,
            "round": known.round,
            "base": len(draft.session.tokens),
            "tokens": [tree.tokens[node] for node in nodes],
            "parents": [] if parents == list(range(len(nodes))) else parents,
            **(_distributions(tree, nodes, self.connection.welcome.limits.candidates) if tree.sampled else {}),
        }

    def _tell(self, rounds: Sequence[_Round], charged_s: float) -> None:
        """Split the wait for the round that came last: what the server says of it, and the link as the difference."""
        last = max(rounds, key=lambda one: one.arrived_s)
        queue_s, verify_s = last.told.queue_us / 1e6, last.told.verify_us / 1e6
        link_s = max(0.0, last.arrived_s - last.sent_s - queue_s - verify_s)
        self.clock.split("verify", verify_s, charged_s, [("link", link_s, 2), ("queue", queue_s, 1)])


def _verdict(one: _Round, told: Any) -> Verdict:
    """The nodes that the server accepted, by their numbers here."""
    if told.status == Status.REBASE:
        return _rebased(one, list(told.suffix))
    if any(not 0 < place <= len(one.nodes) for place in told.path):
        raise SkitError("the server accepted tokens that were not sent: it is broken")
    path = [one.nodes[place - 1] for place in told.path]
    return Verdict(one.draft, one.nodes, path, told.bonus, max(1, told.computed))


def _rebased(one: _Round, suffix: list[int]) -> Verdict:
    """What the session went on with, as far as one round goes."""
    left = iter(suffix[:-1])
    path, _ = walk(one.draft.tree, one.nodes, lambda _: next(left, -1))
    return Verdict(one.draft, one.nodes, path, suffix[len(path)], 1)


def _distributions(tree: TokenTree, nodes: Sequence[int], most: int) -> dict[str, Any]:
    """Of tokens drawn at random: the entries of their distributions that are not zero, as they are."""
    counts: list[int] = []
    ids: list[int] = []
    probabilities: list[float] = []
    for node in nodes:
        source, row = tree.source(node)
        assert isinstance(source, FullDistributions)
        whole = source.probabilities[row]
        found = whole.nonzero()[:, 0]
        if len(found) > most:
            raise SkitError(
                f"a drafted token's distribution has {len(found)} entries and the server takes {most}: "
                f"draft from the likeliest alone, with --draft-top-n {most} or less"
            )
        counts.append(len(found))
        ids += found.tolist()
        probabilities += whole[found].tolist()
    return {"counts": counts, "ids": ids, "probabilities": probabilities}

"""Whose rounds come first at a server, and who gives up KV for whom."""

from collections.abc import Sequence
from itertools import count

import pytest
import torch
from offline_server import ANSWER, PROMPT, device, offline, open_session, read, send_draft, verify

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import VerifiedRow, verified_rows
from specbench_kit.live.server import batches
from specbench_kit.live.server.batches import Backlog
from specbench_kit.live.server.handler import FrameHandler
from specbench_kit.live.server.rounds import PendingRound
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.states import from_bytes
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.runner import Append


def pending(session: ServerSession, arrived_s: float) -> PendingRound:
    """Return a round of a session that has arrived."""
    draft = Draft(session.text, TokenTree(session.text.tokens[-1]))
    return PendingRound(session, 1, draft, arrived_s, 60.0, 60.0)


def two_accounts(handler: FrameHandler, *counts: int) -> list[list[ServerSession]]:
    """Return so many sessions of the accounts a, b, and so on."""
    sessions_by_account = []
    for token, number in zip("abc", counts, strict=False):
        stream = device(handler, token)
        sessions_by_account.append(
            [open_session(stream, f"{token}{index}") for index in range(number)]
        )
    return sessions_by_account


def test_each_account_has_its_share_of_the_queue_in_order_of_arrival() -> None:
    """Four slots for two accounts: two rounds of each at a time, the oldest first."""
    handler = offline(slots=4, tokens=("a", "b"))
    (many, few), backlog = two_accounts(handler, 5, 1), Backlog(4)
    of_a = [pending(session, arrived_s) for arrived_s, session in enumerate(many)]
    of_b = [pending(few[0], 0.5)]
    for waiting in (*of_a, *of_b):
        backlog.add(waiting)
    accounts = {session.account for session in (*many, *few)}
    assert backlog.take(accounts) == [of_a[0], of_b[0], of_a[1]]
    assert (len(backlog), backlog.take(accounts)) == (3, [])
    backlog.leave([of_a[0], of_b[0]])
    assert backlog.take(accounts) == [of_a[2]]
    backlog.leave([of_a[1], of_a[2]])
    # Nobody else uses the server any more.
    assert backlog.take([many[0].account]) == [of_a[3], of_a[4]]
    assert len(backlog) == 0


def test_the_session_that_was_used_longest_ago_loses_its_slot() -> None:
    handler = offline(slots=2)
    stream, slots = device(handler), handler.batch_runner.slots
    first, second, third = (open_session(stream, name) for name in "abc")
    for session in (first, second, first, third):
        slots.bring(session, {session})
    assert list(slots._holders) == [first, third]
    assert (slots.evictions, second.account.evictions) == (1, 1)


def test_a_session_of_the_same_batch_keeps_its_slot() -> None:
    handler = offline(slots=2)
    stream, slots = device(handler), handler.batch_runner.slots
    first, second, third = (open_session(stream, name) for name in "abc")
    slots.bring(first, {first})
    slots.bring(second, {second})
    slots.bring(third, {first, third})
    assert list(slots._holders) == [first, third]


@pytest.mark.parametrize(
    ("held", "asks", "loses"),
    [("baaa", "a", 1), ("baaa", "b", 1), ("bbaa", "b", 0), ("aabb", "b", 2), ("aabb", "c", 0)],
)
def test_who_holds_more_than_its_share_gives_up_its_own_oldest_slot(
    held: str, asks: str, loses: int
) -> None:
    """The one that asks counts as well: with it an account may be beyond its share."""
    handler = offline(slots=4, tokens=("a", "b", "c"))
    streams, slots = {token: device(handler, token) for token in "abc"}, handler.batch_runner.slots
    sessions = [open_session(streams[token], f"{number}") for number, token in enumerate(held)]
    for session in sessions:
        slots.bring(session, ())
    asking = open_session(streams[asks], "new")
    slots.bring(asking, {asking})
    lost = sessions.pop(loses)
    assert list(slots._holders) == [*sessions, asking]
    assert [streams[token].caller.account.evictions for token in "abc"] == [
        int(held[loses] == token) for token in "abc"
    ]
    assert lost.cached == 0


def test_a_scheduler_is_told_what_a_round_costs_and_what_it_costs_without_its_kv() -> None:
    handler = offline(waiting=1, slots=1)
    stream, runner = device(handler), handler.batch_runner
    session = open_session(stream, "a")
    send_draft(stream, "a")
    verify(handler)
    # Two drafted tokens and the bonus token are committed; the bonus token is not in KV.
    assert read(stream).cached == 0
    assert session.cached == len(PROMPT) + 2
    for name in "bc":
        open_session(stream, name)
    send_draft(stream, "a", 2, base=len(PROMPT) + 3, tokens=ANSWER[3:5])
    send_draft(stream, "b")
    runner._admit_arrivals()
    waiting, degraded = runner._waiting_of.values()
    assert (waiting.cached, waiting.new, waiting.expected_tokens) == (
        len(PROMPT) + 2,
        1 + 2,
        (3 + 2) / 2,
    )
    assert (degraded.cached, degraded.new, degraded.expected_tokens) == (0, len(PROMPT), 1.0)
    runner.slots.release(session)
    assert (waiting.cached, waiting.new) == (0, len(PROMPT) + 3 + 2)


def test_rounds_that_a_batch_leaves_behind_are_looked_at_again_at_once() -> None:
    handler = offline(slots=1)
    stream, runner = device(handler), handler.batch_runner
    for name in "ab":
        open_session(stream, name)
        send_draft(stream, name)
    verify(handler, batches=1)
    assert (runner.waiting, runner._retry_s) == (1, 0.0)
    verify(handler)
    assert (runner.waiting, runner._retry_s) == (0, float("inf"))


def test_the_seconds_of_a_round_are_those_of_its_queue_and_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock is read when a batch begins, when all is drafted, and at its end."""
    handler = offline(tokens=("a", "b"))
    (of_a, of_b), runner = two_accounts(handler, 2, 2), handler.batch_runner
    handler.drop(of_a[1], "closed")
    runner._backlog.add(pending(of_b[1], 3.0))
    delivered: list[list] = []
    runner.deliver = delivered.append
    monkeypatch.setattr(batches, "monotonic_s", count(10.0, 5.0).__next__)
    with torch.inference_mode():
        runner._verify(
            [pending(of_a[0], 4.0), pending(of_a[1], 4.0), pending(of_b[0], 11.0)], expected_s=0.5
        )
    ((first, second),) = delivered
    assert (first.pending.session, second.pending.session) == (of_a[0], of_b[0])
    assert (first.queue_s, second.queue_s) == (6.0, 0.0)
    assert first.batch == second.batch
    assert (
        first.batch.size,
        first.batch.verify_s,
        first.batch.expected_s,
        first.batch.waiting,
    ) == (2, 5.0, 0.5, 1)
    assert len(runner.slots) == 2, "a closed session takes no slot"


def test_a_batch_verifies_each_session_by_its_own_sampling() -> None:
    """One greedy session among sampled ones, each of which gets what it gets alone."""
    temperatures = [0.0, *[5.0] * 5, 0.7]

    def bonuses(places: list[int]) -> list[int]:
        handler = offline(slots=8)
        stream = device(handler)
        for index in places:
            open_session(
                stream, f"s{index}", sampling={"temperature": temperatures[index], "seed": 3}
            )
            send_draft(stream, f"s{index}", tokens=[])
        verified = verify(handler)
        assert {verification.batch.size for verification in verified} == {len(places)}
        return [verification.verdict.bonus for verification in verified if verification.verdict]

    together = bonuses(list(range(7)))
    assert together == [bonuses([index])[0] for index in range(7)]
    assert together[0] == ANSWER[0]
    assert len(set(together)) > 2


def test_a_batch_brings_each_session_the_states_of_its_own_layers() -> None:
    layers = [(2,), (1,), (0, 1)]

    def states(places: list[int]) -> list[torch.Tensor]:
        handler = offline()
        stream = device(handler)
        for index in places:
            open_session(stream, f"s{index}", layers=layers[index])
            send_draft(stream, f"s{index}")
        verified = verify(handler)
        assert {verification.batch.size for verification in verified} == {len(places)}
        return [from_bytes(verification.states, len(PROMPT) + 2) for verification in verified]

    for together, index in zip(states([0, 1, 2]), range(3), strict=True):
        (alone,) = states([index])
        assert alone.shape[1] == 32 * len(layers[index])
        torch.testing.assert_close(together, alone, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_what_a_failed_forward_appended_is_dropped_before_the_next(
    fails: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch fails so many times and is verified by halves; each session gets its verdict, or its failure, once."""
    from specbench_kit.live.server import verifiers

    calls = count(1)

    def failing(forward: Forward, rows: Sequence[Append], *, greedy: bool) -> list[VerifiedRow]:
        if next(calls) <= fails:
            raise RuntimeError("out of memory")
        return verified_rows(forward, rows, greedy=greedy)

    monkeypatch.setattr(verifiers, "verified_rows", failing)
    handler = offline()
    stream = device(handler)
    for name in "abcd":
        open_session(stream, name)
        send_draft(stream, name)
    verified = verify(handler)
    outcomes = {
        verification.pending.session.name: (
            verification.error,
            verification.verdict and verification.verdict.bonus,
        )
        for verification in verified
    }
    failed = {name for name, (error, _) in outcomes.items() if error}
    assert list(outcomes) == list("abcd")
    assert failed == ({"a"} if fails == 3 else set())
    assert all(bonus == ANSWER[2] for name, (_, bonus) in outcomes.items() if name not in failed)
    for name in sorted(set("abcd") - failed):
        send_draft(stream, name, 2, base=len(PROMPT) + 3, tokens=ANSWER[3:5])
    again = verify(handler)
    assert [verification.verdict and verification.verdict.bonus for verification in again] == [
        ANSWER[5]
    ] * (4 - len(failed))

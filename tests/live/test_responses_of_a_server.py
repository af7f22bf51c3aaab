"""Responses that a server decodes by itself: when they rest, go on and end, and what they leave in its drafter."""

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from known_drafts import SURE, Known
from offline_server import ANSWER, PROMPT, device, offline, open_session, read, send_draft, verify

from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.live.server import drafting
from specbench_kit.live.server.generation import Generation, GenerationState
from specbench_kit.live.server.handler import FrameHandler, _add_times, verdict_frame
from specbench_kit.live.server.rounds import (
    PendingRound,
    VerifiedBatch,
    VerifiedRound,
    generated_round,
)
from specbench_kit.live.server.service import DeviceStream
from specbench_kit.live.server.sessions import ServerSession
from specbench_kit.live.wire import Down, Status, Up

CHAIN, TREE = "fixed-k:k=3", "specinfer:branching=2-1"


def generate(
    stream: DeviceStream, name: str, number: int, base: int, tokens: int, method: str = ""
) -> None:
    """Ask for a response."""
    request = {
        "session": name,
        "round": number,
        "base": base,
        "max_tokens": tokens,
        "method": method,
    }
    stream.receive(Up(generate=request))


def parked(handler: FrameHandler, stream: DeviceStream, name: str) -> ServerSession:
    """Begin a response whose tokens are not read until it rests; return its session."""
    session = open_session(stream, name)
    generate(stream, name, 1, len(PROMPT), 40)
    verify(handler)
    assert session.generation is not None
    assert session.generation.state is GenerationState.PARKED
    assert session.generation.answered == session.generation.verified == stream.unread
    return session


def read_all(stream: DeviceStream) -> list[int]:
    """Return the tokens of all answers that wait."""
    return [token for _ in range(stream.unread) for token in read(stream).tokens]


def test_who_reads_goes_on_and_others_rest() -> None:
    handler = offline(credit=8)
    first, second = device(handler), device(handler)
    sessions = [parked(handler, first, "a"), parked(handler, second, "b")]
    tokens = read_all(first)
    states = [session.generation.state for session in sessions]
    assert states == [GenerationState.RUNS, GenerationState.PARKED]
    assert handler.batch_runner.waiting == 1
    while first.unread or handler.batch_runner.waiting:
        verify(handler)
        tokens += read_all(first)
    assert tokens == ANSWER
    assert len(sessions[1].text.tokens) < len(PROMPT) + 10


def test_a_response_of_a_closed_session_does_not_go_on() -> None:
    handler = offline(credit=8)
    stream = device(handler)
    session = parked(handler, stream, "a")
    handler.drop(session, "closed")
    read_all(stream)
    assert handler.batch_runner.waiting == 0


def test_a_resting_response_that_is_cancelled_leaves_nothing_in_flight() -> None:
    handler = offline(credit=8)
    stream = device(handler)
    session = parked(handler, stream, "a")
    assert stream.unread >= 4
    assert session.in_flight
    stream.receive(Up(cancel={"session": "a"}))
    last = [read(stream) for _ in range(stream.unread)][-1]
    assert (session.in_flight, session.account.in_flight, session.generation) == (False, 0, None)
    assert (last.last, last.base, list(last.tokens)) == (True, len(session.text.tokens), [])
    base = len(session.text.tokens)
    send_draft(stream, "a", 2, base=base, tokens=ANSWER[base - len(PROMPT) :][:2])
    verify(handler)
    assert list(read(stream).path) == [1, 2]


def test_no_response_is_begun_in_an_overload_or_at_the_end() -> None:
    handler = offline(waiting=1)
    stream = device(handler)
    for name in "abc":
        open_session(stream, name)
    for name in "ab":
        send_draft(stream, name)
    generate(stream, "c", 1, len(PROMPT), 5)
    assert Status(read(stream).status) is Status.OVERLOADED
    verify(handler)
    read_both = [read(stream) for _ in range(stream.unread)]
    assert len(read_both) == 2
    handler.admission.stopping = True
    generate(stream, "c", 1, len(PROMPT), 5)
    assert Status(read(stream).status) is Status.GOING_AWAY
    assert not stream.sessions["c"].in_flight


@pytest.mark.parametrize("method", ["", CHAIN])
def test_responses_of_any_length_follow_each_other_in_one_session(method: str) -> None:
    """Tokens drafted and verified beyond the end of one response are in neither model's KV for the next."""
    handler = offline(methods=(CHAIN,))
    stream = device(handler)
    session = open_session(stream, "s")
    cut = 0
    for number, tokens in enumerate((1, 2, 3, 1, 4, 5), 1):
        base = len(session.text.tokens)
        generate(stream, "s", number, base, tokens, method)
        verified = verify(handler)
        frames = [read(stream) for _ in range(stream.unread)]
        sent = [token for frame in frames for token in frame.tokens]
        assert sent == ANSWER[base - len(PROMPT) :][:tokens]
        assert [frame.last for frame in frames] == [*[False] * (len(frames) - 1), True]
        cut += sum(
            len(response.verdict.tokens) - len(response.tokens)
            for response in verified
            if response.verdict
        )
        assert session.committed == len(session.text.tokens) - len(PROMPT)
        assert handler.batch_runner._drafters._of_session == {}
    assert cut > 0 or not method


def test_responses_with_other_sampling_have_drafters_of_their_own() -> None:
    """A sampled draft brings its distributions, a greedy one has none: each response is as it is alone."""
    samplings = [
        {"temperature": 0.0},
        {"temperature": 1.5, "seed": 3},
        {"temperature": 0.7, "seed": 3},
    ]

    def responses(places: list[int]) -> list[list[int]]:
        handler = offline(methods=(CHAIN,))
        stream = device(handler)
        for index in places:
            open_session(stream, f"s{index}", sampling=samplings[index])
            generate(stream, f"s{index}", 1, len(PROMPT), 12, CHAIN)
        verify(handler)
        return [stream.sessions[f"s{index}"].text.tokens for index in places]

    alone = [responses([index])[0] for index in range(3)]
    assert responses([0, 1, 2]) == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


def test_drafters_in_use_stay_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "MAX_DRAFTERS", 2)
    handler = offline(methods=(CHAIN,))
    stream, drafters = device(handler), handler.batch_runner._drafters
    sessions = [open_session(stream, f"{n}", sampling={"temperature": float(n)}) for n in range(4)]
    drawn = [generated_round(session, generation_of(CHAIN), 0.0) for session in sessions]
    drafters.draft(drawn[:1])
    used = drafters._drafter(CHAIN, sessions[0])
    unused = drafters._drafter(CHAIN, sessions[1])
    drafters._drafter(CHAIN, sessions[2])
    assert drafters._drafter(CHAIN, sessions[0]) is used
    assert unused not in drafters._drafters.values()
    drafters.release(sessions[0])
    assert used.sessions == set()
    drafters._drafter(CHAIN, sessions[3])
    assert used not in drafters._drafters.values()


def generation_of(method: str) -> Generation:
    """Return a response by a method."""
    return Generation(1, 20, frozenset(), 60.0, method)


def test_a_session_with_another_method_leaves_its_first_drafter() -> None:
    handler = offline(methods=(CHAIN, TREE))
    stream, drafters = device(handler), handler.batch_runner._drafters
    session = open_session(stream, "s")
    drafters.draft([generated_round(session, generation_of(CHAIN), 0.0)])
    first = drafters._of_session[session]
    drafters.draft([generated_round(session, generation_of(TREE), 0.0)])
    assert drafters._of_session[session] is not first
    assert (first.sessions, drafters._of_session[session].sessions) == (set(), {session})


def test_the_seconds_of_a_batch_of_drafts_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = offline(methods=(CHAIN,))
    stream = device(handler)
    rounds = [
        generated_round(open_session(stream, name), generation_of(CHAIN), 0.0) for name in "abcd"
    ]
    monkeypatch.setattr(drafting, "monotonic_s", count(10.0, 2.0).__next__)
    assert handler.batch_runner._drafters.draft(rounds) == {}
    assert [draft_round.draft_s for draft_round in rounds] == [0.5] * 4
    assert [draft_round.nodes for draft_round in rounds] == [[1, 2, 3]] * 4


@pytest.mark.parametrize("poisoned", ["", "b", "abcd"])
def test_drafts_of_a_batch_that_fails_are_made_one_by_one(
    poisoned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fails alone fails; the others draft as if nothing had been."""
    handler = offline(methods=(CHAIN,))
    stream, drafters = device(handler), handler.batch_runner._drafters
    rounds = [
        generated_round(open_session(stream, name), generation_of(CHAIN), 0.0) for name in "abcd"
    ]
    drafter = drafters._drafter(CHAIN, rounds[0].session)
    begin = drafter._drafter.begin
    failures = count()

    def failing(sessions: list[Session]) -> Any:
        drafts = begin(sessions)
        if (len(sessions) > 1 and next(failures) == 0) or any(
            session.record.request_id in poisoned for session in sessions
        ):
            drafter._drafter.extend(drafts)
            raise RuntimeError("no room")
        return drafts

    monkeypatch.setattr(drafter._drafter, "begin", failing)
    errors = drafters.draft(rounds)
    assert {failed.session.name: error for failed, error in errors.items()} == dict.fromkeys(
        poisoned, "no room"
    )
    monkeypatch.undo()
    sound = [draft_round for draft_round in rounds if draft_round not in errors]
    for draft_round in sound:
        alone = offline(methods=(CHAIN,))
        expected = generated_round(open_session(device(alone), "s"), generation_of(CHAIN), 0.0)
        alone.batch_runner._drafters.draft([expected])
        assert draft_round.draft.tree.tokens == expected.draft.tree.tokens
    assert set(drafters._of_session) == {draft_round.session for draft_round in sound}


def answered(handler: FrameHandler) -> VerifiedRound:
    """Return a round of which every number is another one: 5 drafted, 3 submitted, 2 accepted."""
    session = open_session(device(handler), "s")
    tree = TokenTree(session.text.tokens[-1])
    for token in (21, 22, 23, 24, 25):
        tree.add(token, tree.last, Known(SURE, sampled=False), 0)
    draft = Draft(session.text, tree)
    waiting = PendingRound(
        session, 9, draft, 0.0, 1.0, 1.0, generation=generation_of(CHAIN), draft_s=0.011
    )
    verdict = Verdict(draft, [1, 2, 3], [1, 2], 40, 12, padded=(4, 1, 8, 9, 0))
    batch = VerifiedBatch(6, 7, 0.013, 0.017, 8)
    return VerifiedRound(
        waiting, verdict, "", 0.019, 14, batch, base=6, tokens=verdict.tokens, states=b"ab"
    )


def test_a_verdict_tells_each_of_its_numbers() -> None:
    verified = answered(offline())
    frame = verdict_frame(verified, 15).verdict
    assert (frame.session, frame.round, frame.status) == ("s", 9, Status.OK)
    assert (list(frame.path), frame.bonus, frame.states) == ([1, 2], 40, b"ab")
    assert (frame.queue_us, frame.verify_us, frame.expected_us) == (19_000, 13_000, 17_000)
    assert (frame.batch_number, frame.batch_size, frame.waiting) == (6, 7, 8)
    assert (frame.cached, frame.computed, frame.credit, list(frame.padded)) == (
        14,
        12,
        15,
        [4, 1, 8, 9, 0],
    )
    degraded = verdict_frame(
        verified._replace(pending=replace(verified.pending, degraded=True)), 15
    ).verdict
    assert degraded.status == Status.DEGRADED


def test_streamed_tokens_tell_each_of_their_numbers() -> None:
    down = Down()
    _add_times(down.generated, answered(offline()))
    frame = down.generated
    assert (frame.queue_us, frame.verify_us, frame.draft_us) == (19_000, 13_000, 11_000)
    assert (frame.batch_number, frame.batch_size) == (6, 7)
    assert (frame.drafted, frame.submitted, frame.accepted) == (5, 3, 2)
    assert (frame.cached, frame.computed, list(frame.padded)) == (14, 12, [4, 1, 8, 9, 0])

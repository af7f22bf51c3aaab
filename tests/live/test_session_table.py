"""Which session a device finds again, which is dropped for another one, and which is silent or idle."""

import pytest
from offline_server import (
    ANSWER,
    PROMPT,
    ask,
    device,
    offline,
    open_session,
    read,
    send_draft,
    verify,
)

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.live.server.drafts import read_draft
from specbench_kit.live.server.generation import Generation, GenerationEvent, GenerationState
from specbench_kit.live.server.sessions import SilenceBound, read_silence_bound
from specbench_kit.live.wire import Refusal, Status


@pytest.mark.parametrize(
    ("change", "is_resumed"),
    [
        ({"output": ANSWER[:2]}, True),
        ({"output": ANSWER[:3]}, True),
        ({"output": []}, True),
        ({"output": [ANSWER[0], (ANSWER[1] + 1) % 64]}, False),
        ({"output": [*ANSWER[:3], 1]}, False),
        ({"prompt": [*PROMPT[:-1], 7]}, False),
        ({"prompt": [*PROMPT, ANSWER[0]], "output": ANSWER[1:2]}, False),
        ({"sampling": {"request": "s", "temperature": 1.0}}, False),
        ({"layers": [1]}, False),
    ],
)
def test_a_session_is_resumed_by_a_device_with_its_text_and_its_sampling(
    change: dict[str, object], is_resumed: bool
) -> None:
    handler = offline()
    stream = device(handler)
    before = open_session(stream, "s")
    send_draft(stream, "s")
    verify(handler)
    read(stream)
    opened = ask(
        stream, open={"session": "s", "prompt": PROMPT, "sampling": {"request": "s"}, **change}
    )
    assert (stream.sessions["s"] is before) is is_resumed
    assert before.closed is not is_resumed
    kept_tokens = len(PROMPT) + 3
    given_tokens = len(change.get("prompt", PROMPT)) + len(change.get("output", []))  # type: ignore[arg-type]
    assert (opened.committed, opened.cached) == (
        (kept_tokens, kept_tokens - 1) if is_resumed else (given_tokens, 0)
    )
    assert stream.caller.account.sessions == len(handler.sessions) == 1


def test_a_text_that_is_being_verified_is_told_as_nothing() -> None:
    handler = offline()
    stream = device(handler)
    open_session(stream, "s")
    send_draft(stream, "s")
    again = {"session": "s", "prompt": PROMPT, "sampling": {"request": "s"}}
    assert ask(stream, open=again).committed == 0
    verify(handler)
    read(stream)
    assert ask(stream, open=again).committed == len(PROMPT) + 3


def test_a_session_that_has_moved_stays_when_its_old_stream_ends() -> None:
    handler = offline()
    old, new = device(handler), device(handler)
    session = open_session(old, "s")
    for stream in (old, new):
        handler.admission.count_stream(stream.caller.account, 1)
    send_draft(new, "s")
    handler.leave(old, "ended")
    verify(handler)
    assert session.stream is new
    assert (read(new).bonus, old.answers.empty()) == (ANSWER[2], True)
    handler.leave(new, "ended")
    assert session.stream is None


def test_the_session_that_nobody_used_for_longest_makes_room() -> None:
    handler = offline(sessions=3)
    stream, departed = device(handler), device(handler)
    for name in "abc":
        open_session(departed, name)
        departed.sessions[name].stream = None
    for name in "ab":
        send_draft(stream, name)
    verify(handler)
    for _ in "ab":
        read(stream)
    stream.sessions["a"].stream = stream.sessions["b"].stream = None
    open_session(stream, "d")
    assert [session.name for session in handler.sessions] == ["a", "b", "d"]
    open_session(stream, "e")
    assert [session.name for session in handler.sessions] == ["b", "d", "e"]
    assert stream.caller.account.sessions == 3


def test_an_account_within_its_share_takes_room_that_others_do_not_use_and_no_other_account_does() -> (
    None
):
    handler = offline(sessions=4, token_sessions=3, tokens=("a", "b"))
    first, second = device(handler, "a"), device(handler, "b")
    for name in "123":
        open_session(first, name)
    open_session(second, "4")
    second.sessions["4"].stream = None
    # The first has its three sessions and all of them are connected, so that it may not take that of the second.
    assert (
        Status(ask(first, open={"session": "5", "prompt": PROMPT}).status)
        is Status.TOO_MANY_SESSIONS
    )
    second.sessions["4"].stream = second
    first.sessions["2"].stream = None
    open_session(second, "5")
    assert [session.name for session in handler.sessions] == ["1", "3", "4", "5"]
    assert (first.caller.account.sessions, second.caller.account.sessions) == (2, 2)


def test_idle_sessions_are_dropped_and_not_those_with_a_round_in_flight() -> None:
    handler = offline(idle_s=5.0)
    stream = device(handler)
    for name in "abc":
        open_session(stream, name)
    send_draft(stream, "b")
    for session in handler.sessions:
        session.used_s = 100.0
    stream.sessions["c"].used_s = 101.0
    assert handler.sessions.drop_idle(105.0) == []
    assert [session.name for session in handler.sessions.drop_idle(105.5)] == ["a"]
    assert {session.name for session in handler.sessions} == {"b", "c"}


def test_a_device_is_silent_that_owes_a_draft_for_longer_than_it_said() -> None:
    handler = offline()
    stream = device(handler)
    silence = {"silence_ms": 1000, "max_tokens": 20}
    for name in ("answered", "waits", "new"):
        open_session(stream, name, **silence)
    open_session(stream, "patient")
    for name in ("answered", "patient"):
        send_draft(stream, name)
    verify(handler)
    send_draft(stream, "waits")
    for session in handler.sessions:
        session.used_s = 100.0
    assert handler.sessions.silent(101.0) == []
    assert [session.name for session in handler.sessions.silent(101.5)] == ["answered"]


def test_silent_devices_are_not_relieved_in_an_overload_or_at_the_end() -> None:
    handler = offline(waiting=1)
    stream = device(handler)
    session = open_session(stream, "s", silence_ms=100, max_tokens=20)
    open_session(stream, "other")
    send_draft(stream, "s")
    verify(handler)
    session.used_s = 0.0
    send_draft(stream, "other")
    handler.relieve_silent()
    assert not session.in_flight
    verify(handler)
    handler.admission.stopping = True
    handler.relieve_silent()
    assert not session.in_flight
    handler.admission.stopping = False
    handler.relieve_silent()
    assert session.in_flight
    verify(handler)
    assert session.text.tokens == [*PROMPT, *ANSWER[:20]]


def test_who_was_silent_gets_what_it_lacks_and_not_its_last_answer_again() -> None:
    handler = offline()
    stream = device(handler)
    session = open_session(stream, "s", silence_ms=100, max_tokens=20)
    send_draft(stream, "s")
    verify(handler)
    assert list(read(stream).path) == [1, 2]
    session.used_s = 0.0
    handler.relieve_silent()
    # The same round again, while the server goes on alone: it is ended, and the device comes again.
    send_draft(stream, "s")
    assert Status(read(stream).status) is Status.IN_FLIGHT
    verify(handler)
    assert len(session.text.tokens) == len(PROMPT) + 4, "the round under way was the last"
    send_draft(stream, "s", 2, base=len(PROMPT) + 3)
    rebased = read(stream)
    assert (Status(rebased.status), list(rebased.suffix)) == (Status.REBASE, ANSWER[3:4])


def test_a_rebase_is_answered_again_and_counts_as_a_round() -> None:
    handler = offline()
    stream = device(handler)
    open_session(stream, "s")
    send_draft(stream, "s")
    verify(handler)
    read(stream)
    for _ in range(2):
        send_draft(stream, "s", 2, base=len(PROMPT) + 1)
        rebased = read(stream)
        assert (Status(rebased.status), rebased.round, list(rebased.suffix)) == (
            Status.REBASE,
            2,
            ANSWER[1:3],
        )
    send_draft(stream, "s", 3, base=len(PROMPT) + 3, tokens=ANSWER[3:4])
    verify(handler)
    assert read(stream).bonus == ANSWER[4]


PARENTS = [0, 1]
SAMPLED = Sampler(1.0)
GOOD = {"tokens": [5, 6], "counts": [2, 1], "ids": [5, 7, 6], "probabilities": [0.75, 0.25, 1.0]}


@pytest.mark.parametrize(
    "change",
    [
        {"probabilities": [0.5, 0.25, 1.0]},
        {"probabilities": [0.75, 0.5, 1.0]},
        {"probabilities": [1.25, -0.25, 1.0]},
        {"probabilities": [0.0, 1.0, 1.0]},
        {"probabilities": [0.75, float("inf"), 1.0]},
        {"parents": [0, 0]},
        {"counts": [1, 1]},
        {"counts": [3]},
        {"ids": [5, 5, 6]},
        {"ids": [7, 5, 6], "tokens": [6, 6]},
    ],
)
def test_a_distribution_from_which_a_token_cannot_be_drawn_is_refused(
    change: dict[str, list[float]],
) -> None:
    handler = offline(candidates=2)
    session = open_session(device(handler), "s")
    read_draft(messages.Draft(**GOOD), session.text, SAMPLED, handler.limits, 64)
    with pytest.raises(Refusal) as refused:
        read_draft(messages.Draft(**{**GOOD, **change}), session.text, SAMPLED, handler.limits, 64)
    assert refused.value.status is Status.BROKEN_DISTRIBUTION


def test_a_distribution_is_no_larger_than_the_server_takes() -> None:
    """Two tokens may have two entries each at most, and one has three."""
    handler = offline(candidates=2)
    session = open_session(device(handler), "s")
    large = {**GOOD, "counts": [3, 1], "ids": [5, 7, 8, 6], "probabilities": [0.5, 0.25, 0.25, 1.0]}
    with pytest.raises(Refusal, match="a distribution of 3 entries; this server takes 2"):
        read_draft(messages.Draft(**large), session.text, SAMPLED, handler.limits, 64)


def test_a_draft_reaches_the_end_of_the_context_and_no_further() -> None:
    handler = offline()
    session = open_session(device(handler), "s")
    base = len(PROMPT)
    room = handler.limits.context - base
    longest = read_draft(
        messages.Draft(base=base, tokens=[1] * room), session.text, Sampler(), handler.limits, 64
    )
    assert len(longest.tree) == 1 + room
    with pytest.raises(Refusal, match="CONTEXT_FULL"):
        read_draft(
            messages.Draft(base=base, tokens=[1] * (room + 1)),
            session.text,
            Sampler(),
            handler.limits,
            64,
        )


def test_a_received_tree_hangs_below_the_last_token() -> None:
    handler = offline()
    session = open_session(device(handler), "s")
    draft = messages.Draft(tokens=[21, 22, 23], parents=[0, 0, 2])
    tree = read_draft(draft, session.text, Sampler(), handler.limits, 64).tree
    assert (tree.tokens, tree.parents[1:]) == ([PROMPT[-1], 21, 22, 23], [0, 0, 2])


@pytest.mark.parametrize(
    "state", [GenerationState.RUNS, GenerationState.PAUSES, GenerationState.ENDS]
)
def test_a_response_that_is_finished_is_over(state: GenerationState) -> None:
    generation = Generation(1, 10, frozenset(), 1.0, state=state)
    generation.move(GenerationEvent.FINISHED)
    assert generation.state is GenerationState.OVER


def test_a_response_is_cut_at_its_limit_and_behind_its_end() -> None:
    generation = Generation(1, 5, frozenset({9}), 1.0)
    assert (generation.cut([1, 2]), generation.room, generation.finished) == ([1, 2], 3, False)
    assert (generation.cut([3, 4, 5, 6]), generation.room, generation.finished) == (
        [3, 4, 5],
        0,
        True,
    )
    ended = Generation(1, 5, frozenset({9}), 1.0)
    assert (ended.cut([1, 9, 9, 2]), ended.room, ended.finished) == ([1, 9], 3, True)


def test_the_rest_of_a_silent_devices_response_ends_where_it_would_have() -> None:
    bound = SilenceBound(1.0, 10, frozenset({9}))
    remainder = bound.generation(4, [9, 1, 2, 3, 4], 2)
    assert remainder is not None
    assert (remainder.number, remainder.room, remainder.unasked) == (4, 5, True)
    assert bound.generation(4, [1, 2, 3, 9, 4], 2) is None
    assert bound.generation(4, [1] * 10, 2) is None


def test_a_silence_is_bounded_by_the_context_and_not_too_short() -> None:
    def opening(**more: int) -> messages.Open:
        return messages.Open(prompt=PROMPT, **{"silence_ms": 50, "max_tokens": 200, **more})

    limits = ServerLimits(context=160)
    bound = read_silence_bound(opening(), limits, 64)
    assert bound is not None
    assert (bound.silence_s, bound.end) == (0.05, 160)
    shorter = read_silence_bound(opening(max_tokens=10), limits, 64)
    assert shorter is not None
    assert shorter.end == len(PROMPT) + 10
    for broken in ({"silence_ms": 49}, {"max_tokens": 0}):
        with pytest.raises(Refusal, match="BROKEN_DEADLINE"):
            read_silence_bound(opening(**broken), limits, 64)


def test_states_reach_at_most_to_the_token_before_the_last() -> None:
    handler = offline()
    stream = device(handler)
    open_session(stream, "s", layers=[1])
    for states, status in (
        (len(PROMPT), Status.BROKEN_STATES),
        (len(PROMPT) + 1, Status.BROKEN_STATES),
    ):
        send_draft(stream, "s", states=states)
        assert Status(read(stream).status) is status
    send_draft(stream, "s", states=0)
    verify(handler)
    width = 2 * 32
    assert len(read(stream).states) == (len(PROMPT) + 2) * width
    # The bonus token's state alone is not known; a device that has fewer opens its session again.
    send_draft(stream, "s", 2, base=len(PROMPT) + 3, states=len(PROMPT) + 2, tokens=ANSWER[3:4])
    verify(handler)
    assert len(read(stream).states) == 2 * width
    # Without its KV the whole text is computed again, and the device gets what it lacks of it.
    handler.batch_runner.slots.release(stream.sessions["s"])
    send_draft(stream, "s", 3, base=len(PROMPT) + 5, states=len(PROMPT) + 3, tokens=[])
    verify(handler)
    assert len(read(stream).states) == 2 * width
    send_draft(stream, "s", 4, base=len(PROMPT) + 6, states=len(PROMPT) + 4, tokens=[])
    assert Status(read(stream).status) is Status.UNKNOWN_SESSION

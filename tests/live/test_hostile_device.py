"""One device with a valid token attacks by its sessions and rounds: its neighbour gets what it gets alone."""

from pathlib import Path

import pytest
from hostile_devices import (
    POISON,
    PROMPT,
    SLOTS,
    Attacker,
    Neighbour,
    ask,
    attack_list,
    attacked_server,
    break_runner,
    opening,
    until,
)
from live_server import CAPACITY
from nightly import nightly_except

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import Status, Up

ATTACKS, attack = attack_list()


@attack()
def samplings_that_make_the_distribution_nan(attacker: Attacker, _: Neighbour) -> None:
    broken: list[dict[str, float]] = [
        {"temperature": value} for value in (1e-40, 1e-3, 1e300, -1.0, float("nan"), float("inf"))
    ]
    broken += [{"temperature": 1.0, "top_p": value} for value in (1e-50, -0.5, 1.5, float("nan"))]
    connection = attacker.connect()
    for number, sampling in enumerate(broken):
        refused = ask(connection, open=opening(f"{number}", **sampling))
        assert Status(refused.status) is Status.BROKEN_SAMPLING


@attack()
def the_extremes_that_are_allowed(attacker: Attacker, _: Neighbour) -> None:
    connection = attacker.connect()
    extremes = (
        {"temperature": 0.01, "top_p": 1e-4},
        {"temperature": 100.0, "top_k": (1 << 32) - 1},
    )
    for number, sampling in enumerate(extremes):
        ask(connection, open=opening(f"{number}", **sampling))
        draft = {"session": f"{number}", "round": 1, "base": len(PROMPT), "tokens": [1, 2]}
        assert ask(connection, draft=draft).status == Status.OK


@attack()
def a_sampler_for_every_session(attacker: Attacker, _: Neighbour) -> None:
    connection = attacker.connect()
    for number in range(40):
        ask(connection, open=opening(f"{number}", temperature=0.5 + number / 100))
    for number in range(40):
        connection.send(
            Up(draft={"session": f"{number}", "round": 1, "base": len(PROMPT), "tokens": [1]})
        )
    answers = [connection.receive(60)[1].verdict for _ in range(40)]
    assert {answer.status for answer in answers} == {Status.OK}


@attack()
def more_sessions_than_slots(attacker: Attacker, _: Neighbour) -> None:
    connection = attacker.connect()
    for number in range(4 * SLOTS):
        ask(connection, open=opening(f"{number}"))
    for turn in range(1, 4):
        for number in range(4 * SLOTS):
            connection.send(
                Up(draft={"session": f"{number}", "round": turn, "base": len(PROMPT) + turn - 1})
            )
        for _ in range(4 * SLOTS):
            assert connection.receive(60)[1].verdict.status == Status.OK
    until(lambda: attacker.sample("skit_evictions_total") > 0)


@attack(waiting=4)
def more_rounds_than_the_queue_takes(attacker: Attacker, _: Neighbour) -> None:
    connection, sessions = attacker.connect(), range(40)
    for number in sessions:
        ask(connection, open=opening(f"{number}"))
    for number in sessions:
        connection.send(Up(draft={"session": f"{number}", "round": 1, "base": len(PROMPT)}))
    for _ in sessions:
        connection.receive(60)
    assert attacker.refusals(Status.OVERLOADED) > 0


@attack()
def frames_for_sessions_of_the_neighbour(attacker: Attacker, _: Neighbour) -> None:
    theirs = [attacker.connect(), attacker.connect(device="a guess")]
    until(lambda: len(attacker.service.handler.sessions) > 0)
    for connection in theirs:
        name = next((session.name for session in tuple(attacker.service.handler.sessions)), "gone")
        frames = (
            {"draft": {"session": name, "round": 1, "base": len(PROMPT)}},
            {"generate": {"session": name, "round": 9, "base": len(PROMPT), "max_tokens": 5}},
            {"cancel": {"session": name}},
        )
        for frame in frames:
            assert Status(ask(connection, **frame).status) is Status.UNKNOWN_SESSION
        connection.send(Up(close={"session": name}))
        # The name belongs to whoever uses it: another owner's session is another session.
        assert ask(connection, open=opening(name)).committed == len(PROMPT)
        assert (
            ask(connection, draft={"session": name, "round": 1, "base": len(PROMPT)}).status
            == Status.OK
        )


@attack(sessions=16)
def more_sessions_than_a_token_has(attacker: Attacker, _: Neighbour) -> None:
    connection = attacker.connect()
    answers = [ask(connection, open=opening(f"{number}")) for number in range(20)]
    statuses = [Status(answer.status) for answer in answers if isinstance(answer, messages.Refused)]
    assert statuses == [Status.TOO_MANY_SESSIONS] * 12


@attack(stream_sessions=5)
def more_sessions_than_a_stream_has(attacker: Attacker, _: Neighbour) -> None:
    connection = attacker.connect()
    answers = [ask(connection, open=opening(f"{number}")) for number in range(8)]
    assert sum(isinstance(answer, messages.Refused) for answer in answers) == 3


@attack()
def generations_that_begin_and_end(attacker: Attacker, _: Neighbour) -> None:
    connection = attacker.connect()
    for number in range(3 * SLOTS):
        connection.send(Up(open=opening(f"{number}")))
        generate = {
            "session": f"{number}",
            "round": 1,
            "base": len(PROMPT),
            "max_tokens": CAPACITY - len(PROMPT),
        }
        connection.send(Up(generate=generate))
    for _ in range(100):
        connection.receive(60)
    connection.close()


@attack()
def devices_that_come_and_go(attacker: Attacker, _: Neighbour) -> None:
    for number in range(20):
        connection = attacker.connect()
        connection.send(Up(open=opening(f"{number}")))
        connection.send(
            Up(draft={"session": f"{number}", "round": 1, "base": len(PROMPT), "tokens": [1, 2, 3]})
        )
        connection.close()


@attack()
def a_context_that_makes_the_runner_raise(attacker: Attacker, _: Neighbour) -> None:
    break_runner(attacker)
    connection, sessions = attacker.connect(), range(30)
    for number in sessions:
        ask(connection, open=opening(f"{number}", [*POISON, number]))
    for number in sessions:
        connection.send(Up(draft={"session": f"{number}", "round": 1, "base": len(POISON) + 1}))
    for _ in sessions:
        refused = connection.receive(60)[1].refused
        assert (Status(refused.status), refused.reason) == (Status.FAILED, "illegal memory access")
    until(lambda: attacker.sample("skit_failed_rounds_total") == len(sessions))


@pytest.mark.parametrize("name", nightly_except([*ATTACKS][::2], ATTACKS))
def test_a_neighbour_gets_what_it_gets_alone(name: str, tmp_path: Path) -> None:
    limits, function = ATTACKS[name]
    with attacked_server(tmp_path, **limits) as (attacker, neighbour):
        function(attacker, neighbour)

"""What the devices of one token or host may use of a server, and that it is given back."""

import pytest
from live_server import VOCABULARY
from offline_server import HOST, device, offline, open_session, read, send_draft, verify

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server import admission, service
from specbench_kit.live.server.admission import Account, Admission, ByteRate
from specbench_kit.live.wire import PROTOCOL, Refusal, Status, Up


def greet(gate: Admission, token: str = "", peer: str = HOST, certified: str = "") -> Account:
    """Greet a device and count its stream."""
    hello = messages.Hello(protocol=PROTOCOL, tokenizer="same", vocabulary=VOCABULARY, token=token)
    account = gate.greet(hello, peer, certified).account
    gate.count_stream(account, 1)
    return account


def test_streams_are_limited_over_all_tokens_and_given_back() -> None:
    gate = offline(tokens=("a", "b"), streams=2, token_streams=2).admission
    first, second = greet(gate, "a"), greet(gate, "b")
    for token in "ab":
        with pytest.raises(Refusal, match="TOO_MANY_STREAMS"):
            greet(gate, token)
    gate.count_stream(second, -1)
    assert (gate.streams, first.streams, second.streams) == (1, 1, 0)
    greet(gate, "a")
    assert (gate.streams, first.streams) == (2, 2)


def test_hosts_have_accounts_of_their_own_and_connections_do_not() -> None:
    gate = offline().admission
    accounts = {
        peer: greet(gate, peer=peer)
        for peer in (HOST, "ipv4:127.0.0.1:5001", "ipv4:10.0.0.7:5000", "unix:")
    }
    first_host, again, second_host, local = accounts.values()
    assert first_host is again
    assert len({id(account) for account in (first_host, second_host, local)}) == 3
    assert second_host.name == "host ipv4:10.0.0.7"


def test_devices_of_other_certificates_and_tokens_are_other_owners() -> None:
    hello = messages.Hello(device="d", token="a")
    by_certificate = offline().admission
    owners = {by_certificate.caller(hello, HOST, name).owner for name in ("", "one", "two")}
    by_token = offline(tokens=("b", "a")).admission
    owners |= {
        by_token.caller(messages.Hello(device="d", token=token), HOST).owner for token in "ab"
    }
    assert len(owners) == 5


def test_accounts_in_use_are_remembered_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "REMEMBERED", 2)
    gate = offline().admission
    used = greet(gate, peer="ipv4:10.0.0.1:1")
    for host in range(2, 6):
        gate.caller(messages.Hello(), f"ipv4:10.0.0.{host}:1")
    assert greet(gate, peer="ipv4:10.0.0.1:2") is used
    assert len(gate._accounts) <= 3


def test_an_overload_meets_those_beyond_their_share_of_the_accounts_in_use() -> None:
    """Four rounds may wait: three of an account that is alone are within its share, of one of two they are not."""
    gate = offline(waiting=4, tokens=("a", "b")).admission
    busy, quiet = (gate.caller(messages.Hello(token=token), HOST).account for token in "ab")
    busy.in_flight = 3
    assert gate.require_capacity(busy, waiting=4) is False
    quiet.in_flight = 1
    assert gate.require_capacity(busy, waiting=3) is False
    assert gate.require_capacity(busy, waiting=4) is True
    assert gate.require_capacity(quiet, waiting=8) is False
    with pytest.raises(Refusal, match="OVERLOADED: 8 rounds wait"):
        gate.require_capacity(busy, waiting=8)


def test_a_bucket_holds_the_bytes_of_one_second_and_is_filled_by_the_time_since_the_last_frame() -> (
    None
):
    bucket = ByteRate(2000)
    assert bucket.pause_s(3000, 10.0) == 0.5
    # 1000 bytes are filled up in half a second; a frame of one byte counts as 1024.
    assert bucket.pause_s(1, 10.5) == pytest.approx(1024 / 2000)
    assert bucket.pause_s(1, 10.5) == pytest.approx(2048 / 2000)
    assert bucket.pause_s(1999, 1000.0) == 0.0
    assert bucket.pause_s(1000, 1000.0) == pytest.approx(1023 / 2000)


def test_rounds_and_sessions_are_given_back_to_their_account() -> None:
    handler = offline()
    stream = device(handler)
    account = stream.caller.account
    for name in "ab":
        open_session(stream, name)
        send_draft(stream, name)
    assert (account.sessions, account.in_flight, account.idle) == (2, 2, False)
    verify(handler)
    assert (account.sessions, account.in_flight) == (2, 0)
    for session in list(handler.sessions):
        handler.drop(session, "closed")
        handler.drop(session, "closed")
    assert (account.sessions, account.in_flight, account.idle) == (0, 0, True)


def test_a_round_that_is_dropped_in_flight_is_given_back_once() -> None:
    handler = offline()
    stream = device(handler)
    session = open_session(stream, "a")
    send_draft(stream, "a")
    session.begin_round()
    assert stream.caller.account.in_flight == 1
    handler.drop(session, "closed")
    assert stream.caller.account.in_flight == 0
    assert verify(handler) == []
    assert stream.caller.account.in_flight == 0


def test_bytes_are_unread_until_they_are_written() -> None:
    handler = offline(tokens=("a",))
    first, second = (device(handler, "a", name) for name in ("1", "2"))
    account = first.caller.account
    for stream in (first, second):
        open_session(stream, "s")
        send_draft(stream, "s")
    assert account.unread_bytes == 0
    verify(handler)
    assert account.unread_bytes > 0
    assert read(first).status == Status.OK
    assert account.unread_bytes > 0
    second.end()
    assert account.unread_bytes == 0


def test_a_stream_is_overfull_by_its_own_bytes_and_by_those_of_its_token() -> None:
    def overfull(**limits: int) -> list[bool]:
        handler = offline(tokens=("a", "b"), **limits)
        streams = [
            device(handler, token, name) for token, name in (("a", "1"), ("a", "2"), ("b", "3"))
        ]
        open_session(streams[0], "s")
        send_draft(streams[0], "s")
        verify(handler)
        return [stream.overfull for stream in streams]

    assert overfull() == [False, False, False]
    assert overfull(unread_bytes=1) == [True, False, False]
    assert overfull(token_unread_bytes=1) == [True, True, False]


def test_all_streams_of_a_token_wait_for_the_bytes_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of three small frames of 1024 bytes in one moment waits half a second at 2048 bytes per second."""
    monkeypatch.setattr(service, "monotonic_s", lambda: 100.0)
    handler = offline(tokens=("a", "b"), token_bytes_per_s=2048)
    first, second, other_token = (device(handler, token) for token in "aab")
    ping = Up(ping={"count": 1})
    assert [stream.pause_s(ping) for stream in (first, second, first, second, other_token)] == [
        0,
        0,
        0.5,
        1.0,
        0,
    ]

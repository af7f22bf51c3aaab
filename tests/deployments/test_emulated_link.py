"""When messages arrive over an emulated link, by a clock that stands still while they are sent."""

from queue import Queue
from types import SimpleNamespace

import pytest

from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.deployments import emulated_link
from specbench_kit.deployments.emulated_link import LinkDirection
from specbench_kit.runs.deployment import Link


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time; nothing is delivered."""
    time = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(emulated_link, "monotonic_s", lambda: time.seconds)
    monkeypatch.setattr(LinkDirection, "start", lambda _: None)
    return time


def arrivals_s(direction: LinkDirection[str]) -> list[float]:
    return [arrival_s - 1000 for arrival_s, _ in direction._in_transit]


def test_messages_share_the_bandwidth_and_each_has_the_whole_latency(
    clock: SimpleNamespace,
) -> None:
    """500, 100 and 200 bytes leave one after the other at 1000 bytes per second; the last finds the link free."""
    direction: LinkDirection[str] = LinkDirection(Link(rtt_s=0.1), 1000.0, "up", print)
    direction.put("a", 500)
    direction.put("b", 100)
    clock.seconds += 0.2
    direction.put("c", 200)
    clock.seconds += 4.8
    direction.put("d", 200)
    assert arrivals_s(direction) == pytest.approx([0.55, 0.65, 0.85, 5.25])


def test_no_message_overtakes_another(clock: SimpleNamespace) -> None:
    """Jitter larger than the time between two messages would have some of them arrive before earlier ones."""
    link = Link(rtt_s=0.1, jitter_s=0.05)
    direction: LinkDirection[str] = LinkDirection(link, float("inf"), "up", print)
    for _ in range(50):
        clock.seconds += 0.01
        direction.put("m", 10)
    message_arrivals_s = arrivals_s(direction)
    assert message_arrivals_s == sorted(message_arrivals_s)
    assert 5 < len(set(message_arrivals_s)) < 50, "some wait for the one before them"


def test_messages_are_delivered_in_order_when_their_time_has_come() -> None:
    """By the real clock: none before its arrival, though the second is sent while the first is on its way."""
    sent_s: dict[str, float] = {}
    delivered: Queue[tuple[str, float]] = Queue()
    link = Link(rtt_s=0.08)
    direction: LinkDirection[str] = LinkDirection(
        link, 1e6, "down", lambda message: delivered.put((message, monotonic_s()))
    )
    assert (direction.name, direction.daemon) == ("down", True)
    for message, size in (("a", 20_000), ("b", 10_000)):
        sent_s[message] = monotonic_s()
        direction.put(message, size)
    (first, first_s), (second, second_s) = (delivered.get(timeout=60) for _ in range(2))
    assert (first, second) == ("a", "b")
    assert first_s - sent_s["a"] >= 0.04 + 0.02
    assert second_s - sent_s["a"] >= 0.04 + 0.03

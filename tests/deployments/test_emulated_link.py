"""When messages arrive over an emulated link, by a clock that stands still while they are sent."""

from types import SimpleNamespace

import pytest

from specbench_kit.deployments import emulated_link
from specbench_kit.deployments.base import Link
from specbench_kit.deployments.emulated_link import LinkDirection


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time; nothing is delivered."""
    time = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(emulated_link, "monotonic_s", lambda: time.seconds)
    monkeypatch.setattr(LinkDirection, "start", lambda _: None)
    return time


def arrivals_s(direction: LinkDirection[str]) -> list[float]:
    return [arrival_s - 1000 for arrival_s, _ in direction._in_transit]


def test_messages_share_the_bandwidth_and_each_has_the_whole_latency(clock: SimpleNamespace) -> None:
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

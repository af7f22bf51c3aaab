"""The clock of a GPU on an emulated card: events in place of waits, and the times of the clock of a CPU."""

from collections.abc import Iterator
from time import sleep

import pytest
import torch
from emulated_card import Machine, emulated_cards, streams

from specbench_kit.core import counted_time
from specbench_kit.core.counted_time import counted_s, not_counted
from specbench_kit.decoding.card_clock import CardClock, measuring_clock
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.timeline import Timeline

PAUSE_S = 0.01


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(1) as machine:
        yield machine


def on_card() -> CardClock:
    clock = measuring_clock(torch.device("cuda"))
    assert isinstance(clock, CardClock)
    return clock


def test_phases_are_charged_and_the_host_waits_once(machine: Machine) -> None:
    clock = on_card()
    clock.timeline = Timeline()
    with machine.counts.during() as counts, clock.running():
        with clock.phase("policy"):
            sleep(PAUSE_S)
            with clock.phase("draft"):
                sleep(PAUSE_S)
            sleep(PAUSE_S)
        with clock.phase("verify", typical=False):
            sleep(PAUSE_S)
        assert counts.synchronisations == 0
        assert clock.typical_s("draft") == 0, "nobody has waited for it yet"
        seconds = clock.take()
    assert counts.synchronisations == 1
    assert set(seconds) == {"policy", "draft", "verify"}
    assert seconds["policy"] >= 2 * PAUSE_S
    assert min(seconds["draft"], seconds["verify"]) >= PAUSE_S
    assert clock.typical_s("draft") == seconds["draft"]
    assert clock.typical_s("policy") == pytest.approx(seconds["policy"] + seconds["draft"])
    assert clock.typical_s("verify") == 0
    assert sum(seconds.values()) <= clock.now_s()
    assert [span.label for span in clock.timeline.spans] == ["policy", "draft", "policy", "verify"]
    assert all(0 <= span.start_s < span.end_s <= clock.now_s() for span in clock.timeline.spans)
    assert clock.take() == {}


AGES_S = 1000.0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.usefixtures("machine")
def test_what_is_prepared_once_does_not_count(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = measuring_clock(torch.device(device))
    clock.timeline = Timeline()
    with clock.running():
        with clock.phase("draft"):
            pass
        with clock.phase("verify"):
            sleep(PAUSE_S)
            with not_counted():
                skip_ages(monkeypatch)
            sleep(PAUSE_S)
        with clock.phase("commit"):
            pass
        seconds = clock.take()
    assert 2 * PAUSE_S <= seconds["verify"] < AGES_S
    assert max(seconds["draft"], seconds["commit"]) < AGES_S
    assert clock.typical_s("verify") == seconds["verify"]
    assert sum(seconds.values()) <= clock.now_s() < AGES_S
    assert all(0 <= span.start_s < span.end_s <= clock.now_s() for span in clock.timeline.spans)
    assert clock.uncounted_s >= AGES_S


def test_time_stands_still_for_everybody_while_something_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before_s = counted_s()
    with not_counted():
        still_s = counted_s()
        with not_counted():
            skip_ages(monkeypatch)
        assert counted_s() == still_s
    assert before_s <= still_s <= counted_s() < before_s + AGES_S


def skip_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a very long time pass on the host and on all cards."""
    now_s, now_on_card_s = counted_time.perf_counter, streams.perf_counter
    monkeypatch.setattr(counted_time, "perf_counter", lambda: now_s() + AGES_S)
    monkeypatch.setattr(streams, "perf_counter", lambda: now_on_card_s() + AGES_S)


def test_a_phase_that_is_resumed_lasts_from_its_beginning(machine: Machine) -> None:
    clock = on_card()
    with clock.running():
        with clock.phase("verify"):
            pass
        sleep(PAUSE_S)
        with clock.resume("verify", asynchronous=True):
            clock.split("verify", 2 * PAUSE_S, 0.0, [("link", PAUSE_S, 1)])
        seconds = clock.take()
    assert seconds["link"] == PAUSE_S
    assert seconds["verify"] >= 2 * PAUSE_S
    assert clock.typical_s("link") == PAUSE_S
    assert machine.counts.synchronisations > 0


def test_a_cpu_keeps_its_clock() -> None:
    assert type(measuring_clock(torch.device("cpu"))) is MeasuringClock


def test_a_mark_waits_for_the_other_cards() -> None:
    with emulated_cards(2) as machine:
        clock = measuring_clock(
            torch.device("cpu"), others=[torch.device("cuda:0"), torch.device("cuda:1")]
        )
        assert isinstance(clock, CardClock)
        with clock.running():
            with clock.phase("draft"):
                drafted = torch.ones(3, device="cuda:1")
            before = machine.cards[1].stream.position
            assert clock.take().keys() == {"draft"}
        assert machine.cards[0].stream._waited_for[machine.cards[1].stream] >= before
        assert drafted.tolist() == [1.0, 1.0, 1.0]

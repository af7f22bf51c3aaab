"""The clock of a GPU on an emulated card: events in place of waits, and the times of the clock of a CPU."""

from collections.abc import Iterator
from time import sleep

import pytest
import torch
from emulated_card import Machine, emulated_cards

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
        clock = measuring_clock(torch.device("cpu"), others=[torch.device("cuda:0"), torch.device("cuda:1")])
        assert isinstance(clock, CardClock)
        with clock.running():
            with clock.phase("draft"):
                drafted = torch.ones(3, device="cuda:1")
            before = machine.cards[1].stream.position
            assert clock.take().keys() == {"draft"}
        assert machine.cards[0].stream._waited_for[machine.cards[1].stream] >= before
        assert drafted.tolist() == [1.0, 1.0, 1.0]

"""Over-saturated servers, told by queues of known rates, and by throughputs that gain nothing."""

from random import Random

import pytest

from specbench_kit.live.engines.answers import AnswerKey, AnswerRecord, Burst, StreamedAnswer
from specbench_kit.studies.ab import report
from specbench_kit.studies.ab.comparison import Plan, over_saturation, saturation, summarise

TURNS, REQUESTS = 8, 40


def record(
    load: str, turn: int, number: int, sent_s: float, took_s: float, server: str = "a"
) -> AnswerRecord:
    answer = StreamedAnswer("text", [Burst(took_s / 2, 1), Burst(took_s, 9)], "token ids", "stop")
    return AnswerRecord(
        AnswerKey(load, server, f"p{turn}-{number}", 0), turn, 1000.0 * turn + sent_s, answer
    )


def queue(rate: float, capacity: float, seed: int = 0, server: str = "a") -> list[AnswerRecord]:
    """Requests at random times to a server that answers one after the other, `capacity` a second."""
    random, records, load = Random(seed), [], f"rate {rate:g}"
    for turn in range(TURNS):
        arrived_s = free_s = 0.0
        for number in range(REQUESTS):
            arrived_s += random.expovariate(rate)
            free_s = max(free_s, arrived_s) + random.uniform(0.5, 1.5) / capacity
            records.append(record(load, turn, number, arrived_s, free_s - arrived_s, server))
    return records


def in_flight(concurrency: int, throughput: float) -> list[AnswerRecord]:
    """Turns of as many requests as are in flight, answered at a throughput in requests per second."""
    random, load = Random(concurrency), f"concurrency {concurrency}"
    return [
        record(load, turn, number, 0.0, random.uniform(0.95, 1.05) * concurrency / throughput)
        for turn in range(TURNS)
        for number in range(concurrency)
    ]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("rate", "is_over"), [(1.0, False), (5.0, False), (15.0, True), (40.0, True)]
)
def test_a_server_is_over_saturated_where_its_queue_grows(
    rate: float, is_over: bool, seed: int
) -> None:
    reason = over_saturation(queue(rate, 10.0, seed), f"rate {rate:g}", {}, None)
    assert (reason is not None) == is_over
    if rate == 40.0:  # one more request waits 1/10 s, and comes 1/40 s later
        assert reason is not None
        grown_s = float(reason.split()[2])
        assert grown_s == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize(
    ("throughput", "is_over"), [(20.0, False), (13.0, False), (10.2, True), (8.0, True)]
)
def test_a_server_is_over_saturated_where_more_in_flight_gain_nothing(
    throughput: float, is_over: bool
) -> None:
    records = in_flight(4, 10.0) + in_flight(8, throughput)
    loads = {"concurrency 4": 4, "concurrency 8": 8}
    assert (
        over_saturation(records, "concurrency 8", loads, "concurrency 4") is not None
    ) == is_over
    assert over_saturation(records, "concurrency 4", loads, None) is None


def test_few_turns_show_nothing() -> None:
    records = [entry for entry in queue(40.0, 10.0) if entry.turn < 3]
    assert over_saturation(records, "rate 40", {}, None) is None


def test_the_report_names_the_first_load_of_each_server_and_what_was_left_out() -> None:
    rates = (5.0, 15.0, 40.0)
    records = [
        entry for rate in rates for entry in queue(rate, 10.0) + queue(rate, 20.0, server="b")
    ]
    loads = [f"rate {rate:g}" for rate in rates]
    plan = Plan(("a", "b"), loads, planned=len(records), open_loads=loads, left_out=["rate 80"])
    assert {name: list(own) for name, own in saturation(plan, records).items()} == {
        "a": loads[1:],
        "b": loads[2:],
    }
    summary = summarise(plan, records)
    line = report.headline(summary)
    assert line.endswith(
        "Over-saturated: `a` at rate 15, `b` at rate 40; not run for that: rate 80."
    )
    assert (
        sum(
            caution.startswith("OVER-SATURATED: a at rate 40, where")
            for caution in report.cautions(summary)
        )
        == 1
    )

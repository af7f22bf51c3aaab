"""Acceptance after a pause counts the first token of drafts that follow a round of the same request without a draft."""

from report_builders import make_record, make_round

from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise


def test_acceptance_after_a_pause_is_of_the_same_request() -> None:
    """Two of three drafts after a pause begin with an accepted token; a first round follows no pause."""
    first = make_record(
        "a",
        make_round(2, accepted=0),
        make_round(0),
        make_round(0),
        make_round(3, accepted=2),
        make_round(3, accepted=0),
        make_round(0),
    )
    second = make_record(
        "b",
        make_round(4, accepted=4),
        make_round(0),
        make_round(1, accepted=0),
        make_round(0),
        make_round(2, accepted=1),
    )
    overall = summarise(RequestGroup([first, second]), makespan_s=1.0)["overall"]
    assert overall["acceptance_after_pause"] == 2 / 3
    assert "acceptance_after_pause" in overall["intervals"]


def test_drafts_that_were_not_sent_do_not_count() -> None:
    record = make_record(
        "a", make_round(0), make_round(3, submitted=0), make_round(0), make_round(1, accepted=1)
    )
    assert (
        summarise(RequestGroup([record]), makespan_s=1.0)["overall"]["acceptance_after_pause"]
        == 1.0
    )


def test_without_a_pause_there_is_no_such_metric() -> None:
    never = make_record("a", make_round(0), make_round(0))
    always = make_record("b", make_round(1), make_round(2, accepted=1))
    for record in (never, always):
        assert (
            "acceptance_after_pause"
            not in summarise(RequestGroup([record]), makespan_s=1.0)["overall"]
        )

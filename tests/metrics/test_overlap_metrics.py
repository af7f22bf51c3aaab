"""What drafting while the target verifies brings: metrics, and what the report says of them."""

import pytest
from report_builders import (
    autoregressive_like,
    make_record,
    make_round,
    make_run,
    priced,
    summary_of,
)
from report_builders import render_run as render

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise, summarise_run
from specbench_kit.metrics.vocabulary import OVERLAP


@pytest.fixture
def records() -> list[RequestRecord]:
    """Four of five rounds drafted ahead, two of them for the right answer; three tokens were reused."""
    times = {"draft_s": 0.1, "verify_s": 0.2}
    first = make_record(
        "a",
        make_round(6, accepted=2, proactive=2, aligned=True, end_s=0.3, **times),
        make_round(6, accepted=3, proactive=2, reused=2, end_s=0.6, **times),
        make_round(4, accepted=1, end_s=0.9, **times),
        finished_s=0.9,
    )
    second = make_record(
        "b",
        make_round(6, accepted=1, proactive=1, aligned=True, end_s=0.4, **times),
        make_round(
            5, accepted=1, proactive=1, reused=1, end_s=0.8, prefill_s=0.05, policy_s=0.01, **times
        ),
        finished_s=2.0,
    )
    return [first, second]


def test_alignment_is_over_the_rounds_that_drafted_ahead(records: list[RequestRecord]) -> None:
    overall = summarise(RequestGroup(records), makespan_s=2.0)["overall"]
    assert overall["alignment_rate"] == 2 / 4
    assert overall["proactive_hit_depth"] == 3 / 2
    assert overall["intervals"]["alignment_rate"] is None  # of two prompts
    assert (
        overall["intervals"]["acceptance_rate"]
        == summarise(RequestGroup(records), makespan_s=1.0)["overall"]["intervals"][
            "acceptance_rate"
        ]
    )


def test_a_run_that_never_drafted_ahead_has_no_such_metric(records: list[RequestRecord]) -> None:
    plain = autoregressive_like(records)
    overall = summarise(RequestGroup(plain), makespan_s=2.0)["overall"]
    assert not set(OVERLAP) & (set(overall) | set(overall["intervals"]))
    report = render(make_run(), summary_of(plain), plain)
    assert "| `alignment_rate` |" not in report
    assert "## Drafting while" not in report


def test_a_run_that_was_never_aligned_has_no_depth() -> None:
    records = [make_record("a", make_round(3, accepted=1, proactive=1))]
    overall = summarise(RequestGroup(records), makespan_s=2.0)["overall"]
    assert (overall["alignment_rate"], overall["proactive_hit_depth"]) == (0.0, None)


def test_idle_shares_need_a_deployment_and_an_edge(records: list[RequestRecord]) -> None:
    plain = autoregressive_like(records)
    measured = summarise_run(RequestGroup(records), RequestGroup(plain), None)
    assert not {"edge_idle_share", "server_idle_share"} & set(measured["overall"])
    edge, server = (
        summarise_run(RequestGroup(records), RequestGroup(plain), priced(0.0, 0.0, placement))
        for placement in ("edge", "server")
    )
    # The verifier worked 5 x 0.2 s of 2 s; the edges 5 x 0.1 s and 0.06 s of 0.9 s + 0.8 s.
    assert (
        edge["overall"]["server_idle_share"]
        == server["overall"]["server_idle_share"]
        == pytest.approx(0.5)
    )
    assert edge["overall"]["edge_idle_share"] == pytest.approx(1 - 0.56 / 1.7)
    assert "edge_idle_share" not in server["overall"]
    assert "edge_idle_share" not in edge["baseline"]["overall"]


def test_the_report_says_that_one_device_cannot_overlap(records: list[RequestRecord]) -> None:
    measured = render(make_run(), summary_of(records, overlaps=True), records)
    assert "## Drafting while the target verifies" in measured
    assert "| `alignment_rate` | 50.0%" in measured
    assert "took turns on one device" in measured
    modelled = render(make_run(time_kind="modelled"), summary_of(records, overlaps=True), records)
    assert "took turns" not in modelled
    assert "| `proactive_hit_depth` | 1.50" in modelled
    assert "## Drafting while" not in render(
        make_run(), summary_of(records, overlaps=False), records
    )


def test_the_report_links_to_what_lies_beside_it(records: list[RequestRecord]) -> None:
    summary = summary_of(records)
    assert "Timeline and tokens" not in render(make_run(), summary, records)
    report = render(make_run(), summary, records, exports=["timeline.json", "plots/timeline.png"])
    assert "![Timeline of the first rounds of one request](plots/timeline.png)" in report
    assert "[`timeline.json`](timeline.json)" in report
    assert "tokens/index.html" not in report

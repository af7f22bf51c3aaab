"""What a run costs by its deployment's prices."""

import pytest
from report_builders import make_record, make_round, priced

from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise_run


def test_specedge_server_only_figure() -> None:
    """SpecEdge: 31.78 tokens/s at $4.05 an hour are 28.25 thousand tokens for a dollar."""
    tokens = 3178
    record = make_record(
        "a", make_round(committed=tokens, verify_s=100.0, end_s=100.0), finished_s=100.0
    )
    overall = summarise_run(RequestGroup([record]), None, priced(4.05, 0.0))["overall"]
    assert overall["throughput"] == pytest.approx(31.78)
    assert overall["cost_efficiency"] == pytest.approx(28_250, rel=1e-4)


def test_a_drafter_costs_what_it_works() -> None:
    record = make_record(
        "a",
        make_round(committed=3600, draft_s=900.0, verify_s=100.0, end_s=3600.0),
        finished_s=3600.0,
    )
    overall = summarise_run(RequestGroup([record]), None, priced(4.0, 2.0))["overall"]
    assert overall["cost_efficiency"] == pytest.approx(3600 / (4.0 + 2.0 / 4))

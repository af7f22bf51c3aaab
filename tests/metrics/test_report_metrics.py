import json
import math

import numpy as np
import pytest
from report_builders import (
    autoregressive_like,
    failed_record,
    make_record,
    make_round,
    make_row,
    priced,
    simulate_chain,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise
from specbench_kit.reports.sections import headlines
from specbench_kit.reports.sections.columns import COLUMNS


@pytest.fixture
def two_requests():
    """Request a: 3 rounds, 3 + 1 + 2 = 6 tokens in 0.9 s. Request b: 1 round, 2 tokens in 0.5 s."""
    return [
        make_record(
            "a",
            make_round(4, accepted=2, draft_s=0.08, verify_s=0.1, end_s=0.3),
            make_round(3, submitted=2, accepted=0, draft_s=0.06, verify_s=0.1, end_s=0.5),
            make_round(1, submitted=1, accepted=1, draft_s=0.02, verify_s=0.1, end_s=0.9),
        ),
        make_record(
            "b", make_round(4, accepted=1, draft_s=0.04, verify_s=0.2, end_s=0.5), category="code"
        ),
    ]


def overall(records, baseline=None, **options):
    plain = None if baseline is None else RequestGroup(baseline)
    return summarise(RequestGroup(records), plain, makespan_s=2.0, **options)["overall"]


def test_counts(two_requests):
    metrics = overall(two_requests)
    assert (metrics["finished"], metrics["failed"], metrics["rounds"]) == (2, 0, 4)
    assert metrics["tokens"] == (3 + 1 + 2) + 2
    assert metrics["drafted"] == (4 + 3 + 1) + 4
    assert metrics["submitted"] == (4 + 2 + 1) + 4
    assert metrics["accepted"] == (2 + 0 + 1) + 1
    assert metrics["wasted_tokens"] == (2 + 3 + 0) + 3


def test_acceptance_length_pooled_and_as_mean_of_requests(two_requests):
    metrics = overall(two_requests)
    assert metrics["acceptance_length"] == 8 / 4
    assert metrics["acceptance_length_request_mean"] == (6 / 3 + 2 / 1) / 2
    assert metrics["acceptance_length_sd"] == 0.5**0.5  # of 3, 1, 2 and 2 tokens


def test_pooled_and_mean_differ_when_requests_differ_in_length():
    records = [
        make_record("a", make_round(1, accepted=1)),
        make_record("b", *[make_round(1, accepted=0)] * 3),
    ]
    metrics = overall(records)
    assert metrics["acceptance_length"] == (2 + 3) / 4
    assert metrics["acceptance_length_request_mean"] == (2 + 1) / 2


def test_acceptance_and_efficiency_differ_by_what_was_never_sent(two_requests):
    metrics = overall(two_requests)
    assert metrics["acceptance_rate"] == 4 / 11
    assert metrics["draft_efficiency"] == 4 / 12


def test_the_end_cuts_committed_tokens_but_not_accepted_ones():
    metrics = overall([make_record("a", make_round(4, accepted=4, committed=2))])
    assert (metrics["acceptance_length"], metrics["acceptance_rate"]) == (2.0, 1.0)


def test_acceptance_at_each_position(two_requests):
    metrics = overall(two_requests)
    # Accepted 2, 0, 1, 1 of 4, 2, 1, 4 submitted tokens.
    assert metrics["acceptance_at"] == [3 / 4, 1 / 4, 0.0, 0.0]
    # Position 2 was reached where 1 was accepted and 2 were sent: rounds 1 and 4. Position 3: round 1 only.
    assert metrics["acceptance_at_conditional"] == [3 / 4, 1 / 2, 0.0, None]


def test_in_a_tree_a_position_is_a_depth_and_only_rounds_that_reached_it_tried():
    """Twenty nodes down to depth 8 have 8 positions, and a shallower tree has rejected nothing below its leaves."""
    deep, shallow = make_round(20, accepted=3, deepest=8), make_round(20, accepted=2, deepest=2)
    metrics = overall([make_record("a", deep, shallow)])
    assert metrics["acceptance_at"] == [1.0, 1.0, 1 / 2, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert metrics["acceptance_at_conditional"] == [1.0, 1.0, 1.0, 0.0, None, None, None, None]


def test_a_pipelines_positions_go_as_deep_as_its_flight():
    rounds = (
        make_round(30, accepted=2, steps=9, deepest=4),
        make_round(30, accepted=0, steps=9, deepest=3),
    )
    metrics = overall([make_record("a", *rounds)])
    assert metrics["acceptance_at"] == [1 / 2, 1 / 2, 0.0, 0.0]
    assert metrics["acceptance_at_conditional"] == [1 / 2, 1.0, 0.0, None]


def test_a_pipeline_has_tokens_per_step_and_hits_instead_of_figures_of_verifications():
    rounds = (
        make_round(30, accepted=5, committed=6, steps=8),
        make_round(30, accepted=0, committed=2, steps=8),
    )
    metrics = overall([make_record("a", *rounds), make_record("b", *rounds)])
    for name in ("acceptance_length", "acceptance_rate", "draft_efficiency"):
        assert metrics[name] is None
        assert metrics["intervals"].get(name) is None
    for name in (
        "acceptance_length_request_mean",
        "acceptance_rate_request_mean",
        "acceptance_length_sd",
    ):
        assert metrics[name] is None
    assert metrics["tokens_per_step"] == 16 / 32
    assert metrics["hit_rate"] == 10 / 16
    assert COLUMNS["acceptance length"].cell(make_row(**metrics)) is None
    assert (
        headlines.pipeline_words(make_row(**metrics))
        == "0.500 tokens per pipeline step, 62.5% in flight"
    )
    assert headlines.pipeline_words(make_row()) == ""


def test_a_record_that_does_not_say_its_depth_is_taken_for_a_chain():
    recent, old = (
        [make_record("a", make_round(4, accepted=2, **deepest))] for deepest in ({"deepest": 4}, {})
    )
    assert old[0].rounds[0].deepest is None
    for name in ("acceptance_at", "acceptance_at_conditional"):
        assert overall(old)[name] == overall(recent)[name]


def test_wasted_drafting_time(two_requests):
    metrics = overall(two_requests)
    # 20 ms per token in request a, 10 ms in request b.
    assert metrics["wdt"] == pytest.approx(0.02 * 2 + 0.02 * 3 + 0.02 * 0 + 0.01 * 3)
    assert metrics["wdt_paper"] == pytest.approx(0.02 * 2 + 0.02 * 2 + 0.02 * 0 + 0.01 * 3)
    assert metrics["wdt_share"] == pytest.approx(0.13 / (0.08 + 0.06 + 0.02 + 0.04))


def test_latency(two_requests):
    metrics = overall(two_requests)
    assert metrics["ttft"]["mean"] == pytest.approx((0.3 + 0.5) / 2)
    # Request a: (0.9 - 0.3) / 5 tokens. Request b came in one burst.
    assert metrics["tpot"]["mean"] == pytest.approx((0.6 / 5 + 0.0) / 2)
    assert metrics["tpot"]["p50"] == pytest.approx(0.06)
    assert metrics["tpot"]["p95"] == pytest.approx(0.95 * 0.12)


def test_a_burst_of_n_tokens_is_n_gaps_of_an_nth(two_requests):
    # Request a: first burst no gap, then one token after 0.2 s, then two tokens after 0.4 s. Request b: none.
    gaps = [0.2, 0.4 / 2, 0.4 / 2]
    assert overall(two_requests)["itl"]["mean"] == pytest.approx(sum(gaps) / 3)
    record = make_record(
        "c", *(make_round(9, accepted=n - 1, end_s=t) for n, t in ((4, 1.0), (1, 2.0), (4, 4.0)))
    )
    itl = overall([record])["itl"]
    assert itl["p50"] == 0.5  # of 1.0, 0.5, 0.5, 0.5, 0.5
    assert itl["p95"] == pytest.approx(0.5 + 0.8 * 0.5)  # rank 0.95 * 4 = 3.8
    assert itl["p99"] == pytest.approx(0.5 + 0.96 * 0.5)


def test_gaps_add_up_to_the_time_after_the_first_burst():
    records = simulate_chain(requests=5, rounds=20, draft=4, alpha=0.7)
    metrics = overall(records)
    later_tokens = sum(len(r.output_ids) - r.rounds[0].committed for r in records)
    assert metrics["itl"]["mean"] * later_tokens == pytest.approx(
        sum(r.e2e_s - r.ttft_s for r in records)
    )


def test_a_request_of_one_token_has_no_tpot():
    metrics = overall([make_record("a", make_round(verify_s=0.1, end_s=0.1))])
    assert metrics["tpot"] == {"mean": None, "p50": None, "p95": None, "p99": None}
    assert metrics["ttft"]["p99"] == 0.1


def test_throughput_is_per_makespan_and_overall_only(two_requests):
    summary = summarise(RequestGroup(two_requests), makespan_s=2.0)
    assert summary["overall"]["throughput"] == 8 / 2.0
    assert "throughput" not in summary["categories"]["chat"]
    assert summarise(RequestGroup(two_requests), makespan_s=None)["overall"]["throughput"] is None


def test_server_tokens_per_busy_second(two_requests):
    assert overall(two_requests)["server_tokens_per_busy_second"] == pytest.approx(
        8 / (0.1 * 3 + 0.2)
    )


def test_goodput_counts_the_requests_that_met_the_slo(two_requests):
    assert "goodput" not in overall(two_requests)
    assert overall(two_requests, slo_tpot_s=0.1)["goodput"] == 2 / 2.0
    assert overall(two_requests, slo_tpot_s=0.2)["goodput"] == 8 / 2.0


def test_cost_efficiency_is_tokens_per_unit_of_price(two_requests):
    assert "cost_efficiency" not in overall(two_requests)
    assert overall(two_requests, deployment=priced(7.2, 0.0))["cost_efficiency"] == pytest.approx(
        8 / (2.0 * 7.2 / 3600)
    )


def test_headroom_is_the_share_of_the_gap_to_the_oracle(two_requests):
    baseline = autoregressive_like(two_requests)
    options = {"baseline": baseline, "baseline_makespan_s": 4.0}
    # 8 tokens in 4 s, in 2 s, and the oracle's rate.
    assert overall(two_requests, oracle_throughput=6.0, **options)["headroom"] == (4 - 2) / (6 - 2)
    assert overall(two_requests, oracle_throughput=2.0, **options)["headroom"] is None
    assert "headroom" not in overall(two_requests, **options)


def test_speedup_pairs_requests_that_finished_in_both(two_requests):
    baseline = [
        make_record("b", make_round(end_s=1.0)),
        make_record("a", make_round(end_s=1.8)),
        make_record("unpaired", make_round(end_s=50.0)),
    ]
    lengths = {record.request_id: record.output_ids for record in two_requests}
    for record in baseline:
        record.output_ids = lengths.get(record.request_id, record.output_ids)
    records = [*two_requests, failed_record("c"), make_record("d", make_round(end_s=9.0))]
    summary = summarise(
        RequestGroup(records), RequestGroup([*baseline, failed_record("d")]), makespan_s=2.0
    )
    assert summary["overall"]["speedup"] == pytest.approx((1.8 + 1.0) / (0.9 + 0.5))
    assert summary["overall"]["speedup_pairs"] == 2
    assert summary["overall"]["intervals"]["speedup"] is None  # of two prompts
    assert summary["categories"]["code"]["speedup"] == pytest.approx(1.0 / 0.5)
    assert summary["categories"]["code"]["intervals"]["speedup"] is None


def test_the_interval_holds_the_speedup():
    records = simulate_chain(requests=40, rounds=10, draft=4, alpha=0.7)
    metrics = overall(records, baseline=autoregressive_like(records))
    low, high = metrics["intervals"]["speedup"]
    assert low < metrics["speedup"] < high


def test_phase_shares_sum_to_one(two_requests):
    metrics = overall(two_requests)
    assert metrics["phase_seconds"]["verify"] == pytest.approx(0.5)
    assert metrics["phase_seconds"]["draft"] == pytest.approx(0.2)
    assert metrics["phase_share"]["verify"] == pytest.approx(0.5 / 0.7)
    assert sum(metrics["phase_share"].values()) == pytest.approx(1.0)


def test_failed_requests_count_and_change_nothing_else(two_requests):
    partly_done = failed_record(
        "c", category="code", rounds=[make_round(4, verify_s=9.0, end_s=9.0)], e2e_s=9.0
    )
    clean, with_failure = overall(two_requests), overall([*two_requests, partly_done])
    assert with_failure.pop("failed") == 1
    assert clean.pop("failed") == 0
    assert with_failure == clean


def test_categories_add_up_to_the_whole():
    summary = summarise(
        RequestGroup(simulate_chain(requests=9, rounds=6, draft=3, alpha=0.6)), makespan_s=1.0
    )
    assert list(summary["categories"]) == ["chat", "code", "maths"]
    for name in ("finished", "rounds", "tokens", "drafted", "accepted", "wasted_tokens", "wdt"):
        parts = sum(part[name] for part in summary["categories"].values())
        assert parts == pytest.approx(summary["overall"][name])


def test_the_baseline_is_summarised_in_the_same_way(two_requests):
    baseline = autoregressive_like(two_requests)
    summary = summarise(
        RequestGroup(two_requests), RequestGroup(baseline), makespan_s=2.0, baseline_makespan_s=4.0
    )
    metrics = summary["baseline"]["overall"]
    assert metrics["acceptance_length"] == 1.0
    assert metrics["throughput"] == 2.0
    assert set(summary["baseline"]) == {"overall", "categories"}
    assert summarise(RequestGroup(two_requests), makespan_s=2.0)["baseline"] is None


@pytest.mark.parametrize(
    "records", [[], [failed_record("a")], autoregressive_like(simulate_chain(1, 2, 3, 0.5))]
)
def test_metrics_without_a_meaning_are_none_and_never_nan(records):
    group = RequestGroup(records)
    summary = summarise(
        group,
        group,
        makespan_s=0.0,
        oracle_throughput=1.0,
        slo_tpot_s=1.0,
        deployment=priced(1.0, 0.0),
    )
    json.dumps(summary, allow_nan=False)
    metrics = summary["overall"]
    assert metrics["acceptance_rate"] is None
    assert metrics["draft_efficiency"] is None
    assert metrics["wdt_share"] is None
    assert metrics["throughput"] is None
    assert metrics["acceptance_at"] == []


def test_measured_and_modelled_times_do_not_mix(two_requests):
    modelled = [make_record("a", make_round(end_s=1.0), time_kind="modelled")]
    with pytest.raises(SkitError, match="measured and modelled"):
        summarise(RequestGroup(two_requests), RequestGroup(modelled), makespan_s=1.0)
    # A refused request has no time, of whichever kind it is marked.
    summarise(RequestGroup([*modelled, failed_record("b")]), makespan_s=1.0)


@pytest.mark.parametrize(("draft", "alpha"), [(1, 0.5), (4, 0.8), (8, 0.6)])
def test_a_chain_with_independent_acceptance_commits_what_theory_says(draft, alpha):
    records = simulate_chain(requests=100, rounds=60, draft=draft, alpha=alpha)
    metrics = overall(records)
    committed = np.array([r.committed for record in records for r in record.rounds])
    standard_error = committed.std() / math.sqrt(len(committed))
    expected = (1 - alpha ** (draft + 1)) / (1 - alpha)
    assert abs(metrics["acceptance_length"] - expected) < 4 * standard_error
    low, high = metrics["intervals"]["acceptance_length"]
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.2)
    assert metrics["acceptance_at"][:2] == pytest.approx([alpha, alpha**2][:draft], abs=0.03)
    assert metrics["acceptance_at_conditional"] == pytest.approx([alpha] * draft, abs=0.12)


def test_summary_is_the_same_each_time():
    records = simulate_chain(requests=10, rounds=5, draft=4, alpha=0.7)
    baseline = autoregressive_like(records)
    first, second = (
        summarise(RequestGroup(records), RequestGroup(baseline), makespan_s=1.0) for _ in range(2)
    )
    assert first == second


def test_attainment_is_held_against_plain_decodings_90th_percentile():
    """Eleven baselines of 1 to 11 s per token promise 10 s."""
    plain, ours = (
        [
            make_record(str(n), make_round(1, accepted=0), make_round(1, accepted=0))
            for n in range(1, 12)
        ]
        for _ in range(2)
    )
    for seconds, (slow, fast) in enumerate(zip(plain, ours, strict=True), 1):
        slow.tpot_s, fast.tpot_s = float(seconds), 0.9 * seconds
    attained = overall(ours, baseline=plain)["slo_attainment"]
    assert attained == pytest.approx([8 / 11, 10 / 11, 1, 1, 1])

"""Headline figures of a run, each worked out by hand where a sum or an inequality would let a fault through."""

from typing import Any

import numpy as np
import pytest
from metric_records import record, round_of
from msgspec.structs import replace
from report_builders import priced

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.losslessness import Losslessness, check_all, summarise_checks
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise, summarise_run


def overall(
    records: list[RequestRecord], baseline: list[RequestRecord] | None = None, **options: Any
) -> JsonObject:
    plain = None if baseline is None else RequestGroup(baseline)
    metrics: JsonObject = summarise(RequestGroup(records), plain, makespan_s=10.0, **options)[
        "overall"
    ]
    return metrics


def test_goodput_counts_a_request_of_one_token_which_has_no_time_per_token() -> None:
    single = record("one", round_of(0, end_s=9.0))
    met = record(
        "kept", round_of(3, accepted=3, end_s=1.0), round_of(3, accepted=1, end_s=2.0)
    )  # 1 s over 5 tokens
    broken = record(
        "broken", round_of(3, accepted=0, end_s=1.0), round_of(3, accepted=0, end_s=2.0)
    )  # 1 s over 1
    assert [single.tpot_s, met.tpot_s, broken.tpot_s] == [None, 0.2, 1.0]
    metrics = overall([single, met, broken], slo_tpot_s=0.2)
    assert (metrics["goodput"], metrics["throughput"]) == ((1 + 6) / 10, (1 + 6 + 2) / 10)


def test_a_drafting_device_is_paid_for_prompt_draft_and_decisions() -> None:
    # 10 s at 4 an hour for the server, 1 + 2 + 3 s at 2 an hour for the device; nothing else is the device's work.
    busy = {
        "prefill_s": 1.0,
        "draft_s": 2.0,
        "policy_s": 3.0,
        "link_s": 0.5,
        "queue_s": 0.5,
        "verify_s": 2.5,
    }
    request = replace(record("a", round_of(4, accepted=4, end_s=10.0, **busy)), finished_s=10.0)
    prices = priced(4.0, 2.0)
    metrics = summarise_run(RequestGroup([request]), None, prices)["overall"]
    assert metrics["cost_efficiency"] == pytest.approx(5 / ((4 * 10 + 2 * 6) / 3600))
    assert metrics["edge_idle_share"] == pytest.approx(1 - 6 / 10)
    assert metrics["server_idle_share"] == pytest.approx(1 - 2.5 / 10)


def test_a_baseline_has_its_own_makespan_price_and_idle_share() -> None:
    # The method: 6 tokens in 2 s, verified in 1 s. The baseline: 6 tokens in 4 s, all of it verification.
    fast = replace(record("a", round_of(5, accepted=5, end_s=2.0, verify_s=1.0)), finished_s=2.0)
    slow = replace(
        record("a", *(round_of(0, end_s=4.0, verify_s=4.0 / 6) for _ in range(6))), finished_s=4.0
    )
    prices = priced(3600.0, 0.0, "server")
    summary = summarise_run(
        RequestGroup([fast]), RequestGroup([slow]), prices, oracle_throughput=4.5
    )
    method, baseline = summary["overall"], summary["baseline"]["overall"]
    assert (method["makespan_s"], baseline["makespan_s"]) == (2.0, 4.0)
    assert (method["throughput"], baseline["throughput"]) == (3.0, 1.5)
    assert (method["cost_efficiency"], baseline["cost_efficiency"]) == (
        pytest.approx(6 / 2),
        pytest.approx(6 / 4),
    )
    assert (method["server_idle_share"], baseline["server_idle_share"]) == (
        pytest.approx(0.5),
        pytest.approx(0.0),
    )
    assert method["headroom"] == pytest.approx((3.0 - 1.5) / (4.5 - 1.5))
    assert method["speedup"] == 2.0


def test_speedups_pooled_and_of_single_requests() -> None:
    # 2 s against 4 s, 3 s against 3 s, 5 s against 4 s.
    fast = [
        record(name, round_of(0, end_s=end_s))
        for name, end_s in zip("abc", (2.0, 3.0, 5.0), strict=True)
    ]
    plain = [
        record(name, round_of(0, end_s=end_s))
        for name, end_s in zip("abc", (4.0, 3.0, 4.0), strict=True)
    ]
    metrics = overall(fast, baseline=plain)
    assert metrics["speedup"] == pytest.approx((4 + 3 + 4) / (2 + 3 + 5))
    assert metrics["speedup_request_mean"] == pytest.approx((4 / 2 + 3 / 3 + 4 / 5) / 3)
    assert metrics["win_share"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert metrics["speedup_pairs"] == 3


def test_an_interval_has_the_width_of_95_per_cent() -> None:
    """Half of 400 requests have a rate of 1 and half of 3 tokens: 1.96 standard errors of 1 / sqrt(400) either way."""
    records = [record(str(n), round_of(2, accepted=2 * (n % 2))) for n in range(400)]
    low, high = overall(records)["intervals"]["acceptance_length"]
    assert (high - low) / 2 == pytest.approx(
        1.96 * 1 / 20, rel=0.06
    )  # 90% would be 0.084 of it less, 99% 0.31 more
    assert (high + low) / 2 == pytest.approx(2.0, abs=0.01)


def test_repeats_of_a_prompt_are_no_further_evidence() -> None:
    """Four equal repeats of 100 prompts say as much as one: the interval is not half as wide."""
    single_runs = [
        record(str(n), round_of(2, accepted=2 * (n % 2), end_s=1.0 + n % 2)) for n in range(100)
    ]
    plain = [record(str(n), round_of(0, end_s=3.0)) for n in range(100)]

    def repeated(records: list[RequestRecord]) -> list[RequestRecord]:
        return [replace(request, repeat=repeat) for repeat in range(4) for request in records]

    single = overall(single_runs, baseline=plain)["intervals"]
    four = overall(repeated(single_runs), baseline=repeated(plain))["intervals"]
    for name in ("acceptance_length", "speedup"):
        assert np.ptp(four[name]) == pytest.approx(np.ptp(single[name]), rel=0.1), name


class Strict:
    """Calls every divergence an error."""

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        return Losslessness(record.request_id, "error", position, repeat=record.repeat)


def test_every_repeat_with_an_error_counts() -> None:
    """Repeats 0 and 1 of a request diverge from the baseline, 2 does not."""
    right = replace(record("a", round_of(2, accepted=2)), output_ids=[1, 2, 3])
    wrong = replace(right, output_ids=[1, 9, 3])
    records = [
        replace(request, repeat=repeat) for repeat, request in enumerate([wrong, wrong, right])
    ]
    baseline = [replace(right, repeat=repeat) for repeat in range(3)]
    summary = summarise_checks(check_all(records, baseline, Strict()))
    assert (summary.errors, summary.identical, summary.compared) == (2, 1, 3)
    assert len(summary.divergences) == 2

"""Speeds where answers differ in length: a method whose answers happened to be shorter is not faster for that."""

import numpy as np
import pytest

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.paired import Side, relative_speed, speedup
from specbench_kit.metrics.rounds import NO_REQUESTS, RequestGroup
from specbench_kit.metrics.rows import TableEntry, choose_reference, rows_of
from specbench_kit.metrics.verdicts import NO_DIFFERENCE

PROMPTS = 24
UNITS = {str(number): number for number in range(PROMPTS)}
RNG = np.random.default_rng(5)


def sampled(step_s: float, mean_tokens: float) -> list[RequestRecord]:
    """Return answers of random lengths that take `step_s` a token, and vary by a tenth."""
    records = []
    for number in range(PROMPTS):
        tokens = int(RNG.uniform(0.5, 1.5) * mean_tokens)
        seconds = tokens * step_s * float(np.exp(RNG.normal(0, 0.1)))
        records.append(
            RequestRecord(str(number), "", [1], list(range(tokens)), e2e_s=seconds, ttft_s=step_s)
        )
    return records


def test_the_speedup_is_of_times_per_token() -> None:
    plain = sampled(0.04, 100)
    shorter = sampled(0.04, 60)
    speed = speedup(Side.of(shorter, plain), UNITS)
    assert speed is not None
    rates = [
        sum(len(r.output_ids) for r in side) / sum(r.e2e_s or 0 for r in side)
        for side in (shorter, plain)
    ]
    assert speed.ratio.value == pytest.approx(rates[0] / rates[1])
    assert speed.typical.value == pytest.approx(1, abs=0.1)
    assert speed.time_ratio == pytest.approx(
        sum(r.e2e_s or 0 for r in plain) / sum(r.e2e_s or 0 for r in shorter)
    )
    assert speed.time_ratio > 1.4
    assert speed.verdict() == NO_DIFFERENCE


def test_methods_are_compared_by_their_times_per_token_with_and_without_a_baseline() -> None:
    plain, short, long = sampled(0.04, 100), sampled(0.02, 50), sampled(0.02, 150)
    for baseline in (plain, []):
        speed = relative_speed(Side.of(short, baseline), Side.of(long, baseline), UNITS)
        assert speed is not None
        assert speed.ratio.value == pytest.approx(1, abs=0.1)
        assert speed.verdict() == NO_DIFFERENCE


def test_a_table_holds_both_ratios_and_goes_by_times_per_token() -> None:
    plain, short = sampled(0.04, 100), sampled(0.04, 50)
    for records in (plain, short):
        for record in records:
            record.rounds = [RoundRecord(0, 0, 0, len(record.output_ids), *[0.0] * 8)]
    base, method = RequestGroup(plain), RequestGroup(short)
    entries = [
        TableEntry(base, NO_REQUESTS, UNITS, label="plain", is_baseline=True, is_sampled=True),
        TableEntry(method, base, UNITS, label="short", is_sampled=True),
    ]
    rows = rows_of(entries, choose_reference(entries))
    row = rows["short"]
    assert row.time_ratio is not None
    assert row.speedup is not None
    assert row.time_ratio > 1.5 > 1.2 > row.speedup
    assert row.speedup_verdict == NO_DIFFERENCE
    assert row.speedup_request_mean == pytest.approx(1, abs=0.1)


def test_equal_lengths_leave_total_times_as_they_are() -> None:
    plain = sampled(0.04, 100)
    equal = [
        RequestRecord(r.request_id, "", [1], r.output_ids, e2e_s=(r.e2e_s or 0) / 2) for r in plain
    ]
    speed = speedup(Side.of(equal, plain), UNITS)
    assert speed is not None
    assert speed.time_ratio is None
    assert speed.ratio.value == pytest.approx(2)

"""The rounds of a run by the drafter that drafted for them."""

import pytest
from metric_records import record, round_of
from msgspec import structs

from specbench_kit.decoding.records import RoundRecord
from specbench_kit.metrics.acceptance import by_drafter
from specbench_kit.reports.document import Document
from specbench_kit.reports.render_markdown import render
from specbench_kit.reports.run.sections import drafters


def by(drafter: str, drafted: int, accepted: int) -> RoundRecord:
    return structs.replace(round_of(drafted, accepted), drafter=drafter)


def test_rounds_tokens_and_acceptance_by_drafter() -> None:
    records = [
        record("1", by("", 0, 0), by("head", 4, 1), by("suffix", 3, 3)),
        record("2", by("head", 4, 2), by("head", 4, 0)),
    ]
    head, *later_parts = by_drafter(records)
    assert (head.name, head.rounds, head.share, head.submitted, head.accepted) == (
        "head",
        3,
        0.6,
        12,
        3,
    )
    assert (head.acceptance_rate, head.acceptance_length) == (0.25, pytest.approx(2.0))
    assert [(part.name, part.rounds, part.acceptance_rate) for part in later_parts] == [
        ("none", 1, None),
        ("suffix", 1, 1),
    ]
    page = render(Document.of("Title", drafters(by_drafter(records))))
    assert "## By drafter" in page
    assert "| head | 3 | 60.0% | 25.0% | 2.00 |" in page


def test_a_run_with_one_drafter_has_no_such_table() -> None:
    records = [record("1", by("", 3, 1))]
    assert by_drafter(records) == []
    assert drafters(by_drafter(records)) == []

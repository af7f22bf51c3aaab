"""Acceptance along a text: rounds by how long the answer, or the whole context, already was."""

import pytest
from report_builders import make_record, make_round

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.along import acceptance_along
from specbench_kit.metrics.rounds import RoundColumns
from specbench_kit.metrics.run_summary import PartAcceptance
from specbench_kit.reports import render_markdown
from specbench_kit.reports.document import Document
from specbench_kit.reports.run.sections import along


def answers() -> list[RequestRecord]:
    """Return eight requests of 60 rounds, whose drafts of four are right until 64 tokens and wrong after 128."""
    records = []
    for number in range(8):
        rounds, written = [], 0
        for index in range(60):
            accepted = 4 if written < 64 else (index + number) % 3 if written < 128 else 0
            rounds.append(make_round(drafted=4, submitted=4, accepted=accepted))
            written += rounds[-1].committed
        prompt = [1] * (400 + number)
        records.append(
            make_record(str(number), *rounds, prompt_ids=prompt, output_ids=[2] * written)
        )
    return records


def parts_of(records: list[RequestRecord]) -> list[PartAcceptance]:
    units = {record.request_id: number for number, record in enumerate(records)}
    return acceptance_along(RoundColumns(records), records, units)


def test_every_round_is_counted_where_its_first_token_stands() -> None:
    records = answers()
    parts = parts_of(records)
    for by in ("output", "context"):
        of_place = [part for part in parts if part.by == by]
        assert len(of_place) > 1
        assert sum(part.rounds for part in of_place) == 8 * 60
        for part in of_place:
            lengths = []
            for record in records:
                place = len(record.prompt_ids) if by == "context" else 0
                for round_ in record.rounds:
                    if part.begins <= place < (part.ends or 10**9):
                        lengths.append(round_.committed)
                    place += round_.committed
            assert part.rounds == len(lengths)
            assert part.acceptance_length == pytest.approx(sum(lengths) / len(lengths))
    first, middle, last, *_ = (part for part in parts if part.by == "output")
    assert (first.acceptance_length, first.acceptance_rate, first.interval) == (5.0, 1.0, None)
    assert last.acceptance_length == 1.0
    assert middle.interval is not None
    low, high = middle.interval
    assert low < middle.acceptance_length < high


def test_short_texts_have_no_parts() -> None:
    short = [make_record("a", make_round(drafted=4, accepted=2), prompt_ids=[1] * 9)]
    assert parts_of(short) == []
    assert acceptance_along(RoundColumns([]), [], {}) == []
    assert along([]) == []


def test_the_page_has_a_row_for_each_part() -> None:
    text = render_markdown.render(Document.of("made", along(parts_of(answers()))))
    assert "## Acceptance along the text" in text
    assert "| 0 to 63 of the answer | 8 | 104 | 5.00 (–) | 100.0% |" in text
    assert "| 0 to 511 of the context | 8 |" in text

"""Acceptance from what each answer of a server reports."""

import pytest

from specbench_kit.live.engines.answers import (
    AnswerKey,
    AnswerRecord,
    Burst,
    CounterChange,
    DraftCounts,
    StreamedAnswer,
)
from specbench_kit.live.engines.openai import Timings
from specbench_kit.studies.ab import report
from specbench_kit.studies.ab.comparison import Plan, summarise
from specbench_kit.studies.ab.figures import NO_TARGETS, server_figures
from specbench_kit.studies.ab.summary import Speculation

DRAFTED, UNDRAFTED = Timings(predicted_n=8, draft_n=6, draft_n_accepted=5), Timings(predicted_n=8)


def speculation(*timings: Timings) -> Speculation | None:
    bursts = [Burst(0.1 * number, 1) for number in range(1, 9)]
    answers = [
        StreamedAnswer("", bursts, "token ids", drafts=timing.drafts()) for timing in timings
    ]
    records = [
        AnswerRecord(
            AnswerKey("concurrency 1", "spec", f"{number}", 0), number, float(number), answer
        )
        for number, answer in enumerate(answers)
    ]
    return server_figures(records, NO_TARGETS, ()).speculation


def test_answers_without_drafts_are_rounds_of_one_token_at_a_server_that_drafts_in_others() -> None:
    """llama-server leaves its counts out of an answer in which it drafted nothing."""
    assert UNDRAFTED.drafts() == DraftCounts(7, 0, 0)
    total = speculation(DRAFTED, UNDRAFTED)
    assert total is not None
    assert (total.rounds, total.drafted, total.accepted) == (2 + 7, 6, 5)
    assert total.acceptance_length == 14 / 9


def test_a_server_that_never_drafts_does_not_speculate() -> None:
    assert speculation(UNDRAFTED, UNDRAFTED) is None


@pytest.mark.parametrize("outputs_differ", [True, False])
def test_a_rate_that_is_the_same_at_every_load_is_implausible_where_outputs_are_not(
    outputs_differ: bool,
) -> None:
    loads, records, changes = ["concurrency 1", "concurrency 2", "concurrency 4"], [], []
    for load in loads:
        for server in ("plain", "spec"):
            for turn in range(8):
                text = f"answer {turn} {load if outputs_differ else ''}"
                answer = StreamedAnswer(text, [Burst(0.1, 1), Burst(0.2, 199)], "token ids")
                records.append(
                    AnswerRecord(AnswerKey(load, server, f"p{turn}", 0), turn, float(turn), answer)
                )
                accepted = 60 + (turn if server == "plain" else 0) * (loads.index(load) + 1)
                changes.append(CounterChange(load, server, 0, turn, DraftCounts(50, 100, accepted)))
    summary = summarise(Plan(("plain", "spec"), loads, planned=len(records)), records, changes)
    lines = [line for line in report.cautions(summary) if "at every load" in line]
    expected = "IMPLAUSIBLE COUNTS of spec: its acceptance rate is 60.0% at every load, although its outputs differ"
    assert [line.startswith(expected) for line in lines] == ([True] if outputs_differ else [])

"""Acceptance from what each answer of a server reports."""

from specbench_kit.live.streams.llama_timings import Timings
from specbench_kit.metrics.ab.answers import AnswerKey, AnswerRecord, Burst, DraftCounts, StreamedAnswer
from specbench_kit.metrics.ab.figures import NO_TARGETS, server_figures
from specbench_kit.metrics.ab.summary import Speculation

DRAFTED, UNDRAFTED = Timings(predicted_n=8, draft_n=6, draft_n_accepted=5), Timings(predicted_n=8)


def speculation(*timings: Timings) -> Speculation | None:
    bursts = [Burst(0.1 * number, 1) for number in range(1, 9)]
    answers = [StreamedAnswer("", bursts, "token ids", drafts=one.drafts()) for one in timings]
    records = [
        AnswerRecord(AnswerKey("concurrency 1", "spec", f"{number}", 0), number, float(number), answer)
        for number, answer in enumerate(answers)
    ]
    return server_figures(records, NO_TARGETS, ()).speculation


def test_answers_without_drafts_are_rounds_of_one_token_at_a_server_that_drafts_in_others() -> None:
    """llama-server leaves its counts out of an answer in which it drafted nothing."""
    assert UNDRAFTED.drafts() == DraftCounts(8, 0, 0)
    found = speculation(DRAFTED, UNDRAFTED)
    assert found is not None
    assert (found.rounds, found.drafted, found.accepted) == (3 + 8, 6, 5)
    assert found.acceptance_length == 16 / 11


def test_a_server_that_never_drafts_does_not_speculate() -> None:
    assert speculation(UNDRAFTED, UNDRAFTED) is None

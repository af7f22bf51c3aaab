"""Acceptance in the thoughts of a reasoning model and in its reply."""

from collections.abc import Sequence

import pytest
from metric_records import round_of

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.thinking import AnswerPartAcceptance, summarise_thinking
from specbench_kit.reports import render_markdown
from specbench_kit.reports.document import Document
from specbench_kit.reports.run.sections import thinking

WORDS = ["<think>", "Hm", ",", " so", "</think>", "\n\n", "It", " is", "\ufffd", "é"]


def decode(ids: Sequence[int]) -> str:
    """Join words; the mark of half a character is completed by the word behind it."""
    return "".join(WORDS[token] for token in ids).replace("\ufffdé", "é")


def answer(name: str, ids: Sequence[int], *rounds: RoundRecord) -> RequestRecord:
    """Return the record of an answer whose rounds end a second after each other."""
    record = RequestRecord(name, "thoughts", [1], list(ids), decode(ids), rounds=list(rounds))
    for second, each in enumerate(record.rounds, 1):
        each.end_s = float(second)
    record.ttft_s, record.e2e_s = 1.0, float(len(rounds))
    return record


# <think> | Hm , so | </think> \n\n | It is: the third round commits the end of the thoughts and white space alone.
WHOLE = answer("whole", range(8), round_of(0), round_of(3, 2), round_of(2, 1), round_of(4, 1))


def parts_of(*records: RequestRecord) -> list[AnswerPartAcceptance]:
    summary = summarise_thinking(records, decode)
    assert summary is not None
    return summary.parts


def test_rounds_tokens_and_times_are_divided_where_the_reply_begins() -> None:
    thoughts, reply = parts_of(WHOLE)
    assert thoughts == AnswerPartAcceptance(
        "thoughts", 1, 6.0, 3.0, 3, 6 / 3, None, pytest.approx(3 / 5)
    )
    assert reply == AnswerPartAcceptance("reply", 1, 2.0, 0.0, 1, 2.0, None, 1 / 4)


def test_a_round_across_both_parts_belongs_to_the_one_in_which_it_begins() -> None:
    thoughts, reply = parts_of(answer("across", range(8), round_of(0), round_of(6, 5), round_of(0)))
    assert (thoughts.rounds, thoughts.tokens, thoughts.seconds) == (2, 6.0, 1.0)
    assert (reply.rounds, reply.tokens, reply.seconds) == (1, 2.0, 1.0)


def test_a_reply_begins_with_the_token_that_completes_its_first_character() -> None:
    ids = [0, 1, 4, 8, 9, 7]
    thoughts, reply = parts_of(answer("half", ids, *[round_of(0)] * 6))
    assert (thoughts.tokens, reply.tokens) == (4.0, 2.0)


def test_forced_tokens_have_their_places_and_count_in_no_acceptance() -> None:
    # <think> is forced before the first round, </think> and white space behind the second one.
    rounds = [round_of(0), round_of(1, 1), round_of(3, 1)]
    rounds[1].forced = 2
    record = answer("forced", range(8), *rounds)
    record.forced_first = 1
    thoughts, reply = parts_of(record)
    assert (thoughts.tokens, thoughts.rounds, thoughts.acceptance_length) == (6.0, 2, 3 / 2)
    assert (reply.tokens, reply.rounds, reply.acceptance_length) == (2.0, 1, 2.0)
    assert (thoughts.seconds, reply.seconds) == (2.0, 0.0)


def test_thoughts_that_are_forced_as_a_whole_take_no_time() -> None:
    record = answer("all", range(8), round_of(0))
    record.forced_first = 7
    thoughts, reply = parts_of(record)
    assert (thoughts.seconds, thoughts.rounds, thoughts.acceptance_length) == (0.0, 0, None)
    assert (reply.tokens, reply.rounds) == (2.0, 1)


def test_an_answer_that_is_cut_while_it_thinks_has_no_reply() -> None:
    cut = answer("cut", [0, 1, 2], round_of(0), round_of(2, 1))
    summary = summarise_thinking([cut, WHOLE], decode)
    assert summary is not None
    assert (summary.answers, summary.unfinished) == (2, 1)
    thoughts, reply = summary.parts
    assert (thoughts.answers, thoughts.tokens, thoughts.seconds) == (2, 4.5, 2.0)
    assert (reply.answers, reply.rounds) == (1, 1)


@pytest.mark.parametrize("ids", [[6, 7], [0, 4, 6, 7], []])
def test_an_answer_without_thoughts_is_none(ids: list[int]) -> None:
    assert summarise_thinking([answer("plain", ids, *[round_of(0)] * len(ids))], decode) is None


def test_times_that_another_tool_did_not_record_are_not_made_up() -> None:
    record = answer("untimed", range(8), round_of(0), round_of(6, 5), round_of(0))
    record.ttft_s = record.e2e_s = None
    assert [part.seconds for part in parts_of(record)] == [None, None]


def test_the_interval_is_over_prompts() -> None:
    slow = [round_of(0)] * 6 + [round_of(1, 1)]
    fast = [round_of(5, 5), round_of(1, 1)]
    answers = [answer(f"p{number}", range(8), *(fast, slow)[number % 2]) for number in range(8)]
    thoughts, reply = parts_of(*answers)
    assert (thoughts.rounds, thoughts.acceptance_length) == (28, 48 / 28)
    assert thoughts.interval is not None
    assert thoughts.interval[0] < 48 / 28 < thoughts.interval[1]
    assert (reply.rounds, reply.acceptance_length) == (8, 2.0)


def test_the_page_has_both_parts_and_says_what_was_cut() -> None:
    cut = answer("cut", [0, 1, 2], round_of(0), round_of(2, 1))
    page = render_markdown.render(
        Document.of("t", thinking(summarise_thinking([cut, WHOLE], decode)))
    )
    assert "2 answers begin with thoughts; 1 end before it." in page
    assert "| thoughts | 2 | 4.50 | 2.00 s | 5 |" in page
    assert thinking(None) == []

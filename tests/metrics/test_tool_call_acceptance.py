"""Acceptance in conversations with tools: by kind of token and by turn, counted by hand."""

from collections.abc import Sequence

import pytest
from metric_records import round_of

from specbench_kit.datasets.tool_calls import Tools
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.tool_calls import ToolAnswers, ToolCallSummary, token_kinds
from specbench_kit.reports import render_markdown
from specbench_kit.reports.document import Document
from specbench_kit.reports.run.sections import tool_calls

CALL = '{"name":"f","arguments":{"a":"xy"}}'
TOOLS = Tools([{"function": {"name": "f", "parameters": {"required": ["a"]}}}])


def decode(ids: Sequence[int]) -> str:
    """A token is a character."""
    return "".join(map(chr, ids))


def answer(name: str, text: str, prompt: str, *rounds: RoundRecord) -> RequestRecord:
    """A turn of the conversation `name` without its turn."""
    conversation = name.partition("/")[0]
    ids = list(map(ord, text))
    record = RequestRecord(name, "test", list(map(ord, prompt)), ids, text, dialogue=conversation)
    record.rounds = list(rounds)
    return record


def summarised(*records: RequestRecord) -> ToolCallSummary:
    names = {record.dialogue for record in records}
    summary = ToolAnswers(dict.fromkeys(names, TOOLS), decode).summarise(records)
    assert summary is not None
    return summary


def test_a_token_counts_as_drafted_where_one_was_verified_at_its_place() -> None:
    # 35 tokens: the first round accepts 29 of 30 and corrects the 30th place, which is the value's
    # first token; the second drafts one that is right, and adds a quotation mark; then plain ones.
    rounds = [round_of(30, 29), round_of(1, 1), round_of(0), round_of(0), round_of(0)]
    text = CALL
    assert (len(text), sum(part.committed for part in rounds)) == (35, 35)
    assert text[30:32] == "xy"
    summary = summarised(answer("c/1", text, "say xy", *rounds))
    assert (summary.answers, summary.calling, summary.valid) == (1, 1, 1)
    structure, copied = summary.kinds
    assert (structure.kind, structure.tokens, copied.kind, copied.tokens) == (
        "structure",
        33,
        "copied argument",
        2,
    )
    # Structure: 29 accepted and the wrong one at place 30; the value's first token was accepted,
    # its second is the target's own behind a draft that had ended.
    assert (structure.drafted, structure.accepted) == (30, 29)
    assert (copied.drafted, copied.accepted) == (1, 1)
    assert structure.acceptance_rate == pytest.approx(29 / 30)


def test_tokens_behind_a_tree_count_as_drafted_by_its_depth() -> None:
    tree = round_of(6, 1)
    tree.deepest = 1
    summary = summarised(answer("c/1", "ok", "", tree))
    (text,) = summary.kinds
    assert (text.kind, text.tokens, text.drafted, text.accepted) == ("free text", 2, 1, 1)


def test_turns_are_compared_over_conversations() -> None:
    records = []
    for number in range(8):
        records += [
            answer(f"c{number}/1", "word", "p" * 10, round_of(3, 3)),
            answer(f"c{number}/2", "word", "p" * 30, *[round_of(3, number % 2)] * 2),
        ]
    summary = summarised(*records)
    first, second = summary.turns
    assert (first.turn, first.requests, first.prompt_tokens, first.rounds) == (1, 8, 10, 8)
    assert (first.acceptance_length, first.acceptance_rate) == (4.0, 1.0)
    assert (second.turn, second.prompt_tokens, second.output_tokens) == (2, 30, 4)
    assert second.acceptance_length == pytest.approx(1.5)
    assert second.interval is not None
    assert second.interval[0] < 1.5 < second.interval[1]
    (text,) = summary.kinds
    assert text.interval is not None
    assert text.interval[1] <= 1


def test_answers_without_tools_are_left_out() -> None:
    record = answer("c/1", "word", "", round_of(3, 3))
    assert ToolAnswers({"d": TOOLS}, decode).summarise([record]) is None
    failed = answer("d/1", "", "")
    failed.finish_reason = "error"
    assert ToolAnswers({"d": TOOLS}, decode).summarise([failed]) is None


def test_broken_calls_are_counted() -> None:
    broken = answer("c/1", CALL[:-1], "", round_of(40, 33))
    other = answer("d/1", "No call.", "", round_of(8, 7))
    summary = summarised(broken, other)
    assert (summary.answers, summary.calling, summary.valid) == (2, 1, 0)


def test_a_token_is_what_most_of_its_characters_are() -> None:
    pieces = ['{"name":"f","arguments":{"a":"', 'x', 'y"', '}}', " Done"]  # fmt: skip
    kinds = token_kinds(range(5), lambda ids: "".join(pieces[number] for number in ids), "xy")
    assert kinds == ["structure", "copied argument", "copied argument", "structure", "free text"]


def test_half_a_character_waits_for_the_token_that_completes_it() -> None:
    shown = ["", "\ufffd", "ü", "ü", "ü!"]
    kinds = token_kinds(range(4), lambda ids: shown[len(ids)], "")
    assert kinds == ["free text"] * 4


def test_the_page_has_both_tables() -> None:
    summary = summarised(answer("c/1", CALL, "say xy", round_of(40, 34)))
    page = render_markdown.render(Document.of("t", tool_calls(summary)))
    assert "1 of 1 answers call a tool; the calls of 1 are valid" in page
    assert "| structure | 33 | 94.3% | 100.0% |" in page
    assert "| turn 1 | 1 | 6.00 | 35.0 | 35.0 |" in page
    assert tool_calls(None) == []

"""Reports and terminal say how many answers the token limit cut, and which limit lets them end."""

from io import StringIO

from msgspec import to_builtins
from report_builders import (
    autoregressive_like,
    comparison_of,
    make_run,
    render_run,
    run_summary,
    simulate_chain,
    summary_of,
)
from rich.console import Console

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import Prompt
from specbench_kit.reports.comparison.terminal import print_comparison
from specbench_kit.reports.run.sections import answer_cautions, answers_section
from specbench_kit.studies.bench.answering import GoldAnswers

PROMPTS = [
    Prompt(f"q{number}", "maths", ("How many?",), gold=Gold("number", ("7",)))
    for number in range(10)
]


def judged(cut: int, max_new_tokens: int = 128) -> JsonObject:
    """The summary of ten answers: the first `cut` ended by the limit and wrong, the others complete and right."""
    records = simulate_chain(requests=10, rounds=20, draft=4, alpha=0.7)
    baseline = autoregressive_like(records)
    for record in [*records, *baseline]:
        is_cut = int(record.request_id.removeprefix("q")) < cut
        record.finish_reason, record.text = ("length", "First, 3") if is_cut else ("eos", "#### 7")
    found = GoldAnswers(PROMPTS, max_new_tokens).judge(records, baseline)
    return summary_of(records, baseline) | {"exact_match": to_builtins(found)}


def printed(summary: JsonObject) -> str:
    console = Console(file=StringIO(), width=200)
    records = simulate_chain(requests=10, rounds=20, draft=4, alpha=0.7)
    print_comparison(console, comparison_of(records, autoregressive_like(records), summary))
    return console.file.getvalue()


def test_where_most_answers_were_cut_there_is_no_exact_match_but_the_limit_that_lets_them_end() -> (
    None
):
    summary = judged(cut=9)
    assert summary["exact_match"]["method"] == {"judged": 10, "correct": 1, "cut": 9}
    report, screen = render_run(make_run(), summary, []), printed(summary)
    for text in (report, screen):
        assert "CUT ANSWERS: 9 of 10 answers were cut at the limit of 128 tokens" in text
        assert "--max-new-tokens 320" in text
        assert "10.0%" not in text
    assert "| target | – | 1 | 10 | 9 |" in report
    assert (
        "exact match of the target: not judged (9 of 10 answers were cut by the limit of tokens)"
        in screen
    )


def test_a_few_cut_answers_are_counted_and_none_are_no_caution() -> None:
    assert "exact match of the target: 80.0% (8 of 10 answers right)" in printed(judged(cut=2))
    assert "CUT ANSWERS: 2 of 10" in printed(judged(cut=2))
    assert "--max-new-tokens 800" in printed(judged(cut=2, max_new_tokens=400))
    assert "exact match of the target: 100.0%" in printed(judged(cut=0))
    assert "CUT ANSWERS" not in printed(judged(cut=0))


def test_summaries_from_before_cut_answers_were_counted_can_be_read() -> None:
    summary = judged(cut=9)
    old = {"judged": 10, "correct": 1}
    summary["exact_match"] = {
        "rule": "the last number",
        "method": old,
        "target": old,
        "draft": None,
    }
    assert answer_cautions([run_summary(summary)]) == []
    assert len(answers_section({"fixed-k": run_summary(summary)})) == 3


def test_a_rule_of_the_run_reads_answers_instead_of_the_dataset_s_own() -> None:
    records = simulate_chain(requests=10, rounds=20, draft=4, alpha=0.7)
    for record in records:
        record.finish_reason, record.text = "eos", "#### 7\nThat is 3 and 4."
    own, strict, flexible = (
        GoldAnswers(PROMPTS, 128, rule=rule).judge(records, [])
        for rule in (None, "strict", "flexible")
    )
    assert [match.method.correct for match in (own, strict, flexible)] == [10, 10, 0]
    assert "strict-match of lm-evaluation-harness" in strict.rule

"""The time between tokens of a server that drafts and one that does not, from low loads to high ones."""

from pathlib import Path

import pytest
from command_line import read_object, skit_here, write_rows
from msgspec import UNSET, to_builtins
from streaming_server import streaming_server

from specbench_kit.live.engines.answers import (
    AnswerKey,
    AnswerRecord,
    Burst,
    DraftCounts,
    StreamedAnswer,
)
from specbench_kit.reports.render_markdown import render
from specbench_kit.studies.ab.comparison import Plan, summarise
from specbench_kit.studies.ab.report import AbDescription, build
from specbench_kit.studies.ab.settings import Load
from specbench_kit.studies.ab.summary import AbSummary
from specbench_kit.studies.ab.tails import tail_sentences

TURNS = 12
Steps = tuple[float, float]
"""The seconds of most steps, and of every tenth one."""


def answer(steps: Steps, tokens: int, number: int, drafted: bool = False) -> StreamedAnswer:
    """An answer of twenty steps; no two turns are alike by more than a few percent."""
    usual_s, slow_s = (step_s * (1 + 0.003 * number) for step_s in steps)
    at_s = [0.1]
    for step in range(20):
        at_s.append(at_s[-1] + (slow_s if step % 10 == 9 else usual_s))
    drafts = DraftCounts(20, 60, 20 * (tokens - 1)) if drafted else None
    return StreamedAnswer(
        "text", [Burst(moment_s, tokens) for moment_s in at_s], "token ids", drafts=drafts
    )


def summary_of(
    loads: dict[str, tuple[Steps, Steps]],
    tokens: int = 2,
    turns: int = TURNS,
    drafts: bool = True,
    plain_tokens: int = 1,
) -> AbSummary:
    """Compare a server of a token per step with one of several, by the steps of both at each load."""
    records = []
    for load, (plain, spec) in loads.items():
        for turn in range(turns):
            answers = {
                "plain": answer(plain, plain_tokens, turn),
                "spec": answer(spec, tokens, turn, drafted=drafts),
            }
            records += [
                AnswerRecord(AnswerKey(load, name, f"p{turn}", 0), turn, 100.0 * turn, given)
                for name, given in answers.items()
            ]
    return summarise(Plan(("plain", "spec"), list(loads), len(records)), records)


CALM = ((0.01, 0.02), (0.015, 0.02))
BUSY = ((0.02, 0.03), (0.03, 0.10))


def test_the_load_is_named_from_which_on_the_tail_is_longer() -> None:
    # In whatever order they were run; the tokens of a step share its time.
    summary = summary_of({"concurrency 16": BUSY, "concurrency 4": CALM})
    (sentence,) = tail_sentences(summary)
    assert sentence.startswith(
        "The P99 of the time between tokens (ITL): from concurrency 16 on `spec` hurts the tail, with 51."
    )
    assert sentence.endswith("of `plain`; with lower loads it is not shown to.")
    assert sentence in render(build(AbDescription(), summary))
    busy = summary.loads[0].itl_p99
    assert busy["spec"].mean == pytest.approx(summary.loads[0].servers["spec"].itl.p99)
    assert busy["spec"].low < busy["spec"].mean < busy["spec"].high


def test_a_tail_that_is_not_longer_is_told_up_to_the_highest_load() -> None:
    (sentence,) = tail_sentences(summary_of({"concurrency 1": CALM, "concurrency 4": CALM}))
    assert "up to concurrency 4 speculation does not make it longer; there `spec` has" in sentence


def test_too_few_turns_show_no_difference() -> None:
    (sentence,) = tail_sentences(summary_of({"concurrency 4": BUSY}, turns=5))
    assert "speculation is not shown to make it longer" in sentence


@pytest.mark.parametrize(
    ("tokens", "plain_tokens", "drafts"),
    [
        (1, 1, False),  # neither drafts
        (2, 1, False),  # neither says so, whatever arrives together
        (2, 2, True),  # the other one's tokens come together too: it may draft and say nothing
    ],
)
def test_without_a_server_that_drafts_and_one_that_does_not_there_is_no_sentence(
    tokens: int, plain_tokens: int, drafts: bool
) -> None:
    summary = summary_of(
        {"concurrency 4": CALM}, tokens=tokens, plain_tokens=plain_tokens, drafts=drafts
    )
    assert tail_sentences(summary) == []
    assert summary.loads[0].itl_p99 is UNSET
    assert "itl_p99" not in to_builtins(summary.loads[0])


def test_the_figures_that_any_answers_have_are_counted() -> None:
    assert (Load(1, concurrency=4).figures, Load(1, rate=2.0).figures) == (4, 3)


def test_a_real_pair_of_servers_has_its_sentence(tmp_path: Path) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl",
        *({"id": f"p{number}", "prompt": f"prompt number {number}"} for number in range(6)),
    )
    options = ("--dataset", prompts, "--max-new-tokens", 20, "--warm-up", 0, "--repeats", 1)
    # Tokens that arrive within half a millisecond of each other are one burst.
    with (
        streaming_server(slow_s=0.004) as (plain, _),
        streaming_server(slow_s=0.004, speculates=True, drafts_by_model=True) as (spec, _),
    ):
        done = skit_here(
            "ab",
            f"plain=vllm://{plain}",
            f"spec=vllm://{spec}",
            *options,
            "--out",
            tmp_path / "out",
        )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").glob("*-ab-*")
    (load,) = read_object(folder / "summary.json")["loads"]
    assert load["itl_p99"].keys() == {"plain", "spec"}
    assert "The P99 of the time between tokens (ITL): " in (folder / "report.md").read_text()
    assert "The P99 of the time" in done.stdout

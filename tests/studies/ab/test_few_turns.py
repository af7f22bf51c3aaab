"""How many turns a verdict takes is said before a run, and is enough; what makes a comparison empty is told."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import error_line, skit_here, write_prompts
from streaming_server import streaming_server
from study_pages import assert_made_again

from specbench_kit.live.engines.answers import AnswerKey, AnswerRecord, Burst, StreamedAnswer
from specbench_kit.metrics.statistics import FEWEST_UNITS, units_for_a_verdict
from specbench_kit.metrics.verdicts import NO_DIFFERENCE, SLOWER, TOO_FEW
from specbench_kit.studies.ab import report
from specbench_kit.studies.ab.comparison import Plan, summarise
from specbench_kit.studies.ab.summary import AbSummary


def compared(turns: int, loads: Sequence[str], seed: int, slower: float = 3.0) -> AbSummary:
    """Two servers that answer alike, the second so many times as slowly; every time varies by a fifth."""
    rng = np.random.default_rng(seed)
    records = []
    for load in loads:
        for server in ("plain", "spec"):
            for number in range(turns):
                step_s = (slower if server == "spec" else 1.0) * 0.01
                moments = np.cumsum(step_s * rng.uniform(0.8, 1.2, 16)) + step_s * rng.uniform(0, 2)
                answer = StreamedAnswer(
                    "a" * 16, [Burst(float(s), 1) for s in moments], "one per chunk", "stop"
                )
                key = AnswerKey(load, server, f"p{number}", 0)
                records.append(
                    AnswerRecord(key, number, float(100 * number), answer, None, 1, 0.0, [])
                )
    return summarise(Plan(("plain", "spec"), loads, planned=len(records)), records)


def test_one_figure_alone_takes_the_fewest_units_of_all() -> None:
    assert units_for_a_verdict(1) == FEWEST_UNITS
    assert [units_for_a_verdict(figures) for figures in (4, 8, 16)] == [8, 9, 10]


@pytest.mark.parametrize("loads", [("concurrency 1",), ("concurrency 1", "concurrency 2")])
def test_the_turns_that_it_names_are_enough_for_a_verdict_on_every_figure(
    loads: Sequence[str],
) -> None:
    enough = units_for_a_verdict(4 * len(loads))
    for seed in range(8):
        for load in compared(enough, loads, seed).loads:
            assert [entry.verdict for entry in load.comparisons] == [SLOWER] * 4


def test_where_no_interval_can_be_given_nothing_is_called_a_tie() -> None:
    seen = set()
    for turns in range(2, 10):
        for seed in range(8):
            for entry in (
                compared(turns, ("concurrency 1",), seed, slower=1.02).loads[0].comparisons
            ):
                if entry.typical_interval is None:
                    assert entry.verdict != NO_DIFFERENCE
                seen.add(entry.verdict)
    assert {TOO_FEW, NO_DIFFERENCE} <= seen


def test_too_few_prompts_name_how_many_are_enough() -> None:
    (line,) = report.what_would_tell(compared(5, ("concurrency 1",), 0))
    assert line == "At concurrency 1 a verdict takes 8 prompts or more."


def prompts_of(folder: Path, count: int) -> Path:
    prompts = (f"prompt number {number}" for number in range(count))
    return write_prompts(folder / "prompts.jsonl", prompts)


def ab(
    first: str, second: str, prompts: Path, *options: object
) -> "subprocess.CompletedProcess[str]":
    out = prompts.parent / "out"
    return skit_here(
        "ab", first, second, "--dataset", prompts, "--max-new-tokens", 6, "--out", out, *options
    )


@pytest.mark.parametrize(
    ("count", "words"), [(4, "which can show no difference"), (7, "which may be too few to tell")]
)
def test_a_run_says_before_it_begins_that_it_may_be_too_small(
    count: int, words: str, tmp_path: Path
) -> None:
    prompts = prompts_of(tmp_path, count)
    with streaming_server() as (first, _), streaming_server(speculates=True) as (second, _):
        servers = f"plain=vllm://{first}", f"spec=vllm://{second}"
        done = ab(*servers, prompts, "--repeats", 1)
        refused = ab(*servers, prompts, "--fail-if", "typical_speedup.low<1")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert f"concurrency 1: {count} prompts make {count} turns of 1, {words}" in said
    assert "give 8 prompts or more with --limit" in said
    assert "--turn" not in said, "a turn of one request cannot be smaller"
    line = error_line(refused)
    assert line.startswith(
        f"--fail-if 'typical_speedup.low<1' asks for an interval; concurrency 1: {count} prompts make"
    )
    assert len(list((tmp_path / "out").iterdir())) == 1, "nothing was measured"


def test_one_server_under_two_names_and_servers_that_draft_nothing_are_told(tmp_path: Path) -> None:
    prompts = prompts_of(tmp_path, 3)
    with streaming_server(slow_s=0.05) as (first, _), streaming_server(slow_s=0.05) as (second, _):
        port = first.partition(":")[2]
        plain = f"plain=vllm://{first}"
        once = ("--repeats", 1, "--warm-up", 0)
        same = ab(plain, f"spec=vllm://localhost:{port}", prompts, *once)
        others = ab(plain, f"spec=vllm://{second}", prompts, *once)
    assert "ONE SERVER: plain and spec lead to the same address" in " ".join(same.stdout.split())
    said = " ".join(others.stdout.split())
    assert "ONE SERVER" not in said
    assert (
        "NO DRAFTS at concurrency 1: neither server says that it drafted, and both send their tokens one by"
        in said
    )


def test_a_server_that_drafts_is_not_said_to_draft_nothing(tmp_path: Path) -> None:
    prompts = prompts_of(tmp_path, 3)
    with streaming_server() as (first, _), streaming_server(speculates=True) as (second, _):
        done = ab(f"plain=vllm://{first}", f"spec=vllm://{second}", prompts)
    assert done.returncode == 0, done.stderr
    assert "NO DRAFTS" not in done.stdout


def test_addresses_without_a_name_are_no_files() -> None:
    line = error_line(skit_here("ab", "127.0.0.1:8001", "127.0.0.1:8002", "--limit", 2))
    assert line.startswith("'127.0.0.1:8001' names no kind of server: give NAME=KIND://HOST:PORT")


def test_addresses_without_a_kind_are_no_files() -> None:
    done = skit_here("ab", "a=127.0.0.1:8001", "b=127.0.0.1:8002", "--limit", 2)
    assert error_line(done) == (
        "'a=127.0.0.1:8001' says no kind of server: write a=llama-cpp://127.0.0.1:8001, or another kind of `skit list "
        "engines`"
    )


def test_an_address_without_its_kind_beside_one_with_it_is_named() -> None:
    line = error_line(skit_here("ab", "a=127.0.0.1:7171", "b=completions://127.0.0.1:7172"))
    assert line.startswith(
        "'a=127.0.0.1:7171' says no kind of server: write a=llama-cpp://127.0.0.1:7171"
    )


def test_what_differs_from_the_run_to_resume_is_named_alone(tmp_path: Path) -> None:
    prompts = prompts_of(tmp_path, 3)
    with streaming_server() as (first, _), streaming_server() as (second, _):
        servers = f"plain=vllm://{first}", f"spec=vllm://{second}"
        ended = ab(*servers, prompts, "--minutes", 1e-6, "--limit", 3)
        other_server = ab(
            servers[0], f"spec=completions://{second}", prompts, "--limit", 3, "--resume"
        )
        other_limit = ab(*servers, prompts, "--limit", 2, "--resume")
    assert ended.returncode == 0, ended.stderr
    assert (
        f"with servers spec http://{second} vllm, not spec http://{second} completions: give its settings"
        in error_line(other_server)
    )
    assert "with config.limit 3, not 2: give its settings" in error_line(other_limit)


def test_the_folder_of_a_comparison_is_no_run_of_a_benchmark(tmp_path: Path) -> None:
    prompts = prompts_of(tmp_path, 3)
    with streaming_server() as (first, _), streaming_server(speculates=True) as (second, _):
        assert ab(f"plain=vllm://{first}", f"spec=vllm://{second}", prompts).returncode == 0
    (folder,) = (tmp_path / "out").iterdir()
    words = f"{folder} was written by skit ab, whose pages lie in it: only runs of skit bench can be read here"
    assert words in error_line(skit_here("compare", folder, folder))
    assert_made_again(folder, tmp_path / "again")

"""Servers that stream in the form of several engines, and folders of other commands, are taken apart."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import error_line, skit_here, write_prompts
from run_builders import write_methods
from streaming_server import streaming_server
from study_pages import assert_made_again

from specbench_kit import api
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.studies.interchange.schemas import formats

PROMPTS = [f"prompt number {number}" for number in (11, 13, 18, 22, 27, 28)]
TOKENS = 24
DRAFTS: dict[str, Any] = {"speculates": True, "drafts_by_model": True}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.jsonl", PROMPTS)


def explained(*arguments: object, out: Path) -> tuple[JsonObject, Path]:
    done = skit_here("why", *arguments, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    return document["summary"], Path(document["run_dirs"][0])


def value(summary: JsonObject, name: str) -> float:
    number = summary["numbers"][name]
    assert number is not None, summary["missing"].get(name)
    return float(number["value"])


@pytest.mark.parametrize("reports_drafts", [True, False])
def test_a_server_in_the_form_of_vllm_is_read_by_answers_or_by_counters(
    reports_drafts: bool, prompts: Path, tmp_path: Path
) -> None:
    with streaming_server(**DRAFTS, reports_drafts=reports_drafts) as (address, engine):
        summary, folder = explained(
            *(f"vllm://{address}", "--dataset", prompts, "--max-new-tokens", TOKENS), out=tmp_path
        )
        answers = [list(engine.decode(prompt, TOKENS))[1:] for prompt in PROMPTS]
    rounds = [forward for answer in answers for forward in answer]
    assert value(summary, "rounds") == len(rounds)
    assert value(summary, "drafted") == sum(forward.drafted for forward in rounds)
    assert value(summary, "accepted") == sum(forward.accepted for forward in rounds)
    assert value(summary, "tokens_per_round") == pytest.approx(
        sum(len(forward.tokens) for forward in rounds) / len(rounds)
    )
    source = summary["numbers"]["rounds"]["source"]
    assert ("counters" in source) != reports_drafts
    # This server drafts as many tokens whatever is left of an answer.
    assert summary["outcome"] == "cannot tell"
    assert "also of 2 tokens" in summary["reason"]
    assert value(summary, "first_acceptance") == pytest.approx(
        sum(forward.accepted > 0 for forward in rounds) / len(rounds)
    )
    assert "cannot be told" in api.load(folder).headline


def test_a_drafter_of_another_model_is_named_by_the_counters_of_vllm(
    prompts: Path, tmp_path: Path
) -> None:
    def broken(counts: dict[str, float]) -> dict[str, float]:
        return {**counts, "accepted_tokens": 0, "accepted_tokens_per_pos": 0}

    with (
        streaming_server() as (plain, _),
        streaming_server(**DRAFTS, reports_drafts=False, miscount=broken) as (spec, _),
    ):
        summary, folder = explained(
            *(f"plain=vllm://{plain}", f"spec=vllm://{spec}", "--dataset", prompts),
            *("--max-new-tokens", TOKENS, "--concurrency", "2"),
            out=tmp_path,
        )
    assert summary["findings"][0]["rule"] == "broken-drafter"
    assert summary["findings"][0]["source"].startswith("the server's own counters")
    assert "The drafter is broken" in api.load(folder).headline
    assert [load["concurrency"] for load in summary["loads"]] == [1, 2]
    assert summary["numbers"]["speedup_together"]["value"] > 0


def test_a_stream_without_counts_is_read_by_its_pieces(prompts: Path, tmp_path: Path) -> None:
    with streaming_server(**DRAFTS, reports_drafts=False, miscount=lambda _: {}) as (
        address,
        engine,
    ):
        summary, _ = explained(
            *(f"vllm://{address}", "--dataset", prompts, "--max-new-tokens", TOKENS), out=tmp_path
        )
        rounds = sum(len(list(engine.decode(prompt, TOKENS))) - 1 for prompt in PROMPTS)
    assert value(summary, "rounds") <= rounds
    assert summary["numbers"]["rounds"]["source"].startswith("pieces of the stream")
    assert summary["numbers"]["acceptance_rate"] is None
    assert "broken-drafter" in {entry["rule"] for entry in summary["not_looked_at"]}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of skit ab."""
    base = tmp_path_factory.mktemp("ab")
    prompts = write_prompts(base / "prompts.jsonl", PROMPTS)
    with streaming_server() as (plain, _), streaming_server(**DRAFTS) as (spec, _):
        done = skit_here(
            *("ab", f"spec=vllm://{spec}", f"plain=vllm://{plain}", "--dataset", prompts),
            *("--max-new-tokens", TOKENS, "--repeats", 1, "--out", base, "--json"),
        )
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["run_dirs"][0])


def test_a_folder_of_skit_ab_has_both_sides_in_any_order(compared: Path, tmp_path: Path) -> None:
    summary, _ = explained(compared, out=tmp_path)
    assert summary["servers"] == ["plain", "spec"]
    assert value(summary, "requests") == len(PROMPTS)
    assert value(summary, "speedup") == pytest.approx(
        value(summary, "plain_s") / value(summary, "token_s")
    )
    assert value(summary, "acceptance_rate") > 0


@pytest.mark.figures
def test_a_folder_of_skit_bench_has_its_parts_and_the_page_is_made_again(tmp_path: Path) -> None:
    runs = write_methods(tmp_path / "runs", requests=6)
    summary, folder = explained(runs[0], out=tmp_path / "out")
    assert summary["servers"][0] == "autoregressive"
    parts = [value(summary, name) for name in ("drafting_s", "verification_s", "other_s")]
    assert sum(parts) == pytest.approx(value(summary, "round_s"))
    assert summary["accepted_at"]
    assert_made_again(folder, tmp_path / "again")
    assert len(api.load(folder).to_pandas()) == len(summary["numbers"])
    assert "why" in formats()


def test_two_folders_are_a_plain_one_and_one_that_speculates(tmp_path: Path) -> None:
    first, second = write_methods(tmp_path / "runs", requests=6)[:2]
    summary, folder = explained(first, second, out=tmp_path / "out")
    assert len(summary["servers"]) == 2
    assert api.load(folder).run.sources == [first.name, second.name]
    assert error_line(skit_here("why", first, first)).endswith("hold the same answers")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere"),
        (["vllm://127.0.0.1:1", "folder"], "name servers or folders, not one of each"),
        (["a", "b", "c"], "name one server or folder, or two, not 3"),
        (["a=vllm://127.0.0.1:1", "a=vllm://127.0.0.1:2"], "both servers have one name"),
        (["vlm://127.0.0.1:1"], "vlm"),
    ],
)
def test_what_cannot_be_read_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert words in error_line(skit_here("why", *arguments, "--out", tmp_path))


def test_several_runs_in_a_folder_are_named(tmp_path: Path) -> None:
    runs = write_methods(tmp_path / "runs", requests=6)
    line = error_line(skit_here("why", tmp_path / "runs", "--out", tmp_path))
    assert f"holds {len(runs)} runs: name one of" in line

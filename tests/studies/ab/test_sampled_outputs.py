"""Sampled outputs of two servers: equal distributions pass, and drafts that are verified wrongly do not."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import skit_here, write_prompts
from nightly import nightly_except
from streaming_server import streaming_server

from specbench_kit.core.typed_json import JsonObject

PROMPTS = [f"prompt number {number}" for number in (11, 13, 18, 22, 27, 28)]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.jsonl", PROMPTS)


def compare(
    prompts: Path, second: dict[str, Any], *options: object, first: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Compare a server with the second one, which answers faster."""
    out = prompts.parent / "out"
    common = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        8,
        "--out",
        out,
        "--warm-up",
        0,
        "--temperature",
        1,
        "--json",
    )
    with (
        streaming_server(**(first or {})) as (first_address, _),
        streaming_server(**second) as (second_address, _),
    ):
        return skit_here(
            "ab",
            f"plain=vllm://{first_address}",
            f"spec=vllm://{second_address}",
            *common,
            *options,
        )


def result_of(done: subprocess.CompletedProcess[str]) -> tuple[JsonObject, str]:
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return result["summary"]["loads"][0], (Path(result["run_dirs"][0]) / "report.md").read_text()


@pytest.mark.parametrize("verification", nightly_except(["ratio"], ["ratio", "point"]))
def test_right_verification_passes(verification: str, prompts: Path) -> None:
    second = {"speculates": True, "verification": verification}
    load, report = result_of(compare(prompts, second, "--repeats", 7))
    assert load["outputs"]["gate"] == "alike in distribution"
    assert load["outputs"]["sampled"]["samples"] == 42
    assert load["outputs"]["sampled"]["chance"] > load["outputs"]["sampled"]["level"]
    assert "The distributions of 42 sampled outputs of each server show no difference." in report
    assert "OUTPUTS DIFFER" not in report


def test_drafts_that_are_verified_as_if_they_were_drawn_are_found(prompts: Path) -> None:
    """The draft model's likeliest tokens are accepted by p / q, as if they came from q: then they come too often."""
    second = {"speculates": True, "verification": "argmax"}
    load, report = result_of(compare(prompts, second, "--repeats", 7, first={"slow_s": 0.02}))
    assert load["outputs"]["gate"] == "different"
    assert "first tokens" in load["outputs"]["sampled"]["shown"]
    assert "Sampled outputs have different distributions (first tokens" in report
    assert "OUTPUTS DIFFER at concurrency 1: first tokens" in report
    # Whether so few prompts tell that the second server is faster depends on the machine.
    assert "faster" not in {entry["verdict"] for entry in load["comparisons"]}


def test_answers_that_end_too_early_are_found_by_their_lengths(prompts: Path) -> None:
    first, second = {"ends_with": "abc"}, {"ends_with": "abcdefghijklmnopqrstuvwxyzABCDE"}
    load, _ = result_of(compare(prompts, second, "--repeats", 7, first=first))
    assert load["outputs"]["gate"] == "different"
    assert "lengths" in load["outputs"]["sampled"]["shown"]


def test_every_repeat_has_a_seed_of_its_own_and_both_servers_the_same(prompts: Path) -> None:
    out = prompts.parent / "out"
    common = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        4,
        "--out",
        out,
        "--warm-up",
        0,
        "--temperature",
        1,
    )
    with (
        streaming_server() as (first_address, first_engine),
        streaming_server() as (second_address, second_engine),
    ):
        done = skit_here(
            "ab", f"a=vllm://{first_address}", f"b=vllm://{second_address}", *common, "--repeats", 3
        )
    assert done.returncode == 0, done.stderr
    seeds = [
        sorted(body["seed"] for _, body in engine.requests[1:])
        for engine in (first_engine, second_engine)
    ]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3 * len(PROMPTS)


def test_too_few_samples_are_not_compared_and_it_is_said_before(prompts: Path) -> None:
    done = compare(prompts, {}, "--repeats", 2)
    load, report = result_of(done)
    assert (
        "too few samples to compare the distributions of outputs: give --repeats 4 or more"
        in done.stderr
    )
    assert (load["outputs"]["gate"], load["outputs"]["sampled"]) == ("not compared", None)
    assert "Outputs were not compared." in report

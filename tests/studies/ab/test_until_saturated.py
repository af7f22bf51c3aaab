"""A sweep of loads that ends where both servers are over-saturated."""

import subprocess
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit_here, write_rows
from streaming_server import streaming_server


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = (
        {"id": f"p{number}", "prompt": f"prompt number {number}", "chat": False}
        for number in range(54)
    )
    return write_rows(tmp_path / "prompts.jsonl", *rows)


def ab(
    first: str, second: str, prompts: Path, *options: object
) -> subprocess.CompletedProcess[str]:
    common = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        3,
        "--out",
        prompts.parent / "out",
        "--warm-up",
        0,
    )
    # These servers answer one request at a time.
    return skit_here(
        "ab",
        first,
        second,
        *common,
        "--repeats",
        1,
        "--rate",
        "80,100,120,140,160",
        "--turn",
        9,
        *options,
    )


def run_of(prompts: Path) -> Path:
    (folder,) = (prompts.parent / "out").glob("*-ab-*")
    return folder


@pytest.mark.nightly  # tests/metrics/test_ab_saturation.py says where that is
def test_a_sweep_ends_where_both_servers_are_over_saturated(prompts: Path) -> None:
    # They answer in .09 s, so that a client that a busy machine holds up for some .05 s sees them queue all the same.
    with (
        streaming_server(slow_s=0.03) as (first_address, engine),
        streaming_server(slow_s=0.03) as (second_address, _),
    ):
        command = (f"a=vllm://{first_address}", f"b=vllm://{second_address}", prompts)
        done = ab(*command, "--until-saturated")
        assert done.returncode == 0, done.stderr
        request_count = len(engine.requests)
        refused = ab(*command, "--until-saturated", "--resume")
    summary = read_object(run_of(prompts) / "summary.json")
    loads = [load["load"] for load in summary["loads"]]
    # Each load is seven times what a server can answer or more; a busy machine may need more than one to show it.
    assert [*loads, *summary["left_out"]] == [f"rate {rate}" for rate in (80, 100, 120, 140, 160)]
    assert summary["left_out"]
    assert all(loads[-1] in summary["saturated"][server] for server in "ab")
    assert not all(loads[:-1] and loads[-2] in summary["saturated"][server] for server in "ab")
    assert request_count == 1 + 54 * len(loads)
    assert (summary["partial"], summary["planned"], summary["finished"]) == (
        False,
        *[108 * len(loads)] * 2,
    )
    report = (run_of(prompts) / "report.md").read_text()
    assert f"not run for that: {', '.join(summary['left_out'])}." in report
    assert "holds no unfinished run" in error_line(refused)


def test_a_sweep_goes_on_without_the_option(prompts: Path) -> None:
    with (
        streaming_server(slow_s=0.01) as (first_address, _),
        streaming_server(slow_s=0.01) as (second_address, _),
    ):
        done = ab(f"a=vllm://{first_address}", f"b=vllm://{second_address}", prompts, "--limit", 6)
    assert done.returncode == 0, done.stderr
    summary = read_object(run_of(prompts) / "summary.json")
    assert [load["load"] for load in summary["loads"]] == [
        f"rate {rate}" for rate in (80, 100, 120, 140, 160)
    ]
    assert summary["left_out"] == []


@pytest.mark.parametrize("loads", [("--concurrency", "4,1"), ("--rate", "2"), ()])
def test_loads_must_rise(loads: tuple[str, ...], tmp_path: Path) -> None:
    done = skit_here(
        "ab", "a=vllm://h:1", "b=vllm://h:2", *loads, "--until-saturated", "--out", tmp_path / "out"
    )
    assert "--until-saturated needs several loads from low to high" in error_line(done)
    assert not (tmp_path / "out").exists()

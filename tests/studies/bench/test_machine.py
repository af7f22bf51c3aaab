"""What a benchmark says of the machine that it ran on, and what it does for methods that ask how fast it is."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import BUSY, READINGS, TinyPair, read_object, skit_here, write_rows

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.profilers.loading import find_measured, read
from specbench_kit.reports.sections import machine
from specbench_kit.runs.document import RunDescription
from specbench_kit.studies.bench import measured_environment
from specbench_kit.studies.bench.beside_lanes import Control

pytestmark = pytest.mark.usefixtures("home")

FAST = ("--max-new-tokens", 8, "--json")
WARNING = "DISTURBED MACHINE: autoregressive had a processor for 4% of its time (at least 90%); the host withheld 3.1% "


def warnings(*runs: JsonObject) -> list[str]:
    return machine.warnings(*map(RunDescription.read, runs))


def cautions(*runs: JsonObject) -> list[str]:
    return machine.cautions(*map(RunDescription.read, runs))


Bench = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bench(tiny: TinyPair, tmp_path: Path) -> Bench:
    prompts = write_rows(
        tmp_path / "ask.jsonl", {"id": "a", "prompt": "Who?"}, {"id": "b", "prompt": "Where?"}
    )

    def run(*options: object) -> subprocess.CompletedProcess[str]:
        done = skit_here(
            "bench", "--dataset", prompts, *tiny.options, *FAST, "--out", tmp_path / "out", *options
        )
        assert done.returncode == 0, done.stderr
        return done

    return run


def runs(done: subprocess.CompletedProcess[str]) -> list[JsonObject]:
    """The content of every run.json, in order."""
    return [read_object(Path(path) / "run.json") for path in json.loads(done.stdout)["run_dirs"]]


def test_every_lane_is_watched_with_load_and_steal(bench: Bench) -> None:
    (run,) = runs(bench("--method", "fixed-k", "--repeats", 2))
    (block,) = run["machine"]
    assert set(block["lanes"]) == {"autoregressive", "fixed-k"}
    for lane in block["lanes"].values():
        assert 0 < lane["thread_s"] <= lane["process_s"] * 1.05
        assert lane["wall_s"] > 0
    assert (
        block["lanes"]["autoregressive"]["steps"] >= 20
    )  # 2 requests of 7 steps after the prompt's, twice
    assert (block["threads"], block["device"], block["injected"]) == (
        1,
        "cpu",
        "quiet_machine.json",
    )


def test_a_disturbed_run_says_so_before_its_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READINGS, str(BUSY))
    done = bench("--method", "fixed-k")
    text = " ".join(done.stderr.split())
    assert text.index(WARNING) < text.index("tok/s")
    assert (
        "INJECTED READINGS: the readings of the machine come from busy_machine.json, not from the machine"
        in text
    )
    document = json.loads(done.stdout)
    assert document["warnings"][0].startswith(WARNING)
    (path,) = document["run_dirs"]
    _, first, headline, *_ = (Path(path) / "report.md").read_text().split("\n\n")
    assert WARNING in first
    assert "the speed of autoregressive decoding" in headline


def test_modelled_time_reads_no_clock(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READINGS, str(BUSY))
    done = bench("--method", "fixed-k", "--deployment", "wan")
    assert "machine" not in runs(done)[0]
    assert "DISTURBED" not in done.stderr


def test_a_slow_machine_gets_its_whole_short_profile(
    bench: Bench, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_environment, "AIM_S", 1e-6)
    done = bench("--method", "adaspec")
    assert "a short one was measured" in done.stderr
    profiles = {profile.role: profile for profile in map(read, (home / "profiles").glob("*.toml"))}
    counts = {
        role: profile.fit["train"]["count"] + profile.fit["test"]["count"]
        for role, profile in profiles.items()
    }
    assert counts == {"drafter": 30, "verifier": 90}
    assert all(profile.fit["cut_off"] == 0 for profile in profiles.values())


def test_a_short_profile_of_a_disturbed_machine_serves_this_run_and_its_resumption_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READINGS, str(BUSY))
    done = bench("--method", "adaspec", "--method", "sglang-throughput")
    notices = " ".join(done.stderr.split())
    # Both methods plan with the latencies, which are measured and told of once.
    assert (
        notices.count("and kept for --resume alone, since the drafter had a processor for 4%") == 1
    )
    run, _ = runs(done)
    assert [list(block["lanes"]) for block in run["machine"]] == [
        ["the drafter"],
        ["the verifier"],
        ["autoregressive", "adaspec"],
    ]
    weights = run["models"]["draft"]["hash"]
    assert find_measured(weights, "drafter", "cpu", form="context") is None
    profile = find_measured(weights, "drafter", "cpu", form="context", disturbed=True)
    assert profile is not None
    assert profile.fit["disturbed"][0].startswith("the drafter had a processor for 4%")


MANY = [{"id": str(number), "prompt": f"What is {number}?"} for number in range(8)]


def test_plain_decoding_takes_a_second_turn_beside_itself(bench: Bench, tmp_path: Path) -> None:
    prompts = write_rows(tmp_path / "many.jsonl", *MANY)
    _, run = runs(bench("--method", "fixed-k", "--dataset", prompts))
    control = run["machine"][0]["control"]
    assert control["prompts"] == len(MANY)
    low, high = control["interval"]
    assert 0 < low < control["speed"] < high
    assert set(run["machine"][0]["lanes"]) == {"autoregressive", "fixed-k"}, (
        "the control is no method of the run"
    )


@pytest.mark.parametrize(
    "options", [["--deployment", "wan"], ["--no-baseline"]], ids=["modelled", "no baseline"]
)
def test_nothing_is_decoded_twice_where_nothing_is_measured_against_it(
    bench: Bench, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = list[str]()
    add = Control.lane

    def watched(control: Control, *lane: object) -> Any:
        decoded.append("again")
        return add(control, *lane)

    monkeypatch.setattr(Control, "lane", watched)
    bench("--method", "fixed-k", *options)
    assert decoded == []
    bench("--method", "fixed-k")
    assert decoded == ["again"]


BLOCK: dict[str, Any] = {
    "load": [3.0, 4.0],
    "cpus": 2,
    "steal": 0.05,
    "lanes": {
        "autoregressive": {"cpu_share": 0.7, "spread": 2.5},
        "fixed-k": {"cpu_share": 0.75, "spread": 1.5},
    },
    "control": {"speed": 1.01, "interval": [0.96, 1.06], "prompts": 8},
}


def test_ratios_of_methods_that_took_turns_stand_on_a_busy_machine() -> None:
    run = {"machine": [BLOCK]}
    assert warnings(run) == []
    (line,) = cautions(run)
    assert line.startswith("BUSY MACHINE: autoregressive had a processor for 70% of its time")
    assert line.endswith(
        "are not affected: autoregressive decoding beside itself came out at 1.01x (0.960–1.06)."
    )


def test_several_runs_on_a_busy_machine_are_one_line_with_the_worst_readings() -> None:
    slower = {
        **BLOCK,
        "load": [5.0, 2.0],
        "lanes": {name: {"cpu_share": 0.6, "spread": 1.0} for name in ("a", "b")},
    }
    quiet = {
        **BLOCK,
        "steal": 0.0,
        "lanes": {name: {"cpu_share": 1.0, "spread": 1.0} for name in ("a", "b")},
    }
    runs = [{"machine": [block]} for block in (BLOCK, slower, quiet)]
    (line,) = cautions(*runs)
    assert line.startswith("BUSY MACHINE: a had a processor for 60% of its time")
    assert "autoregressive took up to 2.5 times as long" in line
    assert "load average 5.0 at the start" in line
    assert warnings(*runs) == []
    starved = {"machine": [{**BLOCK, "control": None}]}
    assert [line.split(":")[0] for line in warnings(*runs, starved, starved)] == [
        "DISTURBED MACHINE"
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"control": {"speed": 1.2, "interval": [1.1, 1.3], "prompts": 8}},
        {"control": {"speed": 1.0, "interval": [0.7, 1.4], "prompts": 8}},
        {"control": None},
        {"steal": 0.3},
        {"lanes": {**BLOCK["lanes"], "fixed-k": {"cpu_share": 0.95, "spread": 1.5}}},
    ],
    ids=[
        "control is not 1",
        "control says nothing",
        "no control",
        "host took much",
        "one was starved alone",
    ],
)
def test_ratios_that_cannot_be_trusted_void_the_times(changes: dict[str, Any]) -> None:
    run = {"machine": [BLOCK | changes]}
    assert cautions(run) == []
    (line,) = warnings(run)
    assert line.startswith("DISTURBED MACHINE")
    assert line.endswith("THE TIMES BELOW ARE NOT VALID: run it again.")


def test_a_part_without_a_control_voids_the_times_of_the_whole() -> None:
    assert warnings({"machine": [BLOCK, BLOCK | {"control": None}]})
    far = BLOCK | {"control": {"speed": 1.02, "interval": [0.99, 1.05], "prompts": 8}}
    assert "at 1.02x" in cautions({"machine": [BLOCK, far]})[0]


def test_a_quiet_machine_needs_no_words() -> None:
    quiet = BLOCK | {"steal": 0.0, "lanes": {"autoregressive": {"cpu_share": 0.99, "spread": 1.2}}}
    assert warnings({"machine": [quiet]}) == cautions({"machine": [quiet]}) == []

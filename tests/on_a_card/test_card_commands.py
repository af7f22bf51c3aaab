"""Every command that takes `--device`, on an emulated card."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import TinyPair, read_object, read_rows, skit_here
from emulated_card import Machine
from nightly import nightly_except

Command = Callable[..., dict[str, Any]]
METHODS = (
    "fixed-k:k=3",
    "threshold",
    "specinfer",
    "suffix",
    "fixed-k:drafter=first-of.first=prompt-lookup+second=model",
)


DRAWN = "--batch-size 2 --temperature 0.7"


def methods(*specs: str) -> list[str]:
    return [part for spec in specs for part in ("--method", spec)]


def assert_lossless(document: dict[str, Any]) -> None:
    for folder in map(Path, document["run_dirs"]):
        lossless = read_object(folder / "summary.json").get("lossless") or {}
        assert lossless.get("errors", 0) == 0, folder.name


@pytest.mark.parametrize("options", nightly_except([DRAWN], ["--batch-size 1", DRAWN]))
def test_bench(
    options: str, command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", tmp_path]
    document = command("bench", *tiny.options, *shared, *methods(*METHODS), *options.split())
    assert_lossless(document)
    run = read_object(Path(document["run_dirs"][0]) / "run.json")
    assert run["hardware"]["gpu"] == "Emulated card"
    report = (Path(document["run_dirs"][0]) / "report.md").read_text()
    assert re.search(
        r"\| warm-up \| \d+ rounds and [\d.]+ m?s in which a GPU's graphs were captured, excluded",
        report,
    )


@pytest.mark.slow
@pytest.mark.nightly  # test_bench above is the command, test_card_decoding.py decodes with every method
@pytest.mark.parametrize(
    "options", ["--batch-size 1", "--batch-size 3", "--batch-size 2 --temperature 0.7"]
)
def test_bench_with_all_methods(
    options: str, command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", tmp_path]
    document = command("bench", *tiny.options, *shared, "--method", "all", *options.split())
    assert len(document["run_dirs"]) > 20
    assert_lossless(document)


PLACES = ["cuda:0+cuda:1", "cuda:1+cpu", "cpu+cuda"]


@pytest.mark.parametrize("devices", nightly_except(PLACES[:1], PLACES))
def test_a_draft_model_on_another_device(
    devices: str, machine: Machine, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--dtype", "float32", "--out", tmp_path]
    specs = methods("fixed-k:k=3", "specinfer")
    done = skit_here("bench", *tiny.options, *shared, *specs, "--device", devices, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert_lossless(document)
    config = read_object(Path(document["run_dirs"][0]) / "run.json")["config"]
    expected = tuple("cuda:0" if name == "cuda" else name for name in devices.split("+"))
    assert (config["device"], config["draft_device"]) == expected
    assert [card.peak_bytes > 0 for card in machine.cards] == [
        f"cuda:{n}" in expected for n in range(2)
    ]


@pytest.mark.nightly  # three benchmarks; placement on a second card is tried in test_card_decoding.py
@pytest.mark.slow
def test_a_number_is_no_other_card_than_none(
    machine: Machine, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    outputs = {}
    for device in ("cuda", "cuda:0", "cuda:1"):
        machine.cards[0].peak_bytes = machine.cards[1].peak_bytes = 0
        options = [
            "--dataset",
            prompts,
            "--max-new-tokens",
            8,
            "--method",
            "fixed-k",
            "--device",
            device,
        ]
        done = skit_here("bench", *tiny.options, *options, "--out", tmp_path / device)
        assert done.returncode == 0, done.stderr
        (folder,) = (tmp_path / device).glob("*-fixed-k-*")
        outputs[device] = [row["output_ids"] for row in read_rows(folder / "requests.jsonl")]
        used = [card.peak_bytes > 0 for card in machine.cards]
        assert used == ([False, True] if device == "cuda:1" else [True, False])
    assert outputs["cuda"] == outputs["cuda:0"] == outputs["cuda:1"]


def test_record_replay_and_tune(
    machine: Machine, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.parquet"
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", trace, "--device", "cuda"]
    recorded = skit_here("record", *tiny.options, *shared, "--max-draft", 3)
    assert recorded.returncode == 0, recorded.stderr
    assert machine.counts.launches > 0
    options = ["--method", "fixed-k", "--replay", trace, "--deployment", "wan"]
    tuned = skit_here("tune", *options, "--out", tmp_path / "tuned.json")
    assert tuned.returncode == 0, tuned.stderr
    assert read_object(tmp_path / "tuned.json")["methods"].keys() == {"fixed-k"}


def test_measure_ranks(command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path) -> None:
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--save-to", tmp_path / "ranks"]
    assert command("measure-ranks", *tiny.options, *shared)["count"] == 16


@pytest.mark.slow
def test_batch_sizes(command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path) -> None:
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", tmp_path]
    command("batch-sizes", *tiny.options, *shared, "--method", "fixed-k", "--sizes", "1,2")


@pytest.mark.nightly  # records a pair on the card and replays it on the CPU
def test_sweep(command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path) -> None:
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", tmp_path]
    command(
        "sweep",
        *tiny.options,
        *shared,
        "--method",
        "fixed-k",
        "--deployment",
        "wan",
        "--set",
        "link.rtt_s=0.1,0.2",
    )


@pytest.mark.nightly  # a minute each; what times forwards on a card is tried in test_card_clock.py
@pytest.mark.parametrize("name", ["profile-verifier", "profile-drafter"])
def test_profiles(name: str, command: Command, short: TinyPair, tmp_path: Path) -> None:
    models = ["--target", short.target] if name == "profile-verifier" else short.options
    document = command(name, *models, "--runs", 1, "--out", tmp_path)
    assert document["summary"]


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_a_deployment_over_a_link(
    temperature: float, command: Command, tiny: TinyPair, prompts: Path, tmp_path: Path
) -> None:
    shared = ["--dataset", prompts, "--max-new-tokens", 8, "--out", tmp_path, "--deployment", "wan"]
    specs = methods("specedge", "round-trips", "layer-split")
    assert_lossless(command("bench", *tiny.options, *shared, *specs, "--temperature", temperature))

"""The first minutes on a new card, on an emulated one."""

import csv
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import TinyPair
from emulated_card import emulated_cards

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
gpu_check: Any = importlib.import_module("gpu_check")

SHAPE = """
family = "qwen3"
hidden_size = 32
layers = 2
heads = 4
kv_heads = 2
head_dim = 8
intermediate_size = 48
vocabulary = 256
tied = true
max_positions = 512
"""
MIB = 2**20


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def check(tiny: TinyPair, folder: Path, *options: object) -> Path:
    """Run the check on a card whose memory a test can fill; return the folder of its results."""
    shape = folder / "tiny.toml"
    shape.write_text(SHAPE)
    small = ["--shape", shape, "--context", 16, "--prompts", 2, "--tokens", 8, "--here"]
    out = folder / "out"
    with emulated_cards(1, memory_bytes=512 * MIB):
        code = gpu_check.main([*tiny.options, *small, "--out", out, *options])
    assert code == 0, (out / "errors.txt").read_text()
    return out


@pytest.mark.slow
@pytest.mark.nightly  # two minutes; its sections are benchmarks and forwards that other tests try on the card
def test_a_check_runs_whole(tiny: TinyPair, tmp_path: Path) -> None:
    options = [option for method in ("fixed-k:k=3", "specinfer") for option in ("--method", method)]
    out = check(tiny, tmp_path, *options, "--batch-sizes", "1,2")
    names = {path.name for path in out.iterdir()}
    assert names == {
        "report.md",
        "environment.json",
        "lossless.csv",
        "counts.csv",
        "curves.csv",
        "memory.json",
        "executors.csv",
    }
    verdicts = table(out / "lossless.csv")
    conditions = {
        (row["executor"], int(row["batch_size"]), float(row["temperature"])) for row in verdicts
    }
    assert conditions == set(gpu_check.CONDITIONS)
    assert not [row for row in verdicts if row["verdict"] == "WRONG"]
    invariant = [row for row in verdicts if row["executor"] == gpu_check.INVARIANT]
    assert all(row["identical"] == row["compared"] for row in invariant)
    curves = table(out / "curves.csv")
    assert {(row["kind"], row["requests"], row["tokens"]) for row in curves} == {
        (kind, batch, str(count))
        for kind, counts in (
            ("verify", gpu_check.NEW_TOKENS),
            ("draft", gpu_check.STEPS),
            ("invariant", [1]),
        )
        for batch in ("1", "2")
        for count in counts
    }
    memory = json.loads((out / "memory.json").read_text())
    assert memory["out_of_memory_survived"] is True
    assert memory["tiny"]["peak_used_bytes"] > memory["tiny"]["weights_predicted_bytes"]
    replays = {row["method"] for row in table(out / "counts.csv") if row["call"] == "graph replays"}
    assert replays == set(gpu_check.COUNTED)


def test_a_section_that_fails_costs_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[str]:
        raise RuntimeError("an illegal memory access was encountered")

    sections = {"curves": (fail, 1.0), "environment": gpu_check.SECTIONS["environment"]}
    monkeypatch.setattr(gpu_check, "SECTIONS", sections)
    with emulated_cards(1):
        assert gpu_check.main(["--here", "--out", str(tmp_path)]) == 1
    assert "an illegal memory access" in (tmp_path / "errors.txt").read_text()
    assert json.loads((tmp_path / "environment.json").read_text())["card"] == "Emulated card"


def test_without_a_card_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cuda:0", "--out", str(tmp_path / "out")]) == 2
    assert "device 'cuda:0' is not there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

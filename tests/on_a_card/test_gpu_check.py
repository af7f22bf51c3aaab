"""The first minutes on a new card, on an emulated one."""

import csv
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TinyPair
from emulated_card import emulated_cards
from torch import Tensor

from specbench_kit.models.executors import cuda_graph
from specbench_kit.models.executors.kernels.by_torch import TORCH
from specbench_kit.models.executors.kernels.choice import Choice
from specbench_kit.models.executors.kernels.operators import FUSED

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


def give(monkeypatch: pytest.MonkeyPatch, choice: Choice) -> None:
    """Give all executors these kernels, but the one that has torch's operations alone."""
    monkeypatch.setattr(cuda_graph.CudaGraphExecutor, "_choose", lambda *_: choice)


@pytest.fixture
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the emulated card have the operators that are Triton kernels on a real one."""
    monkeypatch.setattr(gpu_check, "missing_for_kernels", lambda: "")
    give(monkeypatch, Choice(FUSED))


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


@pytest.mark.usefixtures("_with_triton")
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
        "kernels.csv",
        "memory.json",
        "executors.csv",
    }
    verdicts = table(out / "lossless.csv")
    kernels = table(out / "kernels.csv")
    assert len(kernels) == 2 * len(gpu_check.COMPARED)
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
    finished = {name: (out / name).read_bytes() for name in gpu_check.TABLES}
    check(tiny, tmp_path, *options, "--batch-sizes", "1,2", "--again")
    assert {name: (out / name).read_bytes() for name in gpu_check.TABLES} == finished


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


def only_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, Path]:
    """Run the section that compares kernels; return the exit code and the folder of its results."""
    sections = {"kernels": gpu_check.SECTIONS["kernels"]}
    monkeypatch.setattr(gpu_check, "SECTIONS", sections)
    shape, out = folder / "tiny.toml", folder / "out"
    shape.write_text(SHAPE)
    small = ["--shape", str(shape), "--context", "16", "--batch-sizes", "1,2", "--here"]
    with emulated_cards(1, memory_bytes=512 * MIB):
        return gpu_check.main([*small, "--out", str(out), *options]), out


@pytest.mark.usefixtures("_with_triton")
def test_kernels_are_compared_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = only_kernels(tmp_path, monkeypatch)
    assert code == 0, (out / "errors.txt").read_text()
    rows = table(out / "kernels.csv")
    shapes = [(int(row["requests"]), int(row["tokens"]), row["kind"]) for row in rows]
    assert shapes == [(batch, *compared) for batch in (1, 2) for compared in gpu_check.COMPARED]
    for row in rows:
        assert float(row["torch_ms"]) > 0 < float(row["triton_ms"])
        assert (float(row["difference"]), float(row["same_tokens"])) == (0, 1)
    assert "fused kernels take" in (out / "report.md").read_text()


@pytest.mark.usefixtures("_with_triton")
@pytest.mark.parametrize("factor", [1.2, float("nan")])
def test_kernels_whose_outputs_differ_fail_loudly(
    factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(FUSED, gate=lambda gates: FUSED.gate(gates) * factor)
    give(monkeypatch, Choice(wrong))
    code, out = only_kernels(tmp_path, monkeypatch)
    assert code == 1
    assert "OUTPUTS DIFFER: tiny: a kernel's results are" in (out / "errors.txt").read_text()
    assert len(table(out / "kernels.csv")) == 2 * len(gpu_check.COMPARED), "all are still there"


@pytest.mark.usefixtures("_with_triton")
def test_logits_that_differ_fail_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the kernels agree where each is tried alone."""
    monkeypatch.setattr(gpu_check, "_roundings_apart", lambda _: 0.0)

    def add_norm(*given: Any) -> tuple[Tensor, Tensor]:
        total, normed = FUSED.add_norm(*given)
        return total, normed.roll(1, -1)

    give(monkeypatch, Choice(replace(FUSED, add_norm=add_norm)))
    code, out = only_kernels(tmp_path, monkeypatch)
    assert code == 1
    errors = (out / "errors.txt").read_text()
    assert "OUTPUTS DIFFER: tiny, 1 requests of 1 tokens (chain): logits differ by" in errors
    assert "after 1 of 1 tokens by more than that; most of all in request 0, token 0" in errors


def test_logits_are_compared_by_how_much_and_where_they_differ() -> None:
    expected = torch.ones(6, 10)
    computed = expected.clone()
    computed[4, 7] = 3.0
    computed[1, 2] = 1.1
    found = gpu_check._difference(expected, computed, 3)
    assert float(found["difference"]) == pytest.approx(sqrt((2**2 + 0.1**2) / 60), abs=1e-6)
    assert (found["at_request"], found["at_token"], found["at_entry"]) == (1, 1, 7)
    assert (float(found["largest"]), found["tokens_beyond"]) == (2.0, 1)
    assert (found["logit_by_torch"], found["logit_by_triton"]) == ("1", "3")
    computed[5, 9] = float("nan")
    found = gpu_check._difference(expected, computed, 3)
    assert (found["at_request"], found["at_token"], found["at_entry"]) == (1, 2, 9)
    assert (found["difference"], found["tokens_beyond"]) == ("nan", 2)


@pytest.mark.usefixtures("_with_triton")
def test_a_section_that_is_started_again_computes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out = only_kernels(tmp_path, monkeypatch)
    assert code == 0
    path = out / "kernels.csv"
    first = table(path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for number, line in enumerate(lines) if number not in (3, 8)))
    compared = []
    in_turns = gpu_check._in_turns

    def counted(*given: Any) -> Iterator[dict[str, object]]:
        for row in in_turns(*given):
            compared.append(_shape_of(row))
            yield row

    monkeypatch.setattr(gpu_check, "_in_turns", counted)
    assert only_kernels(tmp_path, monkeypatch, "--again")[0] == 0
    assert compared == [_shape_of(first[row]) for row in (2, 7)]
    kept = {_shape_of(row): row for row in table(path)}
    assert len(kept) == len(first)
    for number, row in enumerate(first):
        if number not in (2, 7):
            assert kept[_shape_of(row)] == row, "and nothing is measured twice"
    compared.clear()
    assert only_kernels(tmp_path, monkeypatch, "--again")[0] == 0
    assert not compared
    assert "fused kernels take" in (out / "report.md").read_text()
    assert only_kernels(tmp_path, monkeypatch)[0] == 0
    assert len(compared) == len(first), "a check begins anew otherwise"


def _shape_of(row: Mapping[str, object]) -> tuple[int, int, str]:
    return int(str(row["requests"])), int(str(row["tokens"])), str(row["kind"])


@pytest.mark.usefixtures("_with_triton")
def test_logits_that_differed_are_still_an_error_when_a_section_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert only_kernels(tmp_path, monkeypatch)[0] == 0
    text = (out / "kernels.csv").read_text().splitlines()
    column = text[0].split(",").index("difference")
    fields = text[1].split(",")
    fields[column] = "0.3"
    (out / "kernels.csv").write_text("\n".join([text[0], ",".join(fields), *text[2:]]) + "\n")
    assert only_kernels(tmp_path, monkeypatch, "--again")[0] == 1
    assert "logits differ by 0.3 of their size" in (out / "errors.txt").read_text()


@pytest.mark.usefixtures("_with_triton")
def test_kernels_that_a_card_left_out_fail_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, Choice(TORCH, "Triton's kernels fail: no compiler"))
    code, out = only_kernels(tmp_path, monkeypatch)
    assert code == 1
    assert "has no fused kernels: torch: Triton's kernels fail" in (out / "errors.txt").read_text()


def test_without_triton_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "missing_for_kernels", lambda: "Triton is not installed")
    code, out = only_kernels(tmp_path, monkeypatch)
    assert code == 0
    assert "left out: Triton is not installed" in (out / "report.md").read_text()


def test_without_a_card_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cuda:0", "--out", str(tmp_path / "out")]) == 2
    assert "device 'cuda:0' is not there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

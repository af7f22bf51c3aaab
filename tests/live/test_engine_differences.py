"""Outputs of an engine that differ from its plain decoding: what is judged, by what, and that it is always reported."""

from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import engine_server as stand_in
import pytest
from command_line import TinyPair, error_line, read_object, skit_here, write_rows
from engine_server import Faults, engine_server
from nightly import nightly_except
from transformers import AutoModelForCausalLM, AutoTokenizer

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.engines.base import engines

PROMPTS = 3
UNKNOWN = "no log-probabilities"


@dataclass(frozen=True)
class Bench:
    """A benchmark at a tiny engine in this process."""

    options: tuple[object, ...]
    out: Path

    def run(self, base: str, engine: str, *further: object) -> CompletedProcess[str]:
        return skit_here("bench", "--server", base.replace("http", engine), *self.options, *further)

    def file(self, name: str) -> JsonObject:
        (folder,) = self.out.glob("*-fixed-k-*")
        return read_object(folder / name)


@pytest.fixture
def bench(tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    tokenizer = AutoTokenizer.from_pretrained(tiny.target)
    monkeypatch.setattr(stand_in, "TARGET", AutoModelForCausalLM.from_pretrained(tiny.target))

    def tokenize(body: JsonObject) -> JsonObject:
        text = body.get("prompt") or body["content"]
        return {"tokens": tokenizer.encode(text, add_special_tokens=False)}

    monkeypatch.setitem(stand_in.ROUTES, "/tokenize", tokenize)
    prompts = write_rows(
        tmp_path / "prompts.jsonl", *({"id": f"{n}", "prompt": f"Say {n}."} for n in range(PROMPTS))
    )
    models = ("--draft", tiny.draft, "--target", tiny.target, "--method", "fixed-k:k=3")
    return Bench(
        (*models, "--dataset", prompts, "--max-new-tokens", 32, "--out", tmp_path / "out"),
        tmp_path / "out",
    )


def differing(
    bench: Bench, engine: str, monkeypatch: pytest.MonkeyPatch, faults: Faults
) -> JsonObject:
    """The part of the summary on a run whose outputs differ; it has a report."""
    monkeypatch.setattr(stand_in, "FAULTS", faults)
    with engine_server() as base:
        done = bench.run(base, engine)
    assert done.returncode == 0, done.stderr
    summary = bench.file("summary.json")
    assert summary["partial"] is False
    checks: JsonObject = summary["lossless"]
    assert checks["identical"] < checks["compared"] == PROMPTS
    (report,) = bench.out.glob("*-fixed-k-*/report.md")
    assert "Losslessness" in report.read_text(encoding="utf-8")
    return checks


@pytest.mark.parametrize("engine", nightly_except(["llama-cpp"], engines.all()))
def test_differences_within_the_rounding_that_an_engine_shows_are_ties(
    bench: Bench, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = differing(bench, engine, monkeypatch, Faults(rounding=0.02))
    assert checks["errors"] == 0, checks["divergences"]
    if engine == "completions":
        assert all(UNKNOWN in case["reason"] for case in checks["divergences"])
        return
    assert checks["unjudged"] == (0 if engines.get(engine).has_shapes else checks["unjudged"])
    for case in checks["divergences"]:
        assert case["verdict"] == ("tie" if case["margin"] <= 2 * case["noise"] else "unjudged")


@pytest.mark.parametrize("engine", nightly_except(["completions"], engines.all()))
def test_differences_far_above_the_rounding_are_errors(
    bench: Bench, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = differing(bench, engine, monkeypatch, Faults(rounding=1e-4, wrong=True))
    expected = "unjudged" if engine == "completions" else "error"
    assert {case["verdict"] for case in checks["divergences"]} == {expected}
    assert checks["lossless"] is (False if expected == "error" else None)


@pytest.mark.parametrize("engine", nightly_except(["sglang"], engines.all()))
def test_an_engine_that_is_gone_when_outputs_are_judged_leaves_a_complete_report(
    bench: Bench, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = differing(bench, engine, monkeypatch, Faults(rounding=0.02, gone=True))
    assert {case["verdict"] for case in checks["divergences"]} == {"unjudged"}
    reasons = {case["reason"] for case in checks["divergences"]}
    assert all("gave no answer" in reason or UNKNOWN in reason for reason in reasons)


def test_a_complete_run_is_reported_again_with_or_without_its_server(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stand_in, "FAULTS", Faults(rounding=0.02))
    with engine_server() as base:
        assert bench.run(base, "llama-cpp").returncode == 0
        before = bench.file("summary.json")["lossless"]
        (folder,) = bench.out.glob("*-fixed-k-*")
        (folder / "summary.json").unlink()
        again = bench.run(base, "llama-cpp", "--resume")
        assert again.returncode == 0, again.stderr
        after = bench.file("summary.json")["lossless"]
        assert [case["verdict"] for case in after["divergences"]] == [
            case["verdict"] for case in before["divergences"]
        ]
        (folder / "summary.json").unlink()
    resumed = bench.run(base, "llama-cpp", "--resume")
    assert "skit report shows what is finished, without the server" in error_line(resumed)
    report = skit_here("report", folder)
    assert report.returncode == 0, report.stderr
    assert "fixed-k" in report.stdout

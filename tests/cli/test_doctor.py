"""`skit doctor`: what is there, what is missing, and what it would bring."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from command_line import environment, skit
from emulated_card import emulated_cards
from plug_ins import of_the_kit

from specbench_kit.cli import doctor
from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import Method, methods
from specbench_kit.models.executors.kernels import choice
from specbench_kit.models.executors.native import NativeExecutor


def found(data_dir: Path | None = None) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine(data_dir)}


def test_what_every_command_needs_is_there(tmp_path: Path) -> None:
    done = skit("doctor", "--json", cwd=tmp_path, env=environment(SKIT_HOME=str(tmp_path)))
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stderr
    assert findings["pair bundled"]["state"] == "ok"
    assert findings["executor transformers"]["state"] == "ok"
    assert findings["your own"]["found"] == str(tmp_path)
    assert findings["hub"]["state"] == "missing"  # the tests forbid asking it
    assert findings["target auto"]["state"] == "missing"  # nothing was fetched to this folder
    assert all(finding["advice"] for finding in findings.values() if finding["state"] != "ok")


def test_datasets_at_hand_are_counted_and_the_others_named(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").touch()
    finding = found(tmp_path)["data folder"]
    assert (finding.state, finding.found.split(" datasets; ")[0].split()[-3]) == ("ok", "1")
    assert "gsm8k" not in finding.found.split("not ")[1].split(", ")
    assert found(tmp_path / "nowhere")["data folder"].state == "missing"


def test_each_check_is_announced_and_one_processor_is_no_plural(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_processors", lambda: 1)
    announced: list[str] = []
    findings = {finding.name: finding for finding in doctor.examine(None, announced.append)}
    assert announced == [*doctor.CHECKS, "data folder"]
    assert findings["device cpu"].found.endswith(", 1 processor")
    assert " for 1 processor" in findings["threads"].found
    assert "processors" not in findings["threads"].found


def test_installed_methods_are_told_and_one_that_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass(frozen=True)
    class Mine(Method):
        source = "test"

    entries = of_the_kit(methods)
    kit = len(entries)
    monkeypatch.setattr(methods, "_entries", entries | {"mine": Mine})
    monkeypatch.setattr(
        methods, "_broken", {"gone": "the installed method 'gone' cannot be imported: no module"}
    )
    findings = found()
    assert findings["methods"] == doctor.Finding(
        "methods", "ok", f"{kit} of the kit, and of other packages mine"
    )
    assert (findings["method gone"].state, findings["method gone"].found[-9:]) == (
        "missing",
        "no module",
    )


def test_a_missing_compiler_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeExecutor, "library", classmethod(lambda _: None))
    native = found()["executor native"]
    assert native.state == "missing"
    assert f"{native.found}; {native.advice}".count("C++ compiler") == 1


def test_what_several_executors_lack_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def findings(*_: object, **__: object) -> list[doctor.Finding]:
        states = (("a", "needs a card"), ("b", "needs a card"), ("c", "needs a disk"))
        return [
            doctor.Finding(f"executor {name}", "missing", text, "it is faster")
            for name, text in states
        ]

    monkeypatch.setattr(doctor, "examine", findings)
    doctor.doctor(every=True)  # what is missing is no failure
    _, *printed, _ = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert printed == [
        "executor a missing needs a card; it is faster",
        "executor b missing as executor a",
        "executor c missing needs a disk; it is faster",
    ]
    doctor.doctor()
    assert (
        "executors ok 0 of 3 run here; not a, b (needs a card); not c (needs a disk)"
        in words_of(capsys)
    )


def words_of(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_it_begins_with_what_will_run_and_ends_with_what_it_comes_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def has(*findings: tuple[str, doctor.State, str]) -> str:
        monkeypatch.setattr(
            doctor, "examine", lambda *_, **__: [doctor.Finding(*finding) for finding in findings]
        )
        doctor.doctor()
        return words_of(capsys)

    cpu: tuple[str, doctor.State, str] = ("device cpu", "ok", "AVX2, 2 processors")
    pair: tuple[str, doctor.State, str] = ("target auto", "ok", "smollm2: two models")
    whole = has(pair, cpu, ("executor native", "ok", "runs models"))
    assert whole.startswith("skit bench runs smollm2 here, on the processor (AVX2, 2 processors). ")
    assert whole.endswith(" Nothing is broken and nothing is missing.")
    slow = has(
        ("target auto", "missing", "toy"), cpu, ("executor native", "missing", "needs a compiler")
    )
    assert (
        "runs the toy pair here, on the processor (AVX2, 2 processors), with transformers alone"
        in slow
    )
    assert slow.endswith("Missing, and only needed for what their lines say: target auto.")
    assert has(pair, cpu, ("device cuda:0", "ok", "H100, 80 GiB")).startswith(
        "skit bench runs smollm2 here, on H100"
    )
    monkeypatch.setattr(doctor.sys, "exit", lambda code: print(f"exit {code}"))
    broken = has(("target auto", "broken", "a file is gone"), ("kit", "broken", "gone"))
    assert broken.startswith("skit bench does not run here: what is BROKEN below says why.")
    assert broken.endswith(
        "BROKEN: target auto, kit; nothing is sure to run before this is mended. exit 1"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_executor_for_a_gpu_is_not_ok_without_one() -> None:
    findings = found()
    for name in ("cuda-graph", "cuda-graph-head", "cuda-graph-torch", "cuda-invariant"):
        assert findings[f"executor {name}"].state == "missing"
        assert findings[f"executor {name}"].advice == "it runs with --device cuda"


@pytest.mark.parametrize(
    ("lack", "state", "words"),
    [("", "ok", "fused, by Triton"), ("Triton is not installed", "missing", "since Triton is not")],
)
def test_the_kernels_of_a_gpu_are_told(
    lack: str, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "missing", lambda: lack)
    with emulated_cards(1):
        kernels = found()["GPU kernels"]
    assert kernels.state == state
    assert words in kernels.found


def test_what_multiplies_gguf_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for products, words in (
        ("AVX2", "native-blocks, whose products this processor has: AVX2"),
        ("", "as bf16 weights"),
    ):
        monkeypatch.setattr(
            "specbench_kit.models.executors.library.byte_products", lambda name=products: name
        )
        assert words in found()["GGUF files"].found


def test_a_part_that_cannot_be_looked_at_is_broken_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> None:
        raise SkitError("no such pair")

    monkeypatch.setitem(doctor.CHECKS, "bundled pair", fails)
    findings = found()
    assert findings["bundled pair"] == doctor.Finding("bundled pair", "broken", "no such pair")
    assert "extra ray" in findings

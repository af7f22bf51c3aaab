"""`skit profile-verifier` and `skit profile-drafter` from the command line, with their reports."""

import json
import re
from pathlib import Path

import pytest
import torch
from command_line import (
    BUSY,
    READINGS,
    TinyPair,
    copy_model,
    error_line,
    read_object,
    skit_here,
)

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.profilers.loading import find_measured, load, read
from specbench_kit.profilers.measurement import Samples, TimingRig
from specbench_kit.profilers.roofline import judge
from specbench_kit.profilers.workload import Configuration, wide
from specbench_kit.reports.writing.formatting import seconds
from specbench_kit.runs.provenance import hash_model

pytestmark = pytest.mark.slow

FAST = ("--runs", "1", "--device", "cpu")
ABSENT = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


@pytest.fixture(scope="module")
def short(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """The tiny pair with a context so short that its profile takes seconds."""
    folder = tmp_path_factory.mktemp("short")
    target, draft = (
        copy_model(model, folder / model.name, max_position_embeddings=128)
        for model in (tiny.target, tiny.draft)
    )
    return TinyPair(target, draft)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take timings from what a device once did, per forward, new and attended token, in place of forwards."""

    def time(
        _: TimingRig, configuration: Configuration, *_run: int, **_options: int
    ) -> list[float]:
        rows = configuration.rows
        tokens, attended = (
            sum(new for new, _ in rows),
            sum(new * (cached + new / 2) for new, cached in rows),
        )
        return [1e-3 + 2e-5 * tokens + 1e-8 * attended]

    monkeypatch.setattr(TimingRig, "time", time)


@pytest.fixture(scope="module")
def measured(short: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> JsonObject:
    """A run that really measured, was interrupted once and gone on with."""
    folder = tmp_path_factory.mktemp("measured")
    options = [
        "profile-verifier",
        "--target",
        short.target,
        *FAST,
        "--out",
        folder,
        "--save-to",
        folder / "p.toml",
    ]
    with pytest.MonkeyPatch.context() as patched:
        interrupt_after(30, patched)
        broken = skit_here(*options)
    assert broken.returncode == 130, broken.stderr
    saved = {path: path.read_text() for path in folder.glob("*/*.csv")}
    other = skit_here(*options, "--resume", "--seed", 12)
    assert other.returncode == 2, other.stdout
    done = skit_here(*options, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    return {
        "broken": broken.stderr,
        "other": other.stderr,
        "kept": saved,
        "done": done,
        "folder": folder,
        **json.loads(done.stdout),
    }


def interrupt_after(count: int, patched: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C, as it were, when the timings of so many configurations are on disk."""
    add = Samples.add

    def add_and_interrupt(samples: Samples, *timings: object) -> None:
        add(samples, *timings)
        if len(samples.seconds) == count:
            raise KeyboardInterrupt

    patched.setattr(Samples, "add", add_and_interrupt)


def test_an_interruption_keeps_the_timings(measured: JsonObject) -> None:
    assert (
        "error: interrupted; the timings so far are kept, --resume continues with the others"
        in measured["broken"]
    )
    ((path, text),) = measured["kept"].items()
    assert [str(path.parent)] == measured["run_dirs"]
    complete = path.read_text()
    assert complete.startswith(text[: text.rfind("\n") + 1])
    assert len(complete) > len(text)


def test_a_resumption_with_another_setting_names_the_nearest_run(measured: JsonObject) -> None:
    (folder,) = measured["run_dirs"]
    said = " ".join(measured["other"].split())
    assert f"nearest is {Path(folder).name}, with seed 0, not 12: give its settings" in said


def test_a_measured_profile_carries_where_it_comes_from(
    measured: JsonObject, short: TinyPair
) -> None:
    profile = load(str(measured["folder"] / "p.toml"), model_hash=hash_model(short.target))
    assert (profile.source, profile.role, profile.form, profile.dtype) == (
        "measured",
        "verifier",
        "work",
        "float32",
    )
    assert profile.device == "cpu"
    assert profile.hardware
    assert profile.architecture is not None
    assert profile.fit["factor"] == 1 / 16
    assert judge(profile).kind != "unchecked"
    assert (measured["folder"] / str(profile.samples)).read_text().count("\n") > 100
    in_run = read(next(Path(measured["run_dirs"][0]).glob("*.toml")))
    assert in_run.coefficients == profile.coefficients


def test_the_run_folder_has_report_plots_and_numbers(measured: JsonObject) -> None:
    folder = Path(measured["run_dirs"][0])
    assert measured["summary"] == read_object(folder / "summary.json")
    profile = measured["summary"]["profiles"]["verifier"]
    assert profile["train"]["count"] + profile["test"]["count"] == 173 + len(wide())
    assert set(profile["regimes"]) == {"compute-bound", "memory-bound", "mixed", "batched"}
    report = (folder / "report.md").read_text()
    plots = set(re.findall(r"\(plots/(\w+\.png)\)", report))
    assert plots == {path.name for path in (folder / "plots").glob("*.png")}
    assert {Path(name).stem for name in plots} == {
        path.stem for path in (folder / "plots").glob("*.svg")
    }
    assert all((folder / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in plots)
    tables = re.findall(r"(?:^\|.*\n)+", report, re.MULTILINE)
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)
    for words in (
        "SHORTER REQUESTS",
        "cross-validation",
        "physical limit",
        "5-fold",
        "1,000 resamples",
    ):
        assert words in report


@pytest.mark.usefixtures("recorded")
def test_a_pair_gets_a_profile_of_either_model(short: TinyPair, home: Path, tmp_path: Path) -> None:
    done = skit_here("profile-drafter", *short.options, *FAST, "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert summary["policy"]["statistics_s"] > 0
    assert "predictor_s" not in summary["policy"]
    for role, model in (("drafter", short.draft), ("verifier", short.target)):
        profile = find_measured(hash_model(model), role, "cpu", form="context")
        assert profile is not None
        assert profile.latency().seconds([(1, 100)]) > 0
        assert {step["new"] for step in summary["profiles"][role]["steps"]} == (
            {1} if role == "drafter" else {1, 5, 9}
        )
    assert len(list((home / "profiles").glob("*.csv"))) == 2
    assert "What a stopping criterion costs" in next(tmp_path.glob("out/*/report.md")).read_text()


@pytest.mark.usefixtures("recorded")
def test_a_profile_of_a_disturbed_machine_is_marked_and_used_only_where_it_is_named(
    short: TinyPair, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READINGS, str(BUSY))
    command = ["profile-verifier", "--target", short.target, *FAST, "--out", tmp_path / "out"]
    done = skit_here(*command)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    (saved,) = folder.glob("*.toml")
    name, line = f"{saved.stem}-disturbed", " ".join(done.stdout.split())
    assert "DISTURBED MACHINE: the verifier had a proc" in line
    assert f"used only where it is named (--profile {name})" in line
    assert read(saved).latency().seconds([(1, 10)]) > 0
    assert load(name).disturbances[0].startswith("the verifier had a processor")
    assert find_measured(hash_model(short.target), "verifier", "cpu") is None
    entry = next(
        row
        for row in json.loads(skit_here("list", "profiles", "--json").stdout)
        if row["name"] == name
    )
    assert entry["summary"].startswith("DISTURBED MACHINE: the verifier had a processor")
    assert "DISTURBED MACHINE" in (folder / "report.md").read_text().split("\n\n")[1]
    assert len(read_object(folder / "run.json")["machine"]) == 1
    assert skit_here(*command, "--force").returncode == 0
    assert {path.name for path in (home / "profiles").glob("*.toml")} == {
        saved.name,
        f"{name}.toml",
    }
    forced = find_measured(hash_model(short.target), "verifier", "cpu")
    assert forced is not None
    assert (forced.name, bool(forced.disturbances)) == (saved.stem, True)


@ABSENT
@pytest.mark.usefixtures("home")
def test_a_small_model_on_an_absent_gpu_hints_at_a_larger_one(tmp_path: Path) -> None:
    done = skit_here(
        "profile-verifier", "--gpu", "a100", "--target", "bundled", "--out", tmp_path, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert "--target qwen3-32b, or another architecture card" in " ".join(done.stderr.split())


@ABSENT
@pytest.mark.usefixtures("home")
def test_an_absent_gpu_gives_a_derived_profile_and_says_so(tmp_path: Path) -> None:
    done = skit_here(
        "profile-verifier", "--gpu", "a100", "--target", "qwen3-32b", "--out", tmp_path, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert "FROM KERNELS, NOT MEASURED: this machine has no a100-80" in done.stderr
    assert "larger model" not in done.stderr
    profile = load("qwen3-32b-a100-80-bf16-verifier-silicon")
    assert (profile.source, profile.model_hash, profile.samples) == ("silicon", None, None)
    assert "not measured" in profile.reference
    assert 44e-3 < profile.latency().seconds([(1, 512)]) < 47e-3
    assert judge(profile).kind == "possible"
    assert "FROM KERNELS, NOT MEASURED" in next(tmp_path.glob("*/report.md")).read_text()
    listed = skit_here("list", "profiles", "--json")
    entry = next(row for row in json.loads(listed.stdout) if row["name"] == profile.name)
    assert (entry["source"], entry["verdict"]) == ("silicon", "possible")
    (time,) = (
        time
        for time in json.loads(done.stdout)["summary"]["profiles"]["verifier"]["times"]
        if (time["requests"], time["new"]) == (1, 1)
    )
    assert time["origin"] == "silicon"
    assert time["seconds"] == pytest.approx(profile.latency().seconds([(1, 512)]))
    assert time["range_s"][0] < time["seconds"] < time["range_s"][1] - 3e-3


@ABSENT
@pytest.mark.usefixtures("home")
def test_a_model_without_kernels_gets_the_law_of_the_data_sheet(tmp_path: Path) -> None:
    command = ("profile-verifier", "--target", "qwen3-32b", "--out", tmp_path)
    unknown, sheet = ("--gpu", "rtx3090"), ("--gpu", "a100", "--from", "data-sheet")
    for options, name in ((unknown, "rtx3090"), (sheet, "a100-80")):
        done = skit_here(*command, *options)
        assert done.returncode == 0, done.stderr
        assert "by the analytic model from its data sheet" in " ".join(done.stdout.split())
        profile = load(f"qwen3-32b-{name}-bf16-verifier-roofline")
        assert (profile.source, profile.form, judge(profile).kind) == (
            "roofline",
            "rounded",
            "possible",
        )
        ends = profile.range()
        assert ends is not None
        fast_s, slow_s = (end.seconds([(1, 512)]) for end in ends)
        assert fast_s < profile.latency().seconds([(1, 512)]) < slow_s - 3e-3


@ABSENT
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--gpu h100 --require-measured", "--require-measured: no NVIDIA H100 SXM 80 GB is here"),
        ("--gpu a10", "unknown GPU 'a10'"),
        ("--gpu rtx2080ti --dtype bfloat16", "rtx2080ti has no units for bfloat16"),
        ("--target qwen3-33b", "unknown architecture 'qwen3-33b'"),
        ("--target llama3.1-70b --gpu cpu", "llama3.1-70b in float32 takes"),
        ("--target nowhere.toml", "cannot read nowhere.toml"),
        ("--device cuda:7", "device 'cuda:7' is not there"),
        ("--resume", "holds no unfinished run"),
        (
            "--from silicon --software papers --gpu a100",
            "--software is for profiles of the analytic model",
        ),
        ("--from data-sheet --engine sglang --gpu a100", "--engine is for measured kernels"),
        (
            "--from silicon --gpu a100 --dtype float16",
            "--from silicon: kernels on a100-80 were measured in bfloat16",
        ),
        ("--gpu a100 --host-s -1", "--host-s must not be negative"),
        ("--gpu a100 --overlap 1.5", "--overlap must be between 0 and 1"),
        ("--host-s 0.001", "--host-s applies to a derived profile only: name its --gpu"),
    ],
)
def test_bad_input_is_one_line(options: str, problem: str, home: Path, tmp_path: Path) -> None:
    done = skit_here("profile-verifier", "--out", tmp_path / "out", *options.split())
    assert problem in error_line(done)
    assert not home.exists()
    assert not (tmp_path / "out").exists()


@ABSENT
@pytest.mark.usefixtures("home")
def test_a_model_that_the_device_cannot_hold_is_warned_of(tmp_path: Path) -> None:
    done = skit_here(
        "profile-verifier", "--gpu", "rtx4090", "--target", "qwen3-32b", "--out", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "TOO LARGE: the weights take 65.5 GB, and the device has 24 GB" in done.stdout


def test_profiles_are_listed_with_times_to_choose_by_and_impossible_ones_last() -> None:
    entries = json.loads(skit_here("list", "profiles", "--json").stdout)
    assert [entry["name"] for entry in entries[-2:]] == ["wisp-section-4.4", "wisp-table-12"]
    assert {entry["verdict"] for entry in entries[-2:]} == {"impossible"}
    by_name = {entry["name"]: entry for entry in entries}
    verifier = by_name["qwen3-32b-a100-80-bf16-verifier-silicon"]
    latency = load(verifier["name"]).latency()
    assert (
        verifier["batch_s"]
        == latency.seconds([(5, 512)] * 16)
        > verifier["five_tokens_s"]
        > verifier["step_s"]
    )
    times = f"a step {seconds(verifier['step_s'])}, five tokens {seconds(verifier['five_tokens_s'])}, 16 requests"
    assert verifier["summary"].startswith(f"verifier of qwen3-32b on a100-80 in bfloat16; {times}")
    assert verifier["summary"].endswith("from measured kernels")
    assert "five_tokens_s" not in by_name["qwen3-0.6b-rtx4090-bf16-drafter-roofline"]
    assert "Qwen3-32B on an A100" in by_name["specedge-verify"]["summary"], (
        "a source that names no model says what of"
    )

"""`skit train-head` and `skit train-draft` from the command line, and benchmarks with what they made."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from command_line import (
    SKIT,
    TinyPair,
    environment,
    error_line,
    read_object,
    read_rows,
    skit,
    skit_here,
)
from safetensors import safe_open

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.models.heads.files import is_head

SMALL = [
    "--limit",
    "14",
    "--max-new-tokens",
    "12",
    "--epochs",
    "1",
    "--vocabulary",
    "200",
    "--batch-size",
    "6",
]


def acceptance_length(line: str) -> float:
    """Return the held-out figure of a line of training.log."""
    match = re.search(r"held out: ([0-9.]+) tokens", line)
    assert match, line
    return float(match[1])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def done(tiny: TinyPair, home: Path) -> subprocess.CompletedProcess[str]:
    return skit(
        "train-head",
        "--target",
        tiny.target,
        *SMALL,
        "--json",
        env=environment(SKIT_HOME=str(home)),
    )


def test_a_head_is_trained_and_described(
    done: subprocess.CompletedProcess[str], home: Path
) -> None:
    assert done.returncode == 0, done.stderr
    document: JsonObject = json.loads(done.stdout.splitlines()[-1])
    (folder,) = map(Path, document["run_dirs"])
    assert folder.is_relative_to(home)
    assert is_head(folder)
    summary = document["summary"]
    assert summary["vocabulary"] == 200
    assert len(summary["live"]["acceptance"]) == 5
    assert summary["live"]["acceptance_length"] >= 1
    record = json.loads((folder / "training.json").read_text())
    assert record["recipe"]["steps"] == 4
    assert 10 <= record["answers"] < 14, "some answers are held out"
    assert len(record["prompts"]) == 14
    assert "held out" in (folder / "training.log").read_text()
    assert json.loads((folder / "config.json").read_text())["draft_vocab_size"] == 200


def test_its_target_drafts_with_it_unasked_and_says_what_crosses_the_link(
    done: subprocess.CompletedProcess[str], tiny: TinyPair, home: Path, tmp_path: Path
) -> None:
    assert done.returncode == 0
    options = [
        "--method",
        "eagle:k=3",
        "--limit",
        "2",
        "--max-new-tokens",
        "8",
        "--out",
        str(tmp_path),
        "--json",
    ]
    over_the_link = ["--deployment", "wan", "--set", "link.state_bytes=1000"]
    ran = skit(
        "bench",
        "--target",
        tiny.target,
        *options,
        *over_the_link,
        env=environment(SKIT_HOME=str(home)),
    )
    assert ran.returncode == 0, ran.stderr
    told = " ".join(ran.stderr.split())
    assert re.search(
        r"drawn without \d+ prompts \(ids \S+, \S+, \S+, \.\.\.\) that the predictor or draft of eagle:k=3 "
        "learned from",
        told,
    )
    (folder,) = map(Path, json.loads(ran.stdout.splitlines()[-1])["run_dirs"])
    run = read_object(folder / "run.json")
    assert run["models"].keys() == {"target", "head:auto"}
    assert len(run["models"]["head:auto"]["hash"]) == 64
    (record,) = home.rglob("training.json")
    assert set(run["dataset"]["left_out"]) == set(read_object(record)["prompts"])
    layers = run["hidden_states"]["layers"]
    assert run["hidden_states"]["bytes_per_token"] == 1000 * len(layers)
    sent = read_object(folder / "summary.json")["hidden_states"]
    kept_tokens = [
        len(record["prompt_ids"]) - 1 + sum(1 + step["accepted"] for step in record["rounds"])
        for record in read_rows(folder / "requests.jsonl")
    ]
    assert sent["bytes"] == 1000 * len(layers) * sum(kept_tokens)
    assert (
        f"{len(layers)}.00 kB for every token that the target keeps"
        in (folder / "report.md").read_text()
    )


@pytest.mark.parametrize("stored", [(), ("--output-rows", "target", "--in-4-bits")])
def test_a_narrow_head_is_trained_on_the_same_answers_and_decodes_losslessly(
    stored: tuple[str, ...],
    done: subprocess.CompletedProcess[str],
    tiny: TinyPair,
    home: Path,
    tmp_path: Path,
) -> None:
    assert done.returncode == 0
    env = environment(SKIT_HOME=str(home))
    narrow = tmp_path / "narrow"
    trained = skit(
        "train-head",
        "--target",
        tiny.target,
        *SMALL,
        "--inner",
        32,
        *stored,
        "--save-to",
        narrow,
        "--json",
        env=env,
    )
    assert trained.returncode == 0, trained.stderr
    config = read_object(narrow / "config.json")
    assert config["transformer_layer_config"]["intermediate_size"] == 32
    assert config.get("output_rows_of_target", False) is bool(stored)
    with safe_open(narrow / "model.safetensors", framework="pt") as weights:
        kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert ("lm_head.weight" in kinds) is not bool(stored)
    assert kinds["fc.weight"] == ("U8" if stored else "BF16")
    option, another, found = (
        ("--output-rows", "trained", "target") if stored else ("--inner", 64, 32)
    )
    refused = skit(
        "train-head",
        "--target",
        tiny.target,
        *SMALL,
        option,
        another,
        "--resume",
        "--save-to",
        narrow,
        env=env,
    )
    assert error_line(refused) == (
        f"the draft in '{narrow}' has {option} {found}, not {another}: leave out {option} or train without --resume"
    )
    wide, small = (json.loads(run.stdout.splitlines()[-1])["summary"] for run in (done, trained))
    assert small["parameters"] < wide["parameters"]
    options = ("--limit", 2, "--max-new-tokens", 8, "--out", tmp_path / "runs")
    ran = skit(
        "bench", "--target", tiny.target, "--method", f"eagle:k=3,head={narrow}", *options, env=env
    )
    assert ran.returncode == 0, ran.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert read_object(run / "summary.json")["lossless"]["errors"] == 0


def test_a_run_beside_one_with_a_head_is_repeated_without_the_head(
    done: subprocess.CompletedProcess[str], tiny: TinyPair, home: Path, tmp_path: Path
) -> None:
    assert done.returncode == 0
    env = environment(SKIT_HOME=str(home))
    methods = ("--method", "eagle:k=3", "--method", "suffix")
    options = (
        "--limit",
        2,
        "--max-new-tokens",
        8,
        "--deployment",
        "wan",
        "--out",
        tmp_path / "first",
    )
    assert skit("bench", "--target", tiny.target, *methods, *options, env=env).returncode == 0
    (run,) = (tmp_path / "first").glob("*-suffix-*")
    assert "head:auto" in read_object(run / "run.json")["models"]
    again = skit("rerun", run, "--target", tiny.target, "--out", tmp_path / "second", env=env)
    assert again.returncode == 0, again.stderr
    assert "Repeated: 2 of 2 outputs are equal" in " ".join(again.stdout.split())


@pytest.fixture(scope="module")
def medusa_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own, since these heads learn from other states of the answers."""
    return tmp_path_factory.mktemp("medusa")


@pytest.fixture(scope="module")
def medusa(tiny: TinyPair, medusa_home: Path) -> Path:
    """Medusa heads of the command line, in the user's folder."""
    trained = skit(
        "train-head",
        "--kind",
        "medusa",
        "--target",
        tiny.target,
        *SMALL,
        env=environment(SKIT_HOME=str(medusa_home)),
    )
    assert trained.returncode == 0, trained.stderr
    (folder,) = (medusa_home / "medusa-heads").iterdir()
    return folder


def test_medusa_heads_are_trained_and_draft_for_their_target(
    medusa: Path, tiny: TinyPair, medusa_home: Path, tmp_path: Path
) -> None:
    record = json.loads((medusa / "training.json").read_text())
    assert record["kind"] == "medusa"
    assert len(record["held_out"]["acceptance"]) == 4, "one rate per head"
    assert sorted(path.suffix for path in medusa.iterdir()) == [
        ".json",
        ".json",
        ".log",
        ".safetensors",
    ]
    options = [
        "--limit",
        "3",
        "--max-new-tokens",
        "8",
        "--out",
        str(tmp_path),
        "--json",
        "--deployment",
        "wan",
    ]
    named = [
        "--method",
        "fixed-k:k=4,drafter=medusa",
        "--method",
        "vllm-adaptive:drafter=medusa,refit_every=2",
    ]
    for batch_size in ("1", "3"):
        ran = skit(
            *("bench", "--target", tiny.target, *named, *options, "--batch-size", batch_size),
            env=environment(SKIT_HOME=str(medusa_home)),
        )
        assert ran.returncode == 0, ran.stderr
        runs = [Path(name) for name in json.loads(ran.stdout.splitlines()[-1])["run_dirs"]]
        summaries = [
            read_object(run / "summary.json") for run in runs if "autoregressive" not in run.name
        ]
        assert [summary["lossless"]["identical"] for summary in summaries] == [3, 3]


def test_drafts_of_medusa_heads_are_recorded_and_replayed(
    medusa: Path, tiny: TinyPair, medusa_home: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.parquet"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(f'{{"prompt": "{word} and {word}"}}\n' for word in ("one", "two", "three"))
    )
    home = environment(SKIT_HOME=str(medusa_home))
    sized = ["--dataset", prompts, "--max-new-tokens", "8"]
    recorded = skit(
        "record", "--target", tiny.target, "--drafter", "medusa", *sized, "--out", trace, env=home
    )
    assert recorded.returncode == 0, recorded.stderr
    summaries = []
    for source in (["--replay", trace], ["--target", tiny.target, *sized]):
        options = ["--method", "fixed-k:k=4,drafter=medusa", "--deployment", "wan"]
        ran = skit("bench", *source, *options, "--out", tmp_path / "runs", "--json", env=home)
        assert ran.returncode == 0, ran.stderr
        runs = [Path(name) for name in json.loads(ran.stdout.splitlines()[-1])["run_dirs"]]
        (summary,) = (
            read_object(run / "summary.json") for run in runs if "autoregressive" not in run.name
        )
        summaries.append(summary["overall"])
    for metric in ("acceptance_length", "acceptance_rate", "drafted", "tpot"):
        assert summaries[0][metric] == summaries[1][metric], metric
    assert medusa.exists()


def test_heads_of_the_other_kind_are_refused(
    medusa: Path, tiny: TinyPair, medusa_home: Path, tmp_path: Path
) -> None:
    for spec, words in (
        (f"eagle:head={medusa}", "holds Medusa heads"),
        ("fixed-k:drafter=medusa.size=5", "there are 4 heads"),
    ):
        options = [
            "--target",
            tiny.target,
            "--method",
            spec,
            "--limit",
            "1",
            "--out",
            str(tmp_path),
        ]
        ran = skit("bench", *options, env=environment(SKIT_HOME=str(medusa_home)))
        assert ran.returncode == 2, ran.stderr
        assert words in error_line(ran)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["train-head", "--steps", "0"], "--steps must be at least 1"),
        (["train-head", "--minutes", "0"], "--minutes must be at least 0.1"),
        (["train-draft", "--layers", "0,7"], "--layers names layers that the target does not have"),
        (["train-draft", "--sampled-share", "2"], "--sampled-share must be from 0 to 1"),
        (["train-head", "--layers", "1,2"], "--layers takes three layers"),
        (["train-head", "--layers", "low"], "numbers separated by commas"),
        (
            ["train-head", "--kind", "medusa", "--layers", "0,1,2"],
            "--layers has no effect with --kind medusa",
        ),
        (
            ["train-head", "--kind", "medusa", "--inner", "64"],
            "--inner has no effect with --kind medusa",
        ),
        (["train-head", "--inner", "50"], "--inner must be a multiple of 16"),
        (
            ["train-head", "--inner", "48", "--in-4-bits"],
            "--inner must be a multiple of 32 with --in-4-bits",
        ),
        (
            ["train-head", "--kind", "medusa", "--in-4-bits"],
            "--in-4-bits and --output-rows have no effect with --kind medusa",
        ),
        (
            ["bench", "--method", "fixed-k:drafter=medusa", "--limit", "1"],
            "run skit train-head --kind medusa",
        ),
        (
            ["bench", "--method", "eagle", "--limit", "1"],
            "run skit train-head with the same --target",
        ),
        (
            ["bench", "--method", "eagle:head=/nowhere", "--limit", "1"],
            "there is no head in '/nowhere'",
        ),
    ],
)
def test_bad_input_is_one_line(
    options: list[str], words: str, tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    refused = skit_here(*options, "--target", tiny.target)
    assert words in error_line(refused)


def test_answers_are_kept_for_the_next_training_and_a_draft_is_made_of_them(
    done: subprocess.CompletedProcess[str], tiny: TinyPair, home: Path, tmp_path: Path
) -> None:
    assert done.returncode == 0
    (answer_folder,) = (home / "answers").iterdir()
    shards = {path: path.stat().st_mtime_ns for path in answer_folder.glob("*.safetensors")}
    assert shards
    folder = tmp_path / "draft"
    save = ["--save-to", str(folder), "--layers", "0", "--json"]
    trained = skit(
        "train-draft", "--target", tiny.target, *SMALL, *save, env=environment(SKIT_HOME=str(home))
    )
    assert trained.returncode == 0, trained.stderr
    assert {path: path.stat().st_mtime_ns for path in answer_folder.glob("*.safetensors")} == shards
    assert json.loads(trained.stdout.splitlines()[-1])["summary"]["vocabulary"] == 200
    options = [
        "--method",
        "fixed-k",
        "--method",
        "specinfer",
        "--limit",
        "2",
        "--max-new-tokens",
        "8",
        "--json",
    ]
    pair = ["--target", tiny.target, "--draft", str(folder), "--out", str(tmp_path / "runs")]
    ran = skit("bench", *pair, *options, env=environment(SKIT_HOME=str(home)))
    assert ran.returncode == 0, ran.stderr
    runs = [Path(name) for name in json.loads(ran.stdout.splitlines()[-1])["run_dirs"]]
    summaries = [
        read_object(run / "summary.json") for run in runs if "autoregressive" not in run.name
    ]
    assert [summary["lossless"]["identical"] for summary in summaries] == [2, 2]


@pytest.mark.nightly  # test_interrupted_commands.py ends a training at any moment
def test_a_killed_training_is_resumed_from_its_best_checkpoint(
    done: subprocess.CompletedProcess[str], tiny: TinyPair, home: Path, tmp_path: Path
) -> None:
    assert done.returncode == 0
    folder = tmp_path / "draft"
    command = [
        "train-draft",
        "--target",
        tiny.target,
        *SMALL,
        "--save-to",
        str(folder),
        "--layers",
        "0",
        "--json",
    ]
    endless = [SKIT, *map(str, command), "--epochs", "100000"]
    with subprocess.Popen(
        endless, env=environment(SKIT_HOME=str(home)), stdout=subprocess.DEVNULL
    ) as process:
        while not (folder / "unfinished" / "model.safetensors").is_file():
            assert process.poll() is None, "the training ended before it was killed"
            time.sleep(0.05)
        second = skit(*command, "--resume", env=environment(SKIT_HOME=str(home)))
        assert (
            error_line(second)
            == f"{folder} is being written by another skit: wait until it has ended, then --resume"
        )
        process.kill()
    assert not (folder / "model.safetensors").exists()
    epochs_before = (folder / "training.log").read_text().splitlines()
    resumed = skit(*command, "--epochs", "1", "--resume", env=environment(SKIT_HOME=str(home)))
    assert resumed.returncode == 0, resumed.stderr
    first = (folder / "training.log").read_text().splitlines()[len(epochs_before)]
    assert acceptance_length(first) == pytest.approx(
        max(map(acceptance_length, epochs_before)), abs=0.05
    ), "kept in bf16"
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "unfinished").exists()
    assert not (folder / ".lock").exists()

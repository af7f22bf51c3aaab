"""Every command that loads a model takes one of the Hugging Face hub, out of the cache of the hub's library."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from command_line import TinyPair, environment, read_object, skit, skit_here, write_rows
from hub_cache import add_model, offline_cache, variables
from live_server import serving
from nightly import nightly_except

from specbench_kit.cli.commands import commands
from specbench_kit.cli.group import load_command
from specbench_kit.live.server.run import make_service
from specbench_kit.live.server.settings import ServeSettings

pytestmark = pytest.mark.slow

TARGET, DRAFT = "someone/tiny-target", "someone/tiny-draft"
PAIR = ("--target", TARGET, "--draft", DRAFT)
SHORT = ("--dataset", "{prompts}", "--max-new-tokens", "8")
SIMULATED = (
    "--method", "fixed-k:k=2", "--max-draft", "3", "--duration", "6", "--warm-up", "1", "--seeds", "1", "--jobs", "1",
)  # fmt: skip
TRAINED = (
    "--limit",
    "14",
    "--max-new-tokens",
    "12",
    "--epochs",
    "1",
    "--vocabulary",
    "200",
    "--save-to",
    "made",
)

TRIED: Mapping[str, Sequence[str]] = {
    "bench": (*PAIR, *SHORT, "--method", "fixed-k:k=3", "--out", "runs"),
    "record": (*PAIR, *SHORT, "--max-draft", "3", "--out", "recorded.parquet"),
    "train-predictor": (
        *PAIR, "--trace", "{trace}", "--families", "logistic", "--trials", "1", "--repeats", "1", "--save-to", "made",
    ),
    "train-head": ("--target", TARGET, *TRAINED),
    "train-draft": ("--target", TARGET, *TRAINED, "--layers", "0"),
    "profile-verifier": ("--target", TARGET, "--runs", "1", "--budget", "2", "--name", "hub-verifier"),
    "profile-drafter": (*PAIR, "--runs", "1", "--budget", "2", "--name", "hub-drafter"),
    "measure-ranks": (*PAIR, *SHORT),
    "sweep": (*PAIR, *SHORT, "--method", "fixed-k:k=2", "--deployment", "wan", "--set", "link.rtt_s=0.01,0.1"),
    "batch-sizes": (*PAIR, *SHORT, "--method", "fixed-k:k=2", "--deployment", "wan", "--sizes", "2"),
    "simulate": (*PAIR, *SHORT, *SIMULATED, "--system", "sled", "--devices", "2"),
    "capacity": (*PAIR, *SHORT, *SIMULATED, "--system", "sled", "--slo", "4", "--most", "4"),
    "rerun": ("{run}", *PAIR, "--data-dir", "{folder}"),
}  # fmt: skip
ELSEWHERE = {
    "serve": "test_a_server_and_a_device_take_their_models_from_the_cache",
    "profile-server": "test_a_server_and_a_device_take_their_models_from_the_cache",
    "ab": "test_a_tokenizer_of_the_hub",
    "import": "takes names of models for its run, and loads none",
    "plan": "takes shapes of models by architecture cards, and loads none",
    "calibrate": "takes shapes of models by architecture cards, and loads none",
}


def test_every_command_that_takes_a_model_is_tried() -> None:
    models = {"--target", "--draft", "--tokenizer"}
    takers = {
        name
        for name in commands.all()
        if any(models & set(option.opts) for option in load_command(name).params)
    }
    assert takers == TRIED.keys() | ELSEWHERE.keys()


@pytest.fixture(scope="module")
def cache(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    cache = tmp_path_factory.mktemp("cache")
    add_model(cache, TARGET, tiny.target)
    add_model(cache, DRAFT, tiny.draft)
    with offline_cache(cache):
        yield cache


def commit(cache: Path, hub_id: str) -> str:
    (snapshot,) = (cache / f"models--{hub_id.replace('/', '--')}" / "snapshots").iterdir()
    return snapshot.name


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = ({"id": str(number), "prompt": f"Say {number}."} for number in range(4))
    return write_rows(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", *rows)


@pytest.fixture(scope="module")
def inputs(
    cache: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    """A trace, and a run, of the pair on the hub."""
    assert cache.is_dir()
    folder = tmp_path_factory.mktemp("inputs")
    many = write_rows(
        folder / "many.jsonl", *({"id": f"{n}", "prompt": f"Count to {n}."} for n in range(12))
    )
    trace = folder / "trace.parquet"
    done = skit_here(
        "record", *PAIR, "--dataset", many, "--max-new-tokens", 16, "--max-draft", 4, "--out", trace
    )
    assert done.returncode == 0, done.stderr
    done = skit_here("bench", *PAIR, "--dataset", prompts, "--max-new-tokens", 8, "--method", "fixed-k:k=3",
                     "--out", folder / "runs")  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    return {
        "prompts": str(prompts),
        "folder": str(prompts.parent),
        "trace": str(trace),
        "run": str(run),
    }


@pytest.mark.parametrize("command", TRIED)
def test_a_command_takes_its_models_from_the_cache(
    command: str,
    inputs: Mapping[str, str],
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    done = skit_here(command, *(argument.format(**inputs) for argument in TRIED[command]))
    assert done.returncode == 0, done.stderr
    described = [json.dumps(read_object(file)) for file in tmp_path.rglob("run.json")]
    assert all(commit(cache, TARGET) in run for run in described)


def test_a_run_names_the_commits_and_a_trace_is_replayed_for_the_same_pair(
    inputs: Mapping[str, str], cache: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    models = read_object(Path(inputs["run"], "run.json"))["models"]
    assert {role: (model["name"], model["hash"]) for role, model in models.items()} == {
        "target": (TARGET, commit(cache, TARGET)),
        "draft": (DRAFT, commit(cache, DRAFT)),
    }
    replay = (
        "bench",
        "--replay",
        inputs["trace"],
        "--method",
        "fixed-k:k=3",
        "--deployment",
        "wan",
    )
    done = skit_here(*replay, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    assert read_object(run / "run.json")["models"] == models
    train = (
        "train-predictor",
        "--trace",
        inputs["trace"],
        "--families",
        "logistic",
        "--trials",
        "1",
    )
    other = skit_here(*train, "--target", tiny.draft, "--draft", DRAFT, "--out", tmp_path / "other")
    assert (
        "was recorded with other models (someone/tiny-target and someone/tiny-draft)"
        in other.stderr
    )


def test_tuning_replays_a_trace_of_the_hub(inputs: Mapping[str, str], tmp_path: Path) -> None:
    tune = (
        "tune",
        "--replay",
        inputs["trace"],
        "--method",
        "fixed-k",
        "--budget",
        "2",
        "--deployment",
        "wan",
    )
    done = skit_here(*tune, "--out", tmp_path / "tuned.json")
    assert done.returncode == 0, done.stderr


def test_a_server_and_a_device_take_their_models_from_the_cache(
    cache: Path, prompts: Path, tmp_path: Path
) -> None:
    settings = ServeSettings(target=TARGET, listen="127.0.0.1:0", slots=4, session_tokens=64)
    service, _ = make_service(settings)
    profile = tmp_path / "server.toml"
    with serving(service) as (_, address):
        options = (
            "--dataset",
            prompts,
            "--max-new-tokens",
            8,
            "--out",
            tmp_path / "runs",
            "--method",
            "fixed-k",
        )
        done = skit_here("bench", "--server", address, *PAIR, *options)
        profiled = skit_here("profile-server", "--server", address, "--target", TARGET, "--to", profile,
                             "--sessions", 2, "--window", 0.05, "--minutes", 0.05)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert profiled.returncode == 0, profiled.stderr
    (run,) = (tmp_path / "runs").iterdir()
    models = read_object(run / "run.json")["models"]
    assert [models[role]["hash"] for role in ("target", "draft")] == [
        commit(cache, name) for name in (TARGET, DRAFT)
    ]
    assert commit(cache, TARGET) in profile.read_text()


@pytest.mark.parametrize("variable", nightly_except(["HF_HUB_CACHE"], ["HF_HUB_CACHE", "HF_HOME"]))
def test_a_process_finds_the_cache_by_its_variable(
    variable: str, cache: Path, prompts: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "hub").symlink_to(cache)
    named = variables(cache) if variable == "HF_HUB_CACHE" else {"HF_HOME": str(home)}
    command = (
        "bench",
        *PAIR,
        "--dataset",
        prompts,
        "--max-new-tokens",
        4,
        "--method",
        "fixed-k",
        "--out",
        tmp_path,
    )
    done = skit(*command, env=environment(**named))
    assert done.returncode == 0, done.stderr

"""Long commands that are killed, or meet a full disk, at any of their file operations: nothing is lost or doubled.

Each is run whole once, which counts its operations. Then its process is ended at some of them, and the same command
again, with --resume where there is such an option, has to come to the same end. Three kills run before every change.
"""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest
from command_line import (
    PATIENCE_S,
    TinyPair,
    environment,
    error_line,
    read_object,
    read_rows,
    skit,
    write_rows,
)
from file_faults import fault
from nightly import nightly_except
from streaming_server import streaming_server
from warm_start import warm_start

from specbench_kit.predictors.artefact import load
from specbench_kit.traces.trace import TraceFile

pytestmark = pytest.mark.slow

Result = Any
NOTHING_TO_RESUME = "holds no unfinished run with these settings: start one without --resume"


@dataclass(frozen=True)
class Command:
    """A command that writes below `out` alone; `result` reads what it found, wherever it lies."""

    arguments: Callable[["Place"], list[object]]
    result: Callable[[Path], Result]
    resumes: bool = True


@dataclass(frozen=True)
class Place:
    """A folder of one command: its prompts, the pair, and where it writes."""

    tiny: TinyPair
    prompts: Path
    trace: Path
    servers: tuple[str, str]
    out: Path

    @property
    def home(self) -> Path:
        return self.out / "home"


def whole_folders(out: Path, pattern: str) -> list[Path]:
    """Return the folders of runs that say that they are whole."""
    return sorted(
        file.parent
        for file in out.glob(f"{pattern}/summary.json")
        if read_object(file).get("partial") is not True
    )


def only(folders: list[Path]) -> Path:
    (folder,) = folders
    return folder


def benchmark(place: Place) -> list[object]:
    methods = ("--method", "fixed-k", "--method", "threshold")
    return ["bench", *methods, *decoding(place), "--out", place.out / "runs"]


def decoding(place: Place) -> list[object]:
    return ["--dataset", place.prompts, "--max-new-tokens", 8, *place.tiny.options]


def benchmarked(out: Path) -> Result:
    outputs_of_runs = {}
    for method in ("fixed-k", "threshold"):
        folder = only(whole_folders(out / "runs", f"*Z-{method}-*"))
        for name in ("requests.jsonl", "baseline.jsonl"):
            rows = read_rows(folder / name)
            outputs_of_runs[method, name] = {row["request_id"]: row["output_ids"] for row in rows}
            assert len(outputs_of_runs[method, name]) == len(rows)
    return outputs_of_runs


def recorded(out: Path) -> Result:
    assert [path.name for path in (out / "runs").iterdir()] == ["trace.parquet"]
    return traced(out / "runs" / "trace.parquet")


def traced(path: Path) -> Result:
    return [
        (request.request_id, request.output_ids, request.drafted.tolist())
        for request in TraceFile(path)
    ]


def rows_of(pattern: str, key: str = "rows") -> Callable[[Path], Result]:
    """Return a reader of part of a summary; what was killed behind its last file is whole as well, and the same."""

    def read(out: Path) -> Result:
        first, *later_summaries = (
            read_object(folder / "summary.json")[key]
            for folder in whole_folders(out / "runs", pattern)
        )
        assert all(summary == first for summary in later_summaries)
        return first

    return read


def swept(out: Path) -> Result:
    folder = whole_folders(out / "runs", "*-sweep-*")[-1]
    return traced(folder / "trace.parquet"), [
        row["acceptance_length"] for row in rows_of("*-sweep-*")(out)
    ]


def answered(out: Path) -> Result:
    folder = only(whole_folders(out / "runs", "*-ab-*"))
    rows = read_rows(folder / "answers.jsonl")
    answers = {str(row["key"]): row["answer"]["token_ids"] for row in rows}
    # A turn that was cut short is asked again, at both servers: the later answers count.
    assert len(rows) - len(answers) <= 1
    assert read_object(folder / "summary.json")["finished"] == len(answers)
    return answers


def trained(name: str) -> Callable[[Path], Result]:
    """Return a reader of the files of a draft model or head."""

    def read(out: Path) -> Result:
        folder = out / "runs" / name
        assert not (folder / "unfinished").exists()
        return sorted(
            path.name
            for path in folder.iterdir()
            if path.suffix != ".log" and not path.name.startswith(".")
        )

    return read


def predicted(out: Path) -> Result:
    folders = [header.parent for header in sorted((out / "home").rglob("predictor.json"))]
    assert folders
    return [(folder.name, load(folder).family) for folder in folders]


COMMANDS = {
    "bench": Command(benchmark, benchmarked),
    "bench under a deployment": Command(
        lambda place: [*benchmark(place), "--deployment", "wan"], benchmarked
    ),
    "record": Command(
        lambda place: [
            "record",
            *decoding(place),
            "--max-draft",
            2,
            "--out",
            place.out / "runs" / "trace.parquet",
        ],
        recorded,
    ),
    "sweep": Command(
        lambda place: [
            *(
                "sweep",
                *decoding(place),
                "--max-draft",
                3,
                "--method",
                "fixed-k:k=2",
                "--deployment",
                "wan",
            ),
            *("--set", "link.rtt_s=0.01,0.1", "--out", place.out / "runs"),
        ],
        swept,
        resumes=False,
    ),
    "capacity": Command(
        lambda place: [
            *(
                "capacity",
                "--deployment",
                "wan",
                "--acceptance",
                "iid:alpha=0.8,length=2",
                "--slo",
                "class-4",
            ),
            *(
                "--prompt-tokens",
                100,
                "--output-tokens",
                20,
                "--duration",
                15,
                "--warm-up",
                3,
                "--seeds",
                1,
            ),
            *("--jobs", 1, "--out", place.out / "runs"),
        ],
        rows_of("*-capacity-*"),
        resumes=False,
    ),
    "ab": Command(
        lambda place: [
            *(
                "ab",
                *(f"{name}=vllm://{host}" for name, host in zip("ab", place.servers, strict=True)),
            ),
            *(
                "--dataset",
                place.prompts,
                "--max-new-tokens",
                5,
                "--warm-up",
                0,
                "--out",
                place.out / "runs",
            ),
        ],
        answered,
    ),
    "train-draft": Command(
        lambda place: [
            *(
                "train-draft",
                "--target",
                place.tiny.target,
                "--trace",
                place.trace,
                "--layers",
                0,
                "--vocabulary",
                200,
            ),
            *("--epochs", 1, "--save-to", place.out / "runs" / "draft"),
        ],
        trained("draft"),
    ),
    "train-head": Command(
        lambda place: [
            *(
                "train-head",
                "--target",
                place.tiny.target,
                "--trace",
                place.trace,
                "--vocabulary",
                200,
            ),
            *("--epochs", 1, "--save-to", place.out / "runs" / "head"),
        ],
        trained("head"),
    ),
    "train-predictor": Command(
        lambda place: [
            *(
                "train-predictor",
                *place.tiny.options,
                "--trace",
                place.trace,
                "--families",
                "logistic",
            ),
            *("--trials", 1, "--repeats", 1, "--out", place.out / "runs"),
        ],
        predicted,
        resumes=False,
    ),
}


@dataclass
class Whole:
    """The result of a command that nothing ends early, and how many file operations it takes."""

    result: Result
    operations: list[str]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    with (
        streaming_server() as (first_address, _),
        streaming_server(speculates=True) as (second_address, _),
    ):
        yield first_address, second_address


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"id": f"p{number}", "prompt": f"prompt number {number}", "chat": False}
        for number in range(6)
    ]
    return write_rows(tmp_path_factory.mktemp("data") / "prompts.jsonl", *rows)


@pytest.fixture(scope="module")
def trace(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    rows = (
        {"id": f"t{number}", "prompt": "Say it." * (1 + number % 5), "chat": False}
        for number in range(16)
    )
    prompts, path = write_rows(folder / "prompts.jsonl", *rows), folder / "trace.parquet"
    sizes = ("--dataset", prompts, "--max-new-tokens", 24, "--max-draft", 3)
    done = skit("record", *sizes, *tiny.options, "--out", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def place_in(
    tiny: TinyPair, prompts: Path, trace: Path, servers: tuple[str, str]
) -> Callable[[Path], Place]:
    return lambda out: Place(tiny, prompts, trace, servers, out)


@pytest.fixture(scope="module")
def whole(
    place_in: Callable[[Path], Place], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Whole]:
    """Return what runs a command whole, once."""

    @cache
    def run_whole(name: str) -> Whole:
        out, counted = (
            tmp_path_factory.mktemp("whole"),
            tmp_path_factory.mktemp("operations") / "log",
        )
        done = run(COMMANDS[name], place_in(out), fault("none", 0, out, counted))
        assert done.returncode == 0, done.stderr
        return Whole(COMMANDS[name].result(out), counted.read_text().splitlines())

    return run_whole


def run(
    command: Command, place: Place, faulty: dict[str, str], *options: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own, which meets a fault."""
    arguments = [str(argument) for argument in (*command.arguments(place), *options)]
    env = environment(SKIT_HOME=str(place.home), **faulty)
    return warm_start(environment()).run(arguments, env, str(place.out), PATIENCE_S)


def finish(command: Command, place: Place) -> None:
    """Give the command again, with --resume if there is something to resume."""
    done = run(command, place, {}, *(["--resume"] if command.resumes else []))
    if NOTHING_TO_RESUME in done.stderr:
        if whole_folders(place.out / "runs", "*"):
            return  # all that it was asked for was on disk, and what was cut short was a page about several runs
        done = run(command, place, {})
    assert done.returncode == 0, done.stderr


CASES = [
    (name, kind, part)
    for name in COMMANDS
    for kind, parts in (("kill", 3), ("full", 2))
    for part in range(parts)
]
BEFORE_EVERY_CHANGE = [("record", "kill", 1), ("ab", "kill", 1), ("train-head", "kill", 1)]


@pytest.mark.parametrize(("name", "kind", "part"), nightly_except(BEFORE_EVERY_CHANGE, CASES))
def test_a_command_that_is_ended_at_any_moment_loses_and_doubles_nothing(
    name: str,
    kind: str,
    part: int,
    whole: Callable[[str], Whole],
    place_in: Callable[[Path], Place],
    tmp_path: Path,
) -> None:
    command, untouched, folder = COMMANDS[name], whole(name), place_in(tmp_path)
    moments = sorted(Random(f"{name}/{kind}").sample(range(1, len(untouched.operations) + 1), 3))
    ended = run(command, folder, fault(kind, moments[part], tmp_path))
    if kind == "kill":
        assert ended.returncode == -SIGKILL, untouched.operations[moments[part] - 1]
    else:
        assert "No space left on device" in error_line(ended), untouched.operations[
            moments[part] - 1
        ]
    finish(command, folder)
    assert command.result(tmp_path) == untouched.result, untouched.operations[moments[part] - 1]

"""What a program reads from a command's end: its exit code, and the files that no failure of printing may lose."""

import ast
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command_line import PATIENCE_S, SKIT, environment, error_line, skit, skit_here
from nightly import nightly_except
from run_builders import write_methods

import specbench_kit
from specbench_kit.core.errors import Interrupted, SkitError

ROOT = Path(specbench_kit.__file__).parent
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PASSES, FAILS = "acceptance_length<0.5", "acceptance_length<100"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_methods(folder, requests=6)
    return folder


def gate(runs: Path, condition: str, out: Path) -> list[str]:
    return ["compare", str(runs), "--fail-if", condition, "--out", str(out), "--format", "md"]


ENCODINGS: list[dict[str, str]] = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    C_LOCALE,
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "condition", "code"),
    nightly_except(
        [(ENCODINGS[0], FAILS, 1), (C_LOCALE, PASSES, 0)],
        [(each, *end) for each in ENCODINGS for end in ((PASSES, 0), (FAILS, 1))],
    ),
)
def test_characters_that_cannot_be_shown_are_replaced(
    variables: Mapping[str, str], condition: str, code: int, runs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "Ergebnis-ä-≈"
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    done = skit(*gate(runs, condition, out), env=environment(**variables), encoding=encoding)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "?" in done.stdout
    assert not (out / "report.md").read_text(encoding="utf-8").isascii()


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", nightly_except([""], ["", "1"]))
@pytest.mark.parametrize(
    ("condition", "code"), nightly_except([(FAILS, 1)], [(PASSES, 0), (FAILS, 1)])
)
def test_a_reader_that_leaves_loses_no_report(
    condition: str, code: int, unbuffered: str, runs: Path, tmp_path: Path
) -> None:
    """As `| head -1` does; so many runs are printed that a pipe cannot hold them."""
    command = [SKIT, *gate(runs, condition, tmp_path / "out")]
    env = environment(PYTHONUNBUFFERED=unbuffered)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(PATIENCE_S)
    assert process.returncode == code, errors
    assert "error" not in errors
    assert (tmp_path / "out" / "report.md").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("condition", "code"), [(PASSES, 2), (FAILS, 1)])
def test_a_full_disk_behind_the_output_is_said_and_is_no_success(
    condition: str, code: int, runs: Path, tmp_path: Path
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = skit(
            *gate(runs, condition, tmp_path / "out"),
            stdout=full,
            stderr=subprocess.PIPE,
            capture_output=False,
        )
    assert done.returncode == code
    if code == 2:
        line = done.stderr.splitlines()[-1]
        assert line.startswith(
            "error: cannot write to standard output: No space left on device; files of the command"
        )
    assert (tmp_path / "out" / "report.md").is_file()


@pytest.mark.slow
def test_an_output_that_was_closed_before_the_start_loses_no_report(
    runs: Path, tmp_path: Path
) -> None:
    command = 'exec "$0" "$@" >&- 2>&-'
    arguments = ["sh", "-c", command, SKIT, *gate(runs, FAILS, tmp_path / "out")]
    done = subprocess.run(arguments, env=environment(), check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert (tmp_path / "out" / "report.md").is_file()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (SkitError("no such thing"), 2, "error: no such thing"),
        (Interrupted("interrupted; all is kept"), 130, "error: interrupted; all is kept"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (BrokenPipeError(32, "Broken pipe"), 2, "error: [Errno 32] Broken pipe"),
        (
            ModuleNotFoundError("no such module", name="nowhere"),
            70,
            "error: this is a fault of skit: please report",
        ),
        (
            RuntimeError("a fault"),
            70,
            "error: this is a fault of skit: please report it with the lines above",
        ),
        (EOFError(), 70, "error: this is a fault of skit: please report it with the lines above"),
        (UnicodeEncodeError("ascii", "é", 0, 1, "ordinal"), 70, "error: this is a fault of skit"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_never_ends_with_the_code_of_a_verdict(
    error: BaseException, code: int, line: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("specbench_kit.studies.bench.kind.load_runs", fail)
    done = skit_here("compare", runs, "--fail-if", FAILS)
    assert (done.returncode, "Traceback" in done.stderr) == (code, code == 70)
    assert done.stderr.splitlines()[-1].startswith(line)


def test_a_gate_whose_old_run_lacks_its_summary_does_not_judge(tmp_path: Path) -> None:
    old, new, *_ = write_methods(tmp_path / "runs", requests=6)
    (old / "summary.json").unlink()
    for condition in (PASSES, FAILS):
        done = skit_here("compare", old, new, "--fail-if", condition)
        assert error_line(done).startswith(
            "--fail-if cannot be judged, since not all runs could be read: "
        )
        assert "failed: " not in done.stderr


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path in ROOT.rglob("*.py"):
        if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_exit_codes_are_those_of_the_table() -> None:
    """A command ends by a name of cli/exit_codes.py; a number may stand in no other place."""
    ends = {"sys.exit", "typer.Exit", "SystemExit", "os._exit"}
    numbers = [
        place
        for place, call in _calls()
        if ast.unparse(call.func) in ends
        and any(isinstance(argument, ast.Constant) for argument in call.args)
    ]
    # The process of a pipeline's stage ends at once; the command that started it tells why.
    assert [place.partition(":")[0] for place in numbers] == ["decoding/processes/worker.py"]


def test_text_files_are_read_and_written_in_utf_8() -> None:
    """Not in the encoding of whoever runs a command."""
    unstated = []
    for place, call in _calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        texts = [
            text
            for text in map(_mode, [*call.args, *(word.value for word in call.keywords)])
            if text
        ]
        is_text = name in ("read_text", "write_text") or (
            name == "open" and any("b" not in text for text in texts)
        )
        if isinstance(call.func, ast.Name) and name == "write_text":
            continue  # runs/folder.py, which encodes
        if (
            is_text
            and not any(word.arg == "encoding" for word in call.keywords)
            and not _names_encoding(call)
        ):
            unstated.append(place)
    assert unstated == []


def _mode(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and value and set(value) <= set("rwabx+t") else ""


def _names_encoding(call: ast.Call) -> bool:
    return any(
        isinstance(node, ast.Constant) and node.value in ("utf-8", "ascii") for node in call.args
    )

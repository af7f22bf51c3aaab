"""What the README and the documentation say can be done: their commands run, their example method works."""

import ast
import json
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from command_line import (
    PATIENCE_S,
    SKIT,
    TinyPair,
    environment,
    read_object,
    read_rows,
    skit,
    write_rows,
)
from documents import PAGES, ROOT, block, blocks
from plug_ins import install, of_the_kit

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.loading import SAMPLES, read_prompts
from specbench_kit.decoding.drafting.base import drafters
from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.studies.tuning.run import candidates

LOADED = ["--duration", "8", "--warm-up", "2"]
DECODED, SIMULATED = (
    ["--limit", "2", "--max-new-tokens", "8"],
    ["--warm-up", "5", "--duration", "15"],
)
SMALL = {
    "bench": DECODED,
    "sweep": DECODED,
    "simulate": SIMULATED,
    "capacity": SIMULATED,
    "load": LOADED,
    "profile-server": ["--window", "1"],
    "record": ["--limit", "6"],
}
"""What makes a command quick."""
WHOLE_S = 600
"""How long a command may take that runs as it is written."""


ALWAYS_RUN = (
    "skit sweep --method fixed-k --method threshold",
    "skit import answers.jsonl",
    "skit bench --method ramp",
)
"""What a line begins with of the blocks that run with every `make test`.

They show the first commands of the README, files that one command writes and another reads, and a policy of one's own.
The blocks of all others run in `make docs-test`; tests/test_docs.py parses their commands.
"""


def sessions() -> list[Any]:
    """The shell blocks, without the lines that continuous integration runs anyway."""
    parameters = []
    for code_block in blocks("sh"):
        lines = [line for line in code_block.text.splitlines() if not line.startswith("make ")]
        if lines:
            always = any(line.startswith(ALWAYS_RUN) for line in lines)
            marks = () if always else pytest.mark.docs
            parameters.append(
                pytest.param(
                    lines, code_block.slow, id=f"{code_block.page.stem}: {lines[-1]}", marks=marks
                )
            )
    return parameters


def example() -> tuple[str, str]:
    """The example method and the entry point that names it."""
    return block("python", '@methods.register("ramp")'), block("toml", "specbench_kit.methods")


@pytest.fixture
def folder(tiny: TinyPair, tmp_path: Path) -> Path:
    """A folder with what the commands name: models, a prompt file, and the installed example method."""
    shutil.copytree(tiny.target, tmp_path / "models" / "large")
    shutil.copytree(tiny.draft, tmp_path / "models" / "small")
    (tmp_path / "prompts.jsonl").write_text(block("jsonl", "Once upon a time"))
    (tmp_path / "board.toml").write_text(block("toml", "[drafter]"))
    write_rows(tmp_path / "responses.jsonl", *map(response, range(6)))
    install_example(tmp_path / "site")
    return tmp_path


def response(number: int) -> JsonObject:
    """Return vLLM's answer with detailed acceptance."""
    acceptance = {
        "num_spec_tokens": 5,
        "per_step_accepted": [0, 5, number],
        "per_step_drafted": [5, 5, 5],
    }
    usage = {"prompt_tokens": 20, "completion_tokens": number + 9}
    return {"id": f"cmpl-{number}", "usage": usage, "metrics": {"speculative_decoding": acceptance}}


def install_example(site: Path) -> None:
    """The example as another distribution, as an installer would lay it out."""
    method, entry = example()
    points = tomllib.loads(entry)["project"]["entry-points"]["specbench_kit.methods"]
    entries = [f"{name} = {entry_point}" for name, entry_point in points.items()]
    install(site, "ramp", method, "specbench_kit.methods", entries)


def test_the_lines_of_python_are_those_of_the_tested_example() -> None:
    example_text = (ROOT / "examples" / "first_steps.py").read_text(encoding="utf-8")
    called = set(re.findall(r"\b(?:skit|result)\.\w+", block("python", "skit.bench(")))
    assert called <= set(re.findall(r"\b(?:skit|result)\.\w+", example_text))
    assert len(called) >= 4


@pytest.mark.docs
def test_the_lines_of_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.py").write_text(block("python", "skit.bench("))
    runpy.run_path(str(tmp_path / "lines.py"))
    assert (tmp_path / "both" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "whole"), sessions())
def test_every_command_runs(lines: list[str], whole: bool, folder: Path) -> None:
    """Block by block, each in a folder of its own; quick ones with fewer and shorter answers and short simulations."""
    with ExitStack() as started:
        for line in lines:
            if line.endswith("&"):
                started.enter_context(
                    in_the_background(shlex.split(line.removesuffix("&")), folder)
                )
            else:
                code, err = run(shlex.split(line, comments=True), folder, whole)
                assert code == 0, (line, err)
                assert "Traceback" not in err
    require_unseen(folder, trained="--save-to" in "".join(lines))
    for rows_file in folder.glob("**/requests.jsonl"):
        assert {"run.json", "summary.json", "report.md"} <= {
            path.name for path in rows_file.parent.iterdir()
        }
        lossless = read_object(rows_file.parent / "summary.json")["lossless"]
        assert lossless is None or lossless["lossless"]


def run(words: list[str], folder: Path, whole: bool) -> tuple[int, str]:
    """One line of a shell: exit code and what it says on stderr."""
    site = folder / "site"
    env = environment(PYTHONPATH=str(site))
    if words[0] == "skit":
        small = [] if whole else SMALL.get(words[1], [])
        patience = {"timeout": WHOLE_S} if whole else {}
        arguments = [name for word in words[1:] for name in spread(word, folder)]
        done = skit(*arguments, *small, cwd=folder, env=env, **patience)
    else:
        module = ["-m", *words[:2], "--no-deps", "--no-build-isolation", "--target", str(site)]
        command = [*module, f"./{words[-1]}"] if words[0] == "pip" else ["-m", *words]
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    return done.returncode, done.stderr


def spread(word: str, folder: Path) -> list[str]:
    """Return the paths that a shell makes of a word with a star."""
    return (
        [str(path.relative_to(folder)) for path in folder.glob(word)]
        if word.endswith("/*")
        else [word]
    )


@contextmanager
def in_the_background(words: list[str], folder: Path) -> Iterator[None]:
    """A server that has begun to listen."""
    host, _, port = words[words.index("--listen") + 1].partition(":")
    with subprocess.Popen(
        [SKIT, *words[1:]], cwd=folder, env=environment(), stdout=subprocess.DEVNULL
    ) as process:
        try:
            while not listens(host, int(port)):
                assert process.poll() is None
                sleep(0.2)
            yield
        finally:
            process.terminate()


def listens(host: str, port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((host, port)) == 0


def require_unseen(folder: Path, trained: bool) -> None:
    """Assert that `wisp` decodes with what was trained here, on prompts that it did not learn from."""
    runs = [
        path.parent
        for path in folder.glob("*/*/run.json")
        if read_object(path).get("method", "").endswith("mine")
    ]
    assert bool(runs) == trained
    for run in runs:
        learned = set(read_object(folder / "mine" / "predictor.json")["training"]["prompts"])
        prompts = {
            prompt.id: prompt.fingerprint for prompt in read_prompts(SAMPLES / "gsm8k.jsonl")
        }
        decoded = {prompts[row["request_id"]] for row in read_rows(run / "requests.jsonl")}
        assert decoded
        assert learned
        assert not decoded & learned
        assert read_object(run / "run.json")["uses"]["predictor"]["family"]


@pytest.mark.nightly  # test_testing.py checks methods that others bring
def test_the_example_method_is_found_as_one_file_of_the_package(
    tiny: TinyPair, folder: Path
) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "ramp.py").write_text(example()[0])
    code = (
        "import sys, specbench_kit.methods as package\n"
        f"package.__path__.append({str(inside)!r})\n"
        "from specbench_kit.cli.main import main\n"
        "main()\n"
    )
    command = [
        "bench",
        "--method",
        "ramp:start=2,longest=5",
        "--dataset",
        "prompts.jsonl",
        "--batch-size",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *command, *tiny.options, "--max-new-tokens", "24"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    (run,) = folder.glob("results/*")
    assert read_object(run / "summary.json")["lossless"]["lossless"] is True
    lengths = {
        step["drafted"] for row in read_rows(run / "requests.jsonl") for step in row["rounds"]
    }
    assert lengths <= {1, 2, 3, 4, 5}
    assert len(lengths) > 1


def test_the_example_method_is_one_for_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sets what the tests want of every method of the kit, and `make types` asks for types of every function."""
    code, _ = example()
    functions = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)]
    assert len(functions) == 4
    for function in functions:
        assert function.returns, function.name
        assert all(
            argument.annotation for argument in function.args.args if argument.arg != "self"
        ), function.name
    monkeypatch.setattr(methods, "_entries", of_the_kit(methods))
    exec(compile(code, "ramp.py", "exec"), {"__name__": "ramp"})
    assert methods.get("ramp").group in GROUPS[:-1]
    assert len(candidates("ramp", 16, seed=0)) >= 6
    assert parse_method("ramp:longest=12").longest_draft == 12


def test_the_example_method_refuses_what_it_cannot_do(folder: Path) -> None:
    done = subprocess.run(
        [SKIT, "bench", "--method", "ramp:start=0"],
        env=environment(PYTHONPATH=str(folder / "site")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "error: ramp: start must lie between 1 and longest\n",
    )


@pytest.mark.slow
def test_the_example_drafter_is_listed_and_loses_nothing(tmp_path: Path) -> None:
    page = (ROOT / "docs/recipes/policy.md").read_text(encoding="utf-8")
    (entry,) = re.findall(
        r'the entry point `([\w-]+ = "\w+:\w+")` of the group `specbench_kit\.drafting`', page
    )
    (checked,) = re.findall(r"`(check_method\(.+?\))`", page.partition("## My own drafter")[2])
    name, _, point = entry.replace('"', "").partition(" = ")
    module = point.partition(":")[0]
    install(
        tmp_path,
        module,
        block("python", "@drafters.register"),
        "specbench_kit.drafting",
        [f"{name} = {point}"],
    )
    env = environment(PYTHONPATH=str(tmp_path))
    listed = {
        entry["name"]: entry
        for entry in json.loads(skit("list", "drafters", "--json", env=env).stdout)
    }
    assert listed[name]["gives"] == "tokens"
    assert listed[name]["options"] == {"min": 1, "lookup_s": 0.0}
    code = f"from specbench_kit.api.testing import check_method\n{checked}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_example_drafter_drafts_what_followed_the_last_earlier_place() -> None:
    scope: dict[str, Any] = {"__name__": "last_bigram"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drafters, "_entries", dict(drafters.all()))
        exec(compile(block("python", "@drafters.register"), "last_bigram.py", "exec"), scope)
    index = scope["LastBigram"]().index()
    index.learn("a", [7, 8, 7, 9, 5, 7])
    assert [continuation.token for continuation in index.look_up("a", [7, 8, 7, 9, 5, 7])] == [
        9,
        5,
        7,
    ]
    assert [continuation.token for continuation in index.look_up("a", [7, 8, 7, 9, 5, 7, 6])] == []


def test_the_table_of_methods_has_those_of_the_kit_and_no_others() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    named = [
        name
        for row in re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)
        for name in re.findall("`(.+?)`", row)
    ]
    own = of_the_kit(methods).keys()
    assert own - set(named) == set(), "methods without a line in the table of docs/methods.md"
    assert set(named) <= own
    assert all(parse_method(name) for name in named)


def test_the_layout_names_every_folder_and_no_other() -> None:
    _, _, lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Layout\n")
    folders = re.findall(r"^(\w+)/ ", lines, re.MULTILINE)
    assert {"specbench_kit", "tests", "docs"} <= set(folders)
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_the_architecture_page_names_every_room_of_the_package_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, rooms = page.partition("\n## The rooms\n")
    rows = [
        row.split("|")[1]
        for row in rooms.partition("\n## ")[0].splitlines()
        if row.startswith("| `")
    ]
    named = {room for row in rows for room in re.findall(r"`(\w+)/`", row)}
    package = ROOT / "specbench_kit"
    assert named == {
        path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    paths = re.findall(r"`((?:\w+/)+[\w*]+\.py)`", page)
    assert len(paths) >= 10
    assert not [path for path in paths if not list(package.glob(path))]


def test_links_lead_to_files_that_are_there() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        missing = [
            target
            for target in targets
            if "://" not in target and not (page.parent / target.partition("#")[0]).is_file()
        ]
        assert not missing, page

"""What the README says can be done: its commands run, its example method works, its tables name what is there."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from command_line import PATIENCE_S, SKIT, TinyPair, environment, read_object, read_rows, skit, write_rows

from specbench_kit.datasets.loading import SAMPLES, read_prompts
from specbench_kit.methods.base import methods
from specbench_kit.methods.spec import parse_method

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DECODED, SIMULATED = ["--limit", "2", "--max-new-tokens", "8"], ["--warm-up", "5", "--duration", "15"]
SMALL = {"bench": DECODED, "sweep": DECODED, "simulate": SIMULATED, "capacity": SIMULATED}
"""What makes a command quick."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def sessions() -> list[str]:
    """The shell blocks, without the lines that continuous integration runs anyway."""
    kept = [[line for line in block.splitlines() if not line.startswith("make ")] for block in blocks("sh")]
    return ["\n".join(lines) for lines in kept if lines]


def example() -> tuple[str, str]:
    """The example method and the entry point that names it."""
    (method,) = (block for block in blocks("python") if "@methods.register" in block)
    (entry,) = (block for block in blocks("toml") if "entry-points" in block)
    return method, entry


@pytest.fixture
def folder(tiny: TinyPair, tmp_path: Path) -> Path:
    """A folder with what the commands name: models, a prompt file, and the installed example method."""
    shutil.copytree(tiny.target, tmp_path / "models" / "large")
    shutil.copytree(tiny.draft, tmp_path / "models" / "small")
    (prompts,) = blocks("jsonl")
    (tmp_path / "prompts.jsonl").write_text(prompts)
    (deployment,) = (block for block in blocks("toml") if "[drafter]" in block)
    (tmp_path / "board.toml").write_text(deployment)
    write_rows(tmp_path / "responses.jsonl", *map(response, range(6)))
    install_example(tmp_path / "site")
    return tmp_path


def response(number: int) -> dict[str, Any]:
    """What vLLM answers with detailed acceptance."""
    acceptance = {"num_spec_tokens": 5, "per_step_accepted": [0, 5, number], "per_step_drafted": [5, 5, 5]}
    usage = {"prompt_tokens": 20, "completion_tokens": number + 9}
    return {"id": f"cmpl-{number}", "usage": usage, "metrics": {"speculative_decoding": acceptance}}


def install_example(site: Path) -> None:
    """The example as another distribution, as an installer would lay it out."""
    method, entry = example()
    points = tomllib.loads(entry)["project"]["entry-points"]["specbench_kit.methods"]
    information = site / "ramp-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "ramp.py").write_text(method)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: ramp\nVersion: 1.0\n")
    lines = [f"{name} = {place}\n" for name, place in points.items()]
    (information / "entry_points.txt").write_text("".join(["[specbench_kit.methods]\n", *lines]))


def test_the_lines_of_python_are_those_of_the_tested_example() -> None:
    (lines,) = (block for block in blocks("python") if "skit.bench(" in block)
    example_text = (ROOT / "examples" / "first_steps.py").read_text(encoding="utf-8")
    called = set(re.findall(r"\b(?:skit|result)\.\w+", lines))
    assert called <= set(re.findall(r"\b(?:skit|result)\.\w+", example_text))
    assert len(called) >= 4
    compile(lines, "README.md", "exec")


@pytest.mark.parametrize("session", sessions())
def test_every_command_runs(session: str, folder: Path) -> None:
    """Block by block, each in a folder of its own; with fewer and shorter answers, and simulations of seconds."""
    for line in session.splitlines():
        program, command, *arguments = shlex.split(line, comments=True)
        assert program == "skit"
        done = skit(
            command, *arguments, *SMALL.get(command, []), cwd=folder, env=environment(PYTHONPATH=str(folder / "site"))
        )
        assert done.returncode == 0, (line, done.stderr)
        assert "Traceback" not in done.stderr
    require_unseen(folder, trained="--save-to" in session)
    for run in folder.glob("**/requests.jsonl"):
        assert {"run.json", "summary.json", "report.md"} <= {path.name for path in run.parent.iterdir()}
        lossless = read_object(run.parent / "summary.json")["lossless"]
        assert lossless is None or lossless["lossless"]


def require_unseen(folder: Path, trained: bool) -> None:
    """What was trained here is what `wisp` decodes with, on prompts that it did not learn from."""
    runs = [path.parent for path in folder.glob("*/*/run.json") if read_object(path).get("method", "").endswith("mine")]
    assert bool(runs) == trained
    for run in runs:
        learned = set(read_object(folder / "mine" / "predictor.json")["training"]["prompts"])
        prompts = {prompt.id: prompt.fingerprint for prompt in read_prompts(SAMPLES / "gsm8k.jsonl")}
        decoded = {prompts[row["request_id"]] for row in read_rows(run / "requests.jsonl")}
        assert decoded
        assert learned
        assert not decoded & learned
        assert read_object(run / "run.json")["uses"]["predictor"]["family"]


def test_the_example_method_is_found_as_one_file_of_the_package(tiny: TinyPair, folder: Path) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "ramp.py").write_text(example()[0])
    code = (
        "import sys, specbench_kit.methods as package\n"
        f"package.__path__.append({str(inside)!r})\n"
        "from specbench_kit.cli.main import main\n"
        "main()\n"
    )
    command = ["bench", "--method", "ramp:start=2,longest=5", "--dataset", "prompts.jsonl", "--batch-size", "2"]
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
    lengths = {step["drafted"] for row in read_rows(run / "requests.jsonl") for step in row["rounds"]}
    assert lengths <= {1, 2, 3, 4, 5}
    assert len(lengths) > 1


def test_the_example_method_refuses_what_it_cannot_do(folder: Path) -> None:
    done = subprocess.run(
        [SKIT, "bench", "--method", "ramp:start=0"],
        env=environment(PYTHONPATH=str(folder / "site")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "error: ramp: start must lie between 1 and longest\n")


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_methods_in_the_table_are_there() -> None:
    named = re.findall(r"^\| `([^`]+)` \|", section("Methods"), re.MULTILINE)
    assert {"autoregressive", "fixed-k"} <= set(named) <= set(methods.all())
    assert all(parse_method(name) for name in named)


def test_the_layout_names_folders_that_are_there() -> None:
    lines = section("Layout").splitlines()
    for line in lines:
        if found := re.match(r"(  )?(\w+)/", line):
            assert (ROOT / ("specbench_kit" if found[1] else "") / found[2]).is_dir()


def test_links_lead_to_files_that_are_there() -> None:
    places = [place for place in re.findall(r"\]\(([^)]+)\)", README) if not place.startswith("https://")]
    assert places
    assert all((ROOT / place.partition("#")[0]).is_file() for place in places)

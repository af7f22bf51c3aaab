"""Options declared once: as fields of settings they are options of a command, keys of a file, and keywords."""

import json
import re
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal

import pytest
from command_line import error_line, skit_here
from run_builders import write_methods
from typer.testing import CliRunner

from specbench_kit.cli.command import Command
from specbench_kit.cli.command_option import CommandOption
from specbench_kit.cli.commands import commands
from specbench_kit.cli.main import app
from specbench_kit.cli.progress import stepping_bar
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import RUN, Given, Option
from specbench_kit.serving.number_lists import parse_devices
from specbench_kit.serving.options import ServingOptions, SimulationOptions

RUNNER = CliRunner()


@dataclass(frozen=True)
class Walk:
    """A walk with everything that an option can be."""

    where: Annotated[str, Option("Where to.", RUN)]
    steps: Annotated[int, Option("How many.", RUN)] = 7
    pace: Annotated[Literal["slow", "fast"], Option("How fast.", RUN)] = "slow"
    back: Annotated[bool, Option("Whether to come back.", RUN)] = True
    dogs: Annotated[tuple[str, ...], Option("Who comes along.", RUN, flag="dog")] = ()
    days: Annotated[tuple[int, ...], Option("On which days.", RUN, parse=parse_devices)] = (1, 3)
    rain_mm: Annotated[float | None, Option("How much.", RUN, flag="rain")] = None
    inner: int = 0


Loud = Annotated[bool, Option("Whether to sing.", RUN)]


def go(walk: Given[Walk], loud: Loud = False) -> None:
    print(walk.make(), loud)


@pytest.fixture
def walk() -> Command:
    return Command("go", go, "Go for a walk.")


def told(command: Command, *arguments: str) -> str:
    """Return what a command prints."""
    with redirect_stdout(StringIO()) as output, suppress(SystemExit):
        command.main(list(arguments), prog_name="go")
    return output.getvalue().strip()


@pytest.mark.parametrize(
    ("kind", "told", "read"),
    [
        (Path, "a/b", Path("a/b")),
        (Path | None, "a/b", Path("a/b")),
        (tuple[Path, ...], ["a", "b"], (Path("a"), Path("b"))),
        (tuple[str, ...], ["a"], ("a",)),
        (str, "a", "a"),
    ],
)
def test_paths_are_paths_where_typer_leaves_them_texts(
    kind: object, told: object, read: object
) -> None:
    """Typer before 0.29 makes paths only for functions that it calls itself, and the minimum is older."""
    value = CommandOption("where", kind, Option("Where to.", RUN), None).read(told)
    assert value == read
    assert type(value) is type(read)


def write(folder: Path, text: str) -> str:
    path = folder / "options.toml"
    path.write_text(text)
    return str(path)


def test_what_is_left_out_has_the_fields_default(walk: Command) -> None:
    assert told(walk, "--where", "home") == f"{Walk('home')} False"


def test_command_line_and_file_say_the_same_as_keywords(walk: Command, tmp_path: Path) -> None:
    expected_walk = Walk(
        "hill", 3, "fast", back=False, dogs=("a", "b"), days=(2, 4, 6), rain_mm=1.5
    )
    line = "--where hill --steps 3 --pace fast --no-back --dog a --dog b --days 2:6:2 --rain 1.5 --loud"
    file = write(
        tmp_path,
        'where = "hill"\nsteps = 3\npace = "fast"\nback = false\ndog = ["a", "b"]\n'
        'days = "2:6:2"\nrain = 1.5\nloud = true',
    )
    assert told(walk, *line.split()) == told(walk, "--config", file) == f"{expected_walk} True"


def test_the_command_line_goes_before_the_file(walk: Command, tmp_path: Path) -> None:
    file = write(tmp_path, 'where = "hill"\nsteps = 3\ndog = ["a", "b"]\nback = false')
    for arguments in (
        ["--config", file, "--steps", "5", "--dog", "c"],
        ["--dog", "c", "--steps", "5", "--config", file],
    ):
        assert told(walk, *arguments) == f"{Walk('hill', 5, back=False, dogs=('c',))} False"


def test_help_tells_defaults_and_every_choice(walk: Command) -> None:
    help_text = told(walk, "--help")
    assert all(
        text in help_text
        for text in (
            "--no-back",
            "--dog",
            "--rain",
            "[default: 7]",
            "[default: slow]",
            "[default: 1,3]",
            "--config",
        )
    )
    assert "inner" not in help_text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepps = 3", "unknown option 'stepps' (did you mean 'steps'?)"),
        ("zzz = 3", "unknown option 'zzz'; known: back, days, dog, loud, pace, rain, steps, where"),
        ("inner = 3", "unknown option 'inner'"),
        ("steps = [3]", "steps takes one value, not a list"),
        ("steps = true", "steps must be a text or a number, not True"),
        ("back = 1", "back must be true or false, not 1"),
        ("[steps]\nmany = 3", "steps must be a text, a number, true or false"),
        ("steps = ", "not a TOML file"),
        ('where = "x"\npace = "idle"', "--pace must be slow or fast, not 'idle'"),
    ],
)
def test_a_bad_file_is_one_line(walk: Command, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SkitError) as refused:
        told(walk, "--config", write(tmp_path, text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_command_takes_a_file(tmp_path: Path) -> None:
    """A key that none of them knows is refused by each, so each has read it."""
    file = write(tmp_path, "no_such_option = 1")
    for name in commands.all():
        with pytest.raises(SkitError, match="unknown option 'no_such_option'"):
            RUNNER.invoke(app, [name, "--config", file], catch_exceptions=False)


def test_a_simulation_from_a_file_is_that_of_the_command_line(tmp_path: Path) -> None:
    line = "--acceptance iid:alpha=0.8,length=4 --devices 4,8 --duration 10 --warm-up 1 --seeds 1 --jobs 1"
    lengths = "--prompt-tokens 50 --output-tokens 20 --system sled --system wisp"
    file = write(
        tmp_path,
        'acceptance = ["iid:alpha=0.8,length=4"]\ndevices = "4,8"\nduration = 10\nwarm-up = 1\nseeds = 1\njobs = 1\n'
        'prompt_tokens = 50\noutput_tokens = 20\nsystem = ["sled", "wisp"]\nout = "elsewhere"\n',
    )
    rows = []
    for arguments in ([*line.split(), *lengths.split()], ["--config", file]):
        done = RUNNER.invoke(
            app, ["simulate", *arguments, "--out", str(tmp_path), "--json"], catch_exceptions=False
        )
        rows.append(json.loads(done.stdout.splitlines()[-1])["summary"]["rows"])
    assert rows[0] == rows[1]
    assert [(row["series"], row["devices"]) for row in rows[0]] == [
        (n, d) for n in ("sled", "wisp") for d in (4, 8)
    ]


def test_what_is_saved_gives_the_same_again(walk: Command, tmp_path: Path) -> None:
    saved, line = (
        tmp_path / "kept" / "walk.toml",
        "--steps 3 --no-back --dog a --dog b --days 2:6:2 --rain 1.5 --loud",
    )
    file = write(tmp_path, 'where = "hill"\nsteps = 9')
    told(walk, "--config", file, *line.split(), "--save-config", str(saved))
    assert saved.read_text().count("=") == 7
    assert told(walk, "--config", str(saved)) == told(walk, "--where", "hill", *line.split())


def test_a_saved_report_is_made_again(tmp_path: Path) -> None:
    """Places on the command line, such as the runs of a report, are kept like options."""
    out, saved = tmp_path / "report", tmp_path / "report.toml"
    runs = [str(path) for path in write_methods(tmp_path / "runs")[:2]]
    line = [*runs, "--out", str(out), "--format", "csv", "--save-config", str(saved)]
    assert RUNNER.invoke(app, ["report", *line], catch_exceptions=False).exit_code == 0
    first = (out / "report.csv").read_bytes()
    (out / "report.csv").unlink()
    assert (
        RUNNER.invoke(app, ["report", "--config", str(saved)], catch_exceptions=False).exit_code
        == 0
    )
    assert (out / "report.csv").read_bytes() == first


def test_settings_are_keywords_in_python() -> None:
    assert (SimulationOptions(devices=(3,)).devices, ServingOptions(system=("sled",)).seeds) == (
        (3,),
        5,
    )


@dataclass(frozen=True)
class Sampled:
    """The sampling options that a paper may state."""

    temperature: Annotated[float, Option("Of the target.", RUN)] = 0.0
    top_p: Annotated[float, Option("Nucleus.", RUN)] = 1.0
    top_k: Annotated[int, Option("Of the likeliest.", RUN)] = 0
    max_new_tokens: Annotated[int, Option("Longest answer.", RUN)] = 128


def sample(sampled: Sampled) -> None:
    print(sampled)


def test_what_a_paper_samples_with_goes_by_its_name() -> None:
    command = Command("go", sample, "Sample.")
    assert told(command, "--config", "specpipe-sampling") == str(Sampled(0.6, 0.9, 80))
    assert told(command, "--config", "specedge-sampling", "--top-k", "5") == str(
        Sampled(0.7, 1.0, 5, 256)
    )


def test_a_number_with_a_unit_is_shown() -> None:
    arguments = ["load", "--server", "localhost:1", "--trace", "t.parquet", "--duration", "40ms"]
    # How it goes on depends on the version of Typer.
    assert re.match(
        r"skit load: invalid value for '--duration': .*'40ms'.*; for example: ",
        error_line(skit_here(*arguments)),
    )


@pytest.mark.parametrize(
    "asked", [["record"], ["tune", "--replay", "t.parquet", "--method", "fixed-k"]]
)
def test_a_folder_for_a_file_is_refused_before_the_work(asked: list[str], tmp_path: Path) -> None:
    with pytest.raises(SkitError, match="is a folder: give the file to be written"):
        RUNNER.invoke(app, [*asked, "--out", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(
        SkitError, match=r"must end in \.(parquet|json), as it is one file: give .*/new/"
    ):
        RUNNER.invoke(app, [*asked, "--out", str(tmp_path / "new")], catch_exceptions=False)


def test_nothing_is_left_of_a_bar_that_never_began(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SkitError), stepping_bar():
        raise SkitError("nothing to do")
    assert capsys.readouterr().err == ""

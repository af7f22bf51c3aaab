"""Tables that say of every option of a command what it changes, and the runs that show it.

A table is a TOML file in `cli/option_tables` with the name of its command:

- `[base.NAME]` is a command line without the option: its `arguments`, and in `shows` what a change is looked for in,
  unless a case says otherwise. The first base is the usual one.
- `cases` are lines such as `{ option = "--top-k", to = ["5"], base = "sampled" }`: the option and its values are added
  to the base, or `instead` replaces the base's arguments; `with` is added on both sides. Something in what the case
  `shows` has to change, or the command ends with a line that contains what it `says`.
  What needs a processor with AVX512-BF16 is `narrow`.
- `[refused.BASE]` maps options to values that the base refuses, in one line that names the option.
- `[exempt]` maps options that cannot be tried so to the reason.

What can be shown: `exit`, `stdout`, `stderr`, `files` (the names of all files), or result files by a pattern, with a
path to a part of a JSON document behind a `#`. What only repeats the command line is left out of documents.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from command_line import HOME, skit_here

TABLES = Path(__file__).with_name("cli") / "option_tables"
ECHO = frozenset(
    {
        "argv",
        "config",
        "options",
        "started_at",
        "finished_at",
        "versions",
        "git_commit",
        "git_dirty",
    }
)
"""Keys of documents that repeat what was given, or say when and where."""
VARIABLE = re.compile(
    r"\d{8}T\d{6}Z|\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)?|-[0-9a-f]{8}\b|\d+\.\d min"
)
"""Points in time, the key at the end of a run folder's name, and the minutes of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCase:
    """One option with a value that changes what `shows` names, or is refused with a line that contains `says`."""

    command: str
    option: str
    base: str = ""
    to: tuple[str, ...] = ()
    flag: str = ""
    besides: tuple[str, ...] = ()
    instead: tuple[str, ...] | None = None
    shows: str = ""
    says: str = ""
    nightly: bool = False
    after_work: bool = False
    """Nothing but the work shows that the command cannot go on."""
    narrow: bool = False
    """It needs the executor for narrow products, which not every processor can run."""

    @property
    def name(self) -> str:
        """The id of the test."""
        return "-".join(
            filter(
                None, (self.command, self.option.lstrip("-"), self.base, self.says and "refused")
            )
        )


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The table of a command."""

    command: str
    bases: Mapping[str, Mapping[str, Any]]
    cases: tuple[OptionCase, ...]
    exempt: Mapping[str, str]

    @property
    def options(self) -> list[str]:
        """Every option that the table knows."""
        return [*dict.fromkeys(case.option for case in self.cases), *self.exempt]


def read_tables() -> dict[str, OptionTable]:
    """Return all tables by the names of their commands."""
    return {file.stem: _read_table(file) for file in sorted(TABLES.glob("*.toml"))}


def _read_table(file: Path) -> OptionTable:
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    command, bases = file.stem, content.pop("base", {})
    usual = next(iter(bases), "")
    cases = []
    for row in content.pop("cases", []):
        base = row.pop("base", usual)
        texts = {name: row.pop(name) for name in ("option", "flag", "shows", "says") if name in row}
        texts["shows"] = texts.get("shows") or bases[base].get("shows", "")
        to, besides = tuple(row.pop("to", ())), tuple(row.pop("with", ()))
        instead = row.pop("instead", None)
        settings: dict[str, Any] = {
            "instead": None if instead is None else tuple(instead),
            "nightly": row.pop(
                "nightly", bases[base].get("nightly", False) and not texts.get("says")
            ),
            "after_work": row.pop("after_work", False),
            "narrow": row.pop("narrow", False),
        }
        assert not row, f"{file.name}: unknown {', '.join(row)}"
        cases.append(
            OptionCase(command=command, base=base, to=to, besides=besides, **texts, **settings)
        )
    for base, refused in content.pop("refused", {}).items():
        for flag, to in refused.items():
            option = flag.replace("--no-", "--") if flag.startswith("--no-") else flag
            says = f"{flag} "
            cases.append(
                OptionCase(
                    command=command, option=option, flag=flag, base=base, to=tuple(to), says=says
                )
            )
    exempt = content.pop("exempt", {})
    assert not content, f"{file.name}: unknown {', '.join(content)}"
    return OptionTable(command, bases, tuple(cases), exempt)


@dataclass(frozen=True, slots=True)
class Observation:
    """The exit code, the output and the folder that a command left."""

    exit: int
    stdout: str
    stderr: str
    folder: Path

    def shown(self, what: str) -> str:
        """Return the part that `what` names, without what differs from run to run."""
        if what in ("exit", "stdout", "stderr"):
            return self._lasting(str(getattr(self, what)))
        if what == "files":
            return "\n".join(sorted({self._lasting(str(file)) for file in self._files("**/*")}))
        pattern, _, path = what.partition("#")
        files = self._files(f"**/{pattern}")
        assert files, f"no file {pattern} in {self.shown('files')}"
        return "\n".join(sorted(self._lasting(self._content(file, path)) for file in files))

    def _files(self, pattern: str) -> list[Path]:
        return [file for file in self.folder.glob(pattern) if file.is_file()]

    def _content(self, file: Path, path: str) -> str:
        if file.suffix == ".parquet":
            import pandas

            return str(pandas.read_parquet(file).to_csv())
        text = file.read_bytes().decode("utf-8", "replace")
        if file.suffix == ".jsonl":
            return "\n".join(_part(json.loads(line), path) for line in text.splitlines())
        return _part(json.loads(text), path) if file.suffix == ".json" else text

    def _lasting(self, text: str) -> str:
        return VARIABLE.sub("*", text.replace(str(self.folder), "FOLDER"))


def _part(document: object, path: str) -> str:
    """Return the part of a document at a path of keys, which passes through lists, as text."""
    for key in filter(None, path.split(".")):
        document = (
            [_entry(part, key) for part in document]
            if isinstance(document, list)
            else _entry(document, key)
        )
    return json.dumps(_without_echo(document), indent=1, sort_keys=True)


def _entry(document: object, key: str) -> Any:
    """Return the entry of a document; None where it has no such entry."""
    return document.get(key) if isinstance(document, dict) else None


def _without_echo(document: object) -> Any:
    if isinstance(document, dict):
        return {name: _without_echo(value) for name, value in document.items() if name not in ECHO}
    return [_without_echo(value) for value in document] if isinstance(document, list) else document


@dataclass
class OptionRuns:
    """Runs commands in folders of their own below `root`; equal command lines run once."""

    root: Path
    inputs: Mapping[str, str]
    done: dict[tuple[str, ...], Observation] = field(default_factory=dict)

    def base(self, table: OptionTable, case: OptionCase) -> Observation:
        """Return what the command does without the option."""
        return self.run(table.command, [*table.bases[case.base]["arguments"], *case.besides])

    def changed(self, table: OptionTable, case: OptionCase) -> Observation:
        """Return what the command does with the option."""
        arguments = table.bases[case.base]["arguments"] if case.instead is None else case.instead
        is_argument = not case.option.startswith("--")
        spelt_out = is_argument or (
            case.instead is not None and case.option in case.to + case.instead
        )
        option_arguments = case.to if spelt_out else (case.flag or case.option, *case.to)
        return self.run(table.command, [*arguments, *case.besides, *option_arguments])

    def run(self, command: str, arguments: list[str], again: bool = False) -> Observation:
        """Run a command once, in a new folder, which is also the user's own."""
        line = (command, *(text.format_map(self.inputs) for text in arguments))
        if again or line not in self.done:
            folder = self.root / f"{command}-{len(list(self.root.iterdir()))}"
            folder.mkdir()
            with _inside(folder):
                done = skit_here(*line)
            observed = Observation(done.returncode, done.stdout, done.stderr, folder)
            if again:
                return observed
            self.done[line] = observed
        return self.done[line]


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Make a folder the current one and the user's own."""
    before = Path.cwd()
    os.chdir(folder)
    os.environ["SKIT_HOME"] = str(folder / "home")
    try:
        yield
    finally:
        os.chdir(before)
        os.environ["SKIT_HOME"] = HOME.name


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let `skit serve` write what its server holds where it would wait for devices until it is stopped."""
    from google.protobuf.json_format import MessageToDict

    from specbench_kit.live.protocol.verification_pb2 import Hello
    from specbench_kit.live.server import run
    from specbench_kit.live.wire import Refusal

    def written(_settings: Any, service: Any, _ready: Any) -> None:
        handler = service.handler
        try:
            account = handler.admission.caller(Hello(token=""), "ipv4:127.0.0.1:5").account
            device = {"sessions": account.most_sessions, "streams": account.most_streams}
        except Refusal as refusal:
            device = {"refused": str(refusal)}
        facts = {
            "welcome": MessageToDict(handler.welcome),
            "limits": asdict(handler.limits),
            "device": device,
            "executor": type(handler.batch_runner.scorer.runner.executor).__name__,
        }
        Path("service.json").write_text(json.dumps(facts), encoding="utf-8")

    original, run.serve = run.serve, written
    try:
        yield
    finally:
        run.serve = original


@contextmanager
def without_pictures() -> Iterator[None]:
    """Replace the drawing of figures, which takes most of the time, by pictures that name what would be drawn."""
    import sys

    from specbench_kit.reports.writing import drawing

    def draw(
        picture: Any, _setting: str, formats: Any, *, bare: bool = False, size: str = "screen"
    ) -> Any:
        text = f"{picture.name}, {'bare' if bare else 'titled'}, as wide as a {size}"
        return {suffix: _blank(text) for suffix in formats}

    original = drawing.draw

    def swap(old: Any, new: Any) -> None:
        # Modules hold the function by its name, those included that are imported meanwhile.
        for module in [
            module for name, module in sys.modules.items() if name.startswith("specbench_kit")
        ]:
            if getattr(module, original.__name__, None) is old:
                setattr(module, original.__name__, new)

    swap(original, draw)
    try:
        yield
    finally:
        swap(draw, original)


def _blank(text: str) -> bytes:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><title>{text}</title></svg>'.encode()

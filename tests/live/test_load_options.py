"""Every option of `skit load` and `skit profile-server` changes what is measured, at a server that answers.

The tables in `cli/option_tables` have what both commands refuse. Times differ from run to run, so that each option is
looked for in what does not: who asks, when requests arrive, what a device drafts, and by when it needs the answer.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import live_server
import pandas as pd
import pytest
from command_line import TinyPair, copy_model, read_object, skit_here
from live_server import DESCRIPTION, serving
from load_inputs import LENGTH, MODELS, PROFILE, PROMPTS, request
from nightly import nightly_except
from option_cases import read_tables
from tiny_models import tiny_llama
from trace_builders import write_trace
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import tokenizer_hash
from specbench_kit.profilers import loading
from specbench_kit.studies.server_profile.run import LoadGenerator, ObservedRound, SessionLoad

pytestmark = pytest.mark.slow

SHORT = 12


@dataclass(frozen=True)
class Loaded:
    """The output and the folder of one `skit load`."""

    folder: Path
    stdout: str

    @property
    def row(self) -> JsonObject:
        """The summary of the last load."""
        row: JsonObject = read_object(self.folder / "summary.json")["rows"][-1]
        return row

    @cached_property
    def rounds(self) -> pd.DataFrame:
        return self._events("rounds")

    @cached_property
    def responses(self) -> pd.DataFrame:
        return self._events("responses")

    def _events(self, kind: str) -> pd.DataFrame:
        (path,) = (self.folder / "events").glob(f"*-{kind}.parquet")
        return pd.read_parquet(path)

    @property
    def lengths(self) -> set[int]:
        return set(self.responses.tokens)

    @property
    def starts(self) -> list[float]:
        return sorted(round(start, 9) for start in self.responses.start_s)

    @property
    def promise_s(self) -> float:
        """Seconds from the first request of device 0 to the deadline of its first round."""
        first, responses = (table[table.client == 0] for table in (self.rounds, self.responses))
        return round(float(first.deadline_s.iloc[0] - responses.start_s.min()), 6)

    def rounds_after(self, second: float) -> int:
        return int((self.rounds.answered_s >= second).sum())


AT_A_RATE = ("--devices", "4", "--rate", "30")
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Loaded, Loaded], bool]]] = {
    "--trace": (
        (),
        ("--trace", "{short}"),
        lambda base, new: (base.lengths, new.lengths) == ({LENGTH}, {SHORT}),
    ),
    "--method": (
        (),
        ("--method", "fixed-k:k=1"),
        lambda base, new: (base.rounds.drafted.max(), new.rounds.drafted.max()) == (2, 1),
    ),
    "--devices": (
        (),
        ("--devices", "1"),
        lambda base, new: (base.rounds.client.nunique(), new.rounds.client.nunique()) == (2, 1),
    ),
    "--rate": (
        (),
        AT_A_RATE,
        lambda base, new: new.row["rate"] == 30 and new.starts != base.starts,
    ),
    "--seed": (AT_A_RATE, ("--seed", "5"), lambda base, new: new.starts[:3] != base.starts[:3]),
    "--duration": (
        AT_A_RATE,
        ("--duration", "1.6"),
        lambda base, new: new.starts[: len(base.starts)] == base.starts != new.starts,
    ),
    "--slo": (
        (),
        ("--slo", "class-1"),
        lambda base, new: (base.promise_s, new.promise_s) == (0.5, 1.0),
    ),
    "--warm-up": (
        (),
        ("--warm-up", "0.6"),
        lambda _, new: (
            new.row["figures"]["overall"]["rounds"] <= new.rounds_after(0.6) < len(new.rounds)
        ),
    ),
    "--baseline": (
        (),
        ("--baseline",),
        lambda base, new: "plain" not in base.row and new.row["plain"]["answers"]["rounds"] > 0,
    ),
    "--draft-s": (
        (),
        ("--draft-s", "0.01"),
        lambda base, new: new.rounds.draft_s.max() == pytest.approx(10 * base.rounds.draft_s.max()),
    ),
    "--link": ((), ("--link", "rtt_s=0.05"), lambda _, new: new.row["round_s"]["p50"] >= 0.05),
    "--profile": (
        (),
        ("--profile", "{slower}"),
        lambda base, new: new.row["estimate"] == pytest.approx(base.row["estimate"] / 10),
    ),
    "--out": (
        (),
        ("--out", "{elsewhere}"),
        lambda base, new: base.folder.parent != new.folder.parent,
    ),
    "--json": (
        (),
        ("--json",),
        lambda _, new: "summary" in json.loads(new.stdout.splitlines()[-1]),
    ),
}
"""By option: what goes with it on both sides, how it is given, and what it changes."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("load")
    write_trace(folder / "trace.parquet", [request(*prompt) for prompt in PROMPTS], MODELS)
    write_trace(
        folder / "short.parquet", [request(*prompt, length=SHORT) for prompt in PROMPTS], MODELS
    )
    (folder / "profile.toml").write_text(PROFILE)
    (folder / "slower.toml").write_text(PROFILE.replace("1e-4", "1e-3").replace("1e-2", "1e-1"))
    names = {
        "trace": "trace.parquet",
        "short": "short.parquet",
        "profile": "profile.toml",
        "slower": "slower.toml",
    }
    return {name: str(folder / file) for name, file in names.items()} | {
        "elsewhere": str(folder / "elsewhere")
    }


class LoadRuns:
    """Runs of `skit load` at one server; equal options run once."""

    def __init__(self, folder: Path, address: str, inputs: Mapping[str, str]) -> None:
        self.folder, self.address, self.inputs = folder, address, inputs
        self.done: dict[tuple[str, ...], Loaded] = {}

    def run(self, *options: str) -> Loaded:
        """Return what a load with these options left."""
        if options not in self.done:
            usual = {
                "--server": self.address,
                "--trace": "{trace}",
                "--profile": "{profile}",
                "--slo": "class-2",
                "--method": "fixed-k:k=2",
                "--devices": "2",
                "--duration": "0.8",
                "--warm-up": "0.2",
                "--draft-s": "0.001",
                "--out": str(self.folder / str(len(self.done))),
            }
            options_given = usual | dict(zip(options[::2], options[1::2], strict=False))
            flags = [options[-1]] if len(options) % 2 else []
            line = [text.format_map(self.inputs) for pair in options_given.items() for text in pair]
            done = skit_here("load", *line, "--events", *flags)
            assert done.returncode == 0, done.stderr
            (folder,) = Path(options_given["--out"].format_map(self.inputs)).iterdir()
            self.done[options] = Loaded(folder, done.stdout)
        return self.done[options]


@pytest.fixture(scope="module")
def runs(inputs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadRuns]:
    with serving() as (_, address):
        yield LoadRuns(tmp_path_factory.mktemp("runs"), address, inputs)


@pytest.mark.parametrize("option", nightly_except([*CASES][::2], CASES))
def test_an_option_of_a_load_changes_what_is_measured(option: str, runs: LoadRuns) -> None:
    besides, changed_options, is_changed = CASES[option]
    base, changed = runs.run(*besides), runs.run(*besides, *changed_options)
    assert is_changed(base, changed)


def test_every_round_is_kept_only_where_events_are_asked_for(
    runs: LoadRuns, inputs: dict[str, str], tmp_path: Path
) -> None:
    times = ("--duration", "0.5", "--warm-up", "0.1", "--draft-s", "0.001", "--devices", "1")
    arguments = (
        "--server",
        runs.address,
        "--trace",
        inputs["trace"],
        "--profile",
        inputs["profile"],
    )
    assert skit_here("load", *arguments, *times, "--out", tmp_path).returncode == 0
    assert not list(tmp_path.glob("*/events/*"))
    assert list(runs.run().folder.glob("events/*"))


def test_the_options_that_the_table_leaves_to_this_file_are_tried_here() -> None:
    exempt = {
        name
        for name, reason in read_tables()["load"].exempt.items()
        if Path(__file__).name in reason
    }
    assert exempt <= CASES.keys() | {"--events"}


class ProfilingServer:
    """A server whose target has the tiny pair's tokenizer, and what loads it is put under."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loads: list[tuple[int, float]] = []

    def profile(self, to: Path, target: Path, **changes: str) -> str:
        """Profile it and return the error line, "" if none; `loads` are those of this profile."""
        self.loads.clear()
        arguments = {
            "server": self.address,
            "to": to,
            "target": target,
            "sessions": "2",
            "window": "0.02",
        } | changes
        done = skit_here(
            "profile-server",
            *(text for name, value in arguments.items() for text in (f"--{name}", value)),
        )
        return done.stderr.splitlines()[-1] if done.returncode else ""


@pytest.fixture(scope="module")
def server(tokenizer: PreTrainedTokenizerBase) -> Iterator[ProfilingServer]:
    welcome = messages.Welcome()
    welcome.CopyFrom(DESCRIPTION)
    welcome.tokenizer = tokenizer_hash(tokenizer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live_server, "DESCRIPTION", welcome)
        with serving(target_model=tiny_llama(vocab_size=len(tokenizer))) as (_, address):
            server, rounds = ProfilingServer(address), LoadGenerator.rounds

            def counted(
                generator: LoadGenerator, load: SessionLoad, seconds: float
            ) -> list[ObservedRound]:
                server.loads.append((load.sessions, seconds))
                return rounds(generator, load, seconds)

            patched.setattr(LoadGenerator, "rounds", counted)
            yield server


@pytest.mark.nightly  # test_profile_server.py profiles a server, and refuses what it cannot do
def test_the_options_of_a_profile_change_how_a_server_is_loaded(
    server: ProfilingServer, tiny: TinyPair, tmp_path: Path
) -> None:
    assert server.profile(tmp_path / "a.toml", tiny.target) == ""
    base = list(server.loads)
    assert loading.load(str(tmp_path / "a.toml")).name == "a"
    assert max(sessions for sessions, _ in base) == 2
    assert server.profile(tmp_path / "b.toml", tiny.target, sessions="3", window="0.04") == ""
    assert max(sessions for sessions, _ in server.loads) == 3
    assert {seconds for _, seconds in server.loads} == {2 * seconds for _, seconds in base}


def test_a_profile_with_a_tokenizer_that_the_server_does_not_have_is_refused(
    server: ProfilingServer, tiny: TinyPair, tmp_path: Path
) -> None:
    model = copy_model(tiny.target, tmp_path / "other")
    changed = AutoTokenizer.from_pretrained(model)
    changed.add_tokens(["<|new|>"])
    changed.save_pretrained(model)
    assert "WRONG_VOCABULARY" in server.profile(tmp_path / "a.toml", model)
    assert server.loads == []

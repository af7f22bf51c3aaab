"""Produce results/reference/live: python scripts/live_reference.py [--only PART] [--pages] [--out FOLDER].

Server and load run on one core each. Validation: a profile of the server over the network, then four schedulers below,
at and above the knee, each compared with the simulator. Links: every round-based method over emulated links of 0, 20
and 80 ms, compared with a modelled deployment of the same figures, in time and in speedup. Both are over the same
baseline: the target decodes at the server, and its tokens are streamed. Ahead: the same for methods that draft while
they wait, over 20 and 80 ms, in results/reference/live/ahead. Pair: the same for methods on the known pair,
over 20, 40 and 80 ms, in results/reference/live/pair. Measurements stay in build/reference/live, their results are
kept beside the pages, and `--pages` writes the pages again from these alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from keep_result import keep

from specbench_kit import api
from specbench_kit.core.plain_text import CsvCell, CsvRow
from specbench_kit.metrics.result_file import COMPRESSED
from specbench_kit.profilers import loading
from specbench_kit.reports.study import read
from specbench_kit.studies.load.kind import VALIDATION
from specbench_kit.studies.load.report import SIMULATED, Deviation

SKIT = [sys.executable, "-c", "from specbench_kit.cli.main import main; main()"]
BUILD = Path("build/reference/live")
SERVER_CORE, LOAD_CORE = "0", "1"

SCHEDULERS = ("fcfs", "edf", "static", "wisp-promise")
DRAFTED, DRAFT_S, CONTEXT = 4, 0.01, 160
TOKENS_A_ROUND = 3.0
DURATION_S, WARM_UP_S = float(os.environ.get("SECONDS_A_LOAD", "15")), 3
LOADS = (0.5, 1.0, 1.5)
"""Loads as shares of the knee, the number of devices that fills the server with drafting and one round's own time."""

TITLE = """# The simulator beside a real server

Each number is simulated less measured, in percent or, for violations, in points. **Bold** exceeds the tolerance: 10%
of throughput and median, 15% of P95, 3 points of violations. Simulated numbers are means over several seeds.
`withheld` is the share of the processors that the host gave to others during the load; above 2% the times do not hold.
Where the first table exceeds a tolerance and the second does not, the machine was faster or slower during the load than
during the profile. `violations` is the share of responses below their promised token speed: a negative number means
that the simulator promises too much."""

LINKS = """# Methods over a shaped link

Measured over a wire whose messages are held back on this machine, beside a deployment of the same figures: the profile
of the server, its wire's own time beside the round trip, and a profile of the draft model.
{pair}; the reports say where the machine was disturbed.
Speedups are over *AR at the server, streamed*: the target decodes by itself and pays the link once. `server-only` is
the speedup of the same method with draft and target both at the server, streamed. Bold: measured and modelled speedup
are more than 15% apart.

| round trip | method | ms per token, measured | modelled | apart in % | speedup, measured | modelled | apart in % \
| server-only, measured | modelled |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
SPEEDUP_APART = 0.15
"""The largest difference of measured and modelled speedups that counts as equal."""

TOY = ("--target", "bundled")


@dataclass(frozen=True)
class Links:
    """Methods of a pair over round trips. A method that drafts ahead cannot be offered by the server alone."""

    name: str
    target: str
    pair: str
    methods: tuple[str, ...]
    rtt_s: tuple[float, ...]
    limit: int
    max_new_tokens: int
    profile_s: int
    """How long profiling the draft model may take."""
    drafts_ahead: tuple[str, ...] = ()
    slots: int = 4

    @property
    def model(self) -> tuple[str, str]:
        return ("--target", self.target)


SMOLLM2 = Links(
    name="links",
    target="smollm2",
    pair="SmolLM2-135M with its bundled draft model, four answers of 32 tokens",
    methods=("fixed-k", "svip", "adaedl", "opt-tree", "specedge", "ssd", "prompt-lookup", "suffix"),
    rtt_s=(0.0, 0.02, 0.08),
    limit=4,
    max_new_tokens=32,
    profile_s=60,
    drafts_ahead=("specedge", "ssd"),
)
AHEAD = Links(
    name="ahead",
    target="smollm2",
    pair="SmolLM2-135M with its bundled draft model, four answers of 32 tokens",
    methods=("fixed-k:k=4", "pearl:k=4", "decoupled:k=4"),
    rtt_s=(0.02, 0.08),
    limit=4,
    max_new_tokens=32,
    profile_s=60,
    drafts_ahead=("pearl:k=4", "decoupled:k=4"),
)
KNOWN_PAIR = Links(
    name="pair",
    target="qwen2.5-coder",
    pair="Qwen2.5-Coder-1.5B-Instruct with Qwen2.5-Coder-0.5B-Instruct, two answers of 48 tokens, one core each",
    # Not `adaspec`, which a server offers only with a profile in its user's folder.
    methods=("fixed-k:k=4", "threshold", "wisp", "prompt-lookup"),
    rtt_s=(0.02, 0.04, 0.08),
    limit=2,
    max_new_tokens=48,
    profile_s=240,
)
DEPLOYMENT = """
name = "{name}"
description = "The shaped link of {name}, this machine's draft model and its server."
source = "Measured here: a profile of the server over its wire, and one of the draft model."

[drafter]
device = "this machine"
profile = "{pair}-drafter.toml"

[verifier]
device = "this machine"
profile = "server-{pair}.toml"

[link]
rtt_s = {rtt_s!r}
"""


def skit(*arguments: object, core: str = LOAD_CORE) -> None:
    subprocess.run(_pinned(core, arguments), check=True, env=_environment())


@contextmanager
def server(*options: object) -> Iterator[str]:
    """Start a server of the target that the options name on its core and yield its address."""
    command = _pinned(
        SERVER_CORE, ("serve", "--listen", "127.0.0.1:0", "--session-tokens", 512, *options)
    )
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=_environment())
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if line.startswith("listening on"):
                break
        else:
            raise SystemExit(f"the server did not start: {said[-1] if said else 'it said nothing'}")
        yield said[-1].split()[-1]
    finally:
        process.terminate()
        process.communicate()


def trace(name: str, *target: object) -> Path:
    """Return the trace, which is recorded unless it exists."""
    path = _made(BUILD) / f"trace{name}.parquet"
    if not path.exists():
        skit(
            "record",
            *target,
            "--dataset",
            "gsm8k",
            "--limit",
            12,
            "--max-new-tokens",
            48,
            "--out",
            path,
        )
    return path


def profile(name: str, *target: object, slots: int = 24) -> Path:
    """Profile the server now, because the speed of a shared machine changes within minutes."""
    path = _made(BUILD) / f"server-{name}.toml"
    if not path.exists():
        with server("--slots", slots, *target) as address:
            skit("profile-server", "--server", address, *target, "--to", path)
    return path


def drafter_profile(name: str, budget_s: int, *target: object) -> None:
    """Profile the draft model on the core that it drafts on, unless that was done."""
    if not (BUILD / f"{name}-drafter.toml").exists():
        runs = ("--runs", 2, "--out", BUILD / "profiles")
        skit(
            "profile-drafter",
            *target,
            "--budget",
            budget_s,
            *runs,
            "--name",
            name,
            "--save-to",
            _made(BUILD),
        )


def validation(out: Path) -> None:
    """Measure every scheduler at every load, beside two simulations."""
    devices, slo = _scenario(profile(SCHEDULERS[0], *TOY))
    for scheduler in SCHEDULERS:
        run, folder = _loaded(scheduler, devices, slo), out / scheduler
        skit("validate", run)
        keep(run, folder)
        skit("report", folder, "--format", "md,csv,svg")


def validation_page(out: Path) -> None:
    """Write a table of all schedulers for each of the two simulations."""
    rows = dict.fromkeys(SIMULATED, "")
    for scheduler in SCHEDULERS:
        study = read(VALIDATION, out / scheduler)
        asked = study.run.config.slo
        slo = asked if isinstance(asked, str) else ", ".join(asked)
        for row, block in zip(study.result.rows, study.run.machine, strict=True):
            for name in SIMULATED:
                apart = getattr(row, f"{name}_apart")
                cells = [scheduler, str(row.devices), *map(_shown, apart.values())]
                rows[name] += f"| {' | '.join([*cells, f'{block.steal:.1%}'])} |\n"
    head = f"| scheduler | devices | {' | '.join(apart)} | withheld |\n|{' --- |' * (len(apart) + 3)}\n"
    promised = f"Promised: {slo.removesuffix('/s')} tokens/s"
    text = f"{TITLE}\n\n{promised}; `fixed-k:k={DRAFTED}`; a drafted token takes {1000 * DRAFT_S:g} ms.\n"
    tables = [
        f"\n## {words[0].upper()}{words[1:]}\n\n{head}{rows[name]}"
        for name, words in SIMULATED.items()
    ]
    (out / "README.md").write_text("".join([text, *tables]))


def _loaded(scheduler: str, devices: list[int], slo: str) -> Path:
    """Return the run of a scheduler at every load, measured unless it exists."""
    done = BUILD / "load" / scheduler
    if not list(done.glob("*/summary.json")):
        shutil.rmtree(done, ignore_errors=True)
        by = profile(scheduler, *TOY)
        with server(
            "--slots", devices[-1], "--scheduler", scheduler, "--profile", by, *TOY
        ) as address:
            arguments = (
                "--server",
                address,
                "--trace",
                trace("", *TOY),
                "--method",
                f"fixed-k:k={DRAFTED}",
                "--slo",
                slo,
            )
            times = (
                "--draft-s",
                DRAFT_S,
                "--duration",
                DURATION_S,
                "--warm-up",
                WARM_UP_S,
                "--profile",
                by,
            )
            skit(
                "load",
                *arguments,
                *times,
                "--devices",
                ",".join(map(str, devices)),
                "--events",
                "--out",
                done,
            )
    (run,) = done.glob("*/summary.json")
    return run.parent


def links(out: Path, of: Links) -> None:
    """Benchmark methods over emulated links, and with modelled time."""
    drafter_profile(of.name, of.profile_s, *of.model)
    wire_s = loading.load(str(profile(of.name, *of.model, slots=of.slots))).fit["wire_s"]
    named = [word for method in of.methods for word in ("--method", method)]
    offered = [
        word
        for method in of.methods
        if method not in of.drafts_ahead
        for word in ("--method", method)
    ]
    asked = ("--dataset", "gsm8k", "--limit", of.limit, "--max-new-tokens", of.max_new_tokens)
    build = BUILD / of.name
    with server("--slots", of.slots, *of.model, "--draft", "auto", *offered) as address:
        for rtt_s in of.rtt_s:
            name = f"{1000 * rtt_s:g}ms"
            file = BUILD / f"{of.name}-{name}.toml"
            file.write_text(DEPLOYMENT.format(name=name, rtt_s=rtt_s + wire_s, pair=of.name))
            link = ("--link", f"rtt_s={rtt_s:g}") if rtt_s else ()
            for kind, where in (
                ("measured", ("--server", address, *link)),
                ("modelled", ("--deployment", file)),
            ):
                runs, kept = build / kind / name, out / kind / name
                if not (kept / COMPRESSED).exists():
                    shutil.rmtree(runs, ignore_errors=True)
                    skit("bench", *where, *of.model, *named, *asked, "--out", runs)
                    (joint,) = runs.glob("*-bench-*")
                    keep(joint, kept)
                    skit("report", kept, "--format", "md,csv,svg")


def links_page(out: Path, of: Links) -> None:
    """Write a table of both, by round trip and method."""
    rows = []
    for rtt_s in of.rtt_s:
        name = f"{1000 * rtt_s:g}ms"
        rows += [f"| {' | '.join([name, *one.cells()])} |" for one in compared(out, name)]
    (out / "README.md").write_text(LINKS.format(pair=of.pair) + "\n".join(rows) + "\n")


@dataclass(frozen=True)
class Both:
    """A method over a link, as it was measured and as it is modelled."""

    method: str
    measured: CsvRow
    modelled: CsvRow

    def _apart(self, metric: str) -> float:
        return _number(self.modelled[metric]) / _number(self.measured[metric]) - 1

    @property
    def time_apart(self) -> float:
        """Modelled over measured time of a token, less one."""
        return self._apart("tpot_mean_s")

    @property
    def speedup_apart(self) -> float:
        """Modelled over measured speedup, less one."""
        return self._apart("speedup")

    def cells(self) -> list[str]:
        """Return the method's row of a table."""
        pair = (self.measured, self.modelled)
        text = f"{100 * self.speedup_apart:+.1f}"
        return [
            self.method,
            *(f"{1e3 * _number(row['tpot_mean_s']):.2f}" for row in pair),
            f"{100 * self.time_apart:+.1f}",
            *(f"{_number(row['speedup']):.3f}" for row in pair),
            text if abs(self.speedup_apart) <= SPEEDUP_APART else f"**{text}**",
            *(_dash_or_speedup(row["colocated_speedup"]) for row in pair),
        ]


def compared(out: Path, rtt: str) -> list[Both]:
    """Return the methods that draft, over links of this round trip, from the results that were kept."""
    measured, modelled = (
        {str(row["spec"]): row for row in api.load(out / kind / rtt).tables["overall"]}
        for kind in ("measured", "modelled")
    )
    return [
        Both(method, row, modelled[method])
        for method, row in measured.items()
        if row["speedup"] is not None
    ]


def _dash_or_speedup(cell: CsvCell) -> str:
    return "–" if cell is None else f"{_number(cell):.3f}"


def _number(cell: CsvCell) -> float:
    assert isinstance(cell, float), "a method that was not measured"
    return cell


def _scenario(path: Path) -> tuple[list[int], str]:
    """Return the devices at the knee, and an SLO of six tenths of the token speed of a single device."""
    found = loading.load(str(path))
    model, row = found.latency(), (DRAFTED + 1, CONTEXT)
    alone_s = model.seconds([row])
    more_s, away_s = model.seconds([row, row]) - alone_s, DRAFTED * DRAFT_S + found.fit["wire_s"]
    knee = (away_s + alone_s) / more_s
    slo = f"{0.6 * TOKENS_A_ROUND / (away_s + alone_s):.0f}/s"
    return [max(2, round(load * knee)) for load in LOADS], slo


def _shown(found: Deviation) -> str:
    if found.off is None:
        return "–"
    text = f"{100 * found.off:+.1f}"
    return f"**{text}**" if found.within is False else text


def _pinned(core: str, arguments: Sequence[object]) -> list[str]:
    return ["taskset", "-c", core, *SKIT, *map(str, arguments)]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--pages", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=Path("results/reference"))
    options = parser.parse_args()
    for name, part in PARTS.items():
        if options.only in (None, name):
            if not options.pages:
                part.measure(options.out / part.folder)
            part.write_page(options.out / part.folder)


@dataclass(frozen=True)
class Part:
    """Measurements with a page of their own, and the folder of both below that of the reports."""

    folder: str
    measure: Callable[[Path], None]
    write_page: Callable[[Path], None]

    @classmethod
    def of(cls, folder: str, methods: Links) -> "Part":
        """Return the part that compares methods over links."""
        return cls(folder, partial(links, of=methods), partial(links_page, of=methods))


PARTS = {
    "validation": Part("live/validation", validation, validation_page),
    "links": Part.of("live", SMOLLM2),
    "ahead": Part.of("live/ahead", AHEAD),
    "pair": Part.of("live/pair", KNOWN_PAIR),
}


if __name__ == "__main__":
    main()

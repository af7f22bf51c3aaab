"""`skit doctor`: check the installation and the machine."""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from specbench_kit.cli.common import JsonOption, print_json
from specbench_kit.cli.exit_codes import FAILED
from specbench_kit.core.common_options import DataDir
from specbench_kit.core.errors import SkitError
from specbench_kit.core.extras import EXTRA_OF_MODULE, PURPOSES
from specbench_kit.core.option import Option
from specbench_kit.core.plain_text import one_line, summary_of
from specbench_kit.core.registry import Registry
from specbench_kit.core.version import __version__

State = Literal["ok", "note", "missing", "broken"]
MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "missing": ("missing", "yellow"),
    "broken": ("BROKEN", "bold red"),
}
"""The word and the style with which a state is printed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: its name, its state, what was found, and what to do if it is not as
    it should be.
    """

    name: str
    state: State
    found: str
    advice: str = ""


Check = Callable[[], Iterator[Finding]]
CHECKS: dict[str, Check] = {}
"""Checks by name, in the order in which they run."""


AllOption = Annotated[
    bool, Option("List the executors too, which are one line otherwise.", flag="all")
]


def doctor(data_dir: DataDir = None, every: AllOption = False, as_json: JsonOption = False) -> None:
    """Print what will run, all findings and what they come to, and exit with code 1 if one of them
    is broken.
    """
    from rich.console import Console
    from rich.text import Text

    from specbench_kit.reports.terminal_table import TerminalColumn, table_lines

    with Console(stderr=True).status("checking") as status:
        findings = list(examine(data_dir, begins=lambda name: status.update(f"checking {name}")))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        console = Console()
        console.print(Text(what_runs(findings), style="bold"))
        width = max(len(mark) for mark, _ in MARKS.values())
        names = []
        texts = []
        first_of: dict[str, str] = {}
        for finding in findings if every else with_executors_in_one(findings):
            mark, style = MARKS[finding.state]
            text = one_line("; ".join(filter(None, (finding.found, finding.advice))))
            # What nine executors lack is said once.
            first = first_of.setdefault(text, finding.name)
            text = text if first == finding.name else f"as {first}"
            names.append(Text(finding.name))
            texts.append(Text.assemble((f"{mark:<{width}}", style), f" {text}"))
        columns = [TerminalColumn(cells, is_number=False) for cells in (names, texts)]
        for line in table_lines(columns, console.width):
            console.print(line, soft_wrap=True)
        console.print(Text(what_it_comes_to(findings), style="bold"))
    if any(finding.state == "broken" for finding in findings):
        sys.exit(FAILED)


EXECUTOR = "executor "


def what_runs(findings: Sequence[Finding]) -> str:
    """Return in a sentence what `skit bench` would run here, and on what."""
    found = {finding.name: finding for finding in findings}
    cards = [finding.found for name, finding in found.items() if name.startswith("device cuda:")]
    native = found.get(f"{EXECUTOR}native")
    slow = (
        ""
        if native is None or native.state == "ok"
        else ", with transformers alone, which takes several times as long"
    )
    place = (
        cards[0]
        if cards
        else f"the processor ({found['device cpu'].found}){slow}"
        if "device cpu" in found
        else ""
    )
    target = found.get("target auto")
    if target is None or not place:
        return "skit bench does not run here: what is BROKEN below says why."
    if target.state == "ok":
        return f"skit bench runs {target.found.partition(':')[0]} here, on {place}."
    return f"skit bench runs the toy pair here, on {place}, since no real pair was fetched."


def with_executors_in_one(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with one line in place of those of all executors."""
    executors = [finding for finding in findings if finding.name.startswith(EXECUTOR)]
    absent = [finding for finding in executors if finding.state != "ok"]
    lines = []
    for finding in findings:
        if finding not in executors:
            lines.append(finding)
        elif finding is executors[0]:
            reasons: dict[str, list[str]] = {}
            for one in absent:
                reasons.setdefault(one.found, []).append(one.name.removeprefix(EXECUTOR))
            others = [f"not {', '.join(names)} ({reason})" for reason, names in reasons.items()]
            known = f"{len(executors) - len(absent)} of {len(executors)} run here"
            lines.append(
                Finding("executors", "ok", "; ".join([known, *others]), "--all describes each")
            )
    return lines


def what_it_comes_to(findings: Sequence[Finding]) -> str:
    """Return in a sentence if anything is broken, and what is missing that something needs."""
    broken = [finding.name for finding in findings if finding.state == "broken"]
    if broken:
        return f"BROKEN: {', '.join(broken)}; nothing is sure to run before this is mended."
    missing = [
        finding.name
        for finding in findings
        if finding.state == "missing" and not finding.name.startswith(EXECUTOR)
    ]
    if not missing:
        return "Nothing is broken and nothing is missing."
    return f"Nothing is broken. Missing, and only needed for what their lines say: {', '.join(missing)}."


def examine(
    data_dir: Path | None, begins: Callable[[str], None] = lambda _: None
) -> Iterator[Finding]:
    """Run all checks and yield their findings; a check that fails is a broken finding.

    `begins` is called with the name of each check before it, since some take seconds.
    """
    checks: dict[str, Check] = {**CHECKS, "data folder": partial(_data_folder, data_dir)}
    for name, check in checks.items():
        begins(name)
        try:
            yield from check()
        except SkitError as error:
            yield Finding(name, "broken", str(error))
        except (ImportError, OSError) as error:
            yield Finding(
                name,
                "broken",
                f"{type(error).__name__}: {error}".splitlines()[0],
                "reinstall the kit",
            )


def _check(name: str) -> Callable[[Check], Check]:
    """Return a decorator that adds a check."""

    def add(check: Check) -> Check:
        CHECKS[name] = check
        return check

    return add


@_check("kit")
def _check_kit() -> Iterator[Finding]:
    yield Finding(
        "specbench-kit",
        "ok",
        f"{__version__}, Python {platform.python_version()}, {platform.platform()}",
    )
    import torch
    import transformers

    yield Finding(
        "libraries", "ok", f"torch {torch.__version__}, transformers {transformers.__version__}"
    )


@_check("target auto")
def _check_fetched_pairs() -> Iterator[Finding]:
    from specbench_kit.models.catalogue import AUTO, BUNDLED, resolve_target
    from specbench_kit.models.named import NAMED_PAIRS

    if (name := resolve_target(AUTO)) != BUNDLED:
        yield Finding("target auto", "ok", f"{name}: {NAMED_PAIRS[name].summary}")
    else:
        advice = "`skit list models` shows the real ones, and `skit fetch` brings one"
        yield Finding(
            "target auto", "missing", "no real pair was fetched, so the toy pair runs", advice
        )


@_check("devices")
def _check_devices() -> Iterator[Finding]:
    import torch

    yield Finding(
        "device cpu", "ok", f"{torch.backends.cpu.get_cpu_capability()}, {_in_words(_processors())}"
    )
    if not torch.cuda.is_available():
        yield Finding("device cuda", "missing", "torch finds no GPU", "`--device cuda` needs one")
        return
    for number in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(number)
        yield Finding(
            f"device cuda:{number}", "ok", f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
        )
    from specbench_kit.models.executors.kernels import choice

    if lack := choice.missing():
        advice = "`pip install triton`: half as many kernels a layer"
        yield Finding("GPU kernels", "missing", f"torch's operations, since {lack}", advice)
    else:
        yield Finding("GPU kernels", "ok", "fused, by Triton; each model tries them first")


@_check("executors")
def _check_executors() -> Iterator[Finding]:
    from specbench_kit.models.executors.base import executors

    for name, kind in executors.all().items():
        missing = kind.missing()
        on_card = name.startswith("cuda")
        advice = (
            "it runs with --device cuda"
            if on_card
            else "it has several times the speed of `transformers` on a CPU"
        )
        summary = summary_of(kind).partition(".")[0]
        yield Finding(
            f"{EXECUTOR}{name}",
            "missing" if missing else "ok",
            missing or summary,
            advice if missing else "",
        )
    from specbench_kit.models.executors.library import byte_products

    if products := byte_products():
        yield Finding(
            "GGUF files",
            "ok",
            f"run on native-blocks, whose products this processor has: {products}",
        )
    else:
        advice = "install a C++ compiler on a processor with AVX2, then the kit again: half the time and memory"
        yield Finding(
            "GGUF files", "note", "run on native or transformers, as bf16 weights", advice
        )


@_check("threads")
def _check_threads() -> Iterator[Finding]:
    import torch

    threads = torch.get_num_threads()
    processors = _processors()
    settings = [
        f"{name}={os.environ[name]}"
        for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
        if name in os.environ
    ]
    found = f"{threads} for {_in_words(processors)}" + (
        f" ({', '.join(settings)})" if settings else ""
    )
    if threads > processors:
        advice = "more threads than processors slow each other down: set OMP_NUM_THREADS"
        yield Finding("threads", "note", found, advice)
    else:
        yield Finding("threads", "ok", found)


@_check("load")
def _check_load() -> Iterator[Finding]:
    from specbench_kit.runs.machine.probe import probe_here

    load = probe_here().system().load
    busy = load > 0.5 * _processors()
    advice = (
        "timings taken now may be wrong: such runs are marked DISTURBED MACHINE" if busy else ""
    )
    yield Finding("load", "note" if busy else "ok", f"{load:.1f} over the last minute", advice)


@_check("hub")
def _check_hub() -> Iterator[Finding]:
    from specbench_kit.core.hub import hub_reachable

    if hub_reachable():
        yield Finding("hub", "ok", "reachable")
    else:
        advice = "models and datasets can only come from local folders and the library's cache"
        yield Finding("hub", "missing", "not reachable, or forbidden by HF_HUB_OFFLINE", advice)


@_check("bundled pair")
def _check_bundled_pairs() -> Iterator[Finding]:
    from specbench_kit.models.catalogue import bundled_pairs

    for pair in bundled_pairs():
        absent = [
            str(folder)
            for folder in (pair.target, pair.draft)
            if not Path(folder, "config.json").is_file()
        ]
        if absent:
            yield Finding(
                f"pair {pair.name}", "broken", f"{', '.join(absent)} not found", "reinstall the kit"
            )
        else:
            yield Finding(f"pair {pair.name}", "ok", pair.summary)


@_check("plug-ins")
def _check_plug_ins() -> Iterator[Finding]:
    """Yield the methods, and every other kind of part that other packages bring, or fail to."""
    from specbench_kit.cli.commands import commands
    from specbench_kit.datasets.base import datasets
    from specbench_kit.decoding.drafting.base import drafters
    from specbench_kit.live.engines.base import dialects, engines
    from specbench_kit.methods.base import methods
    from specbench_kit.metrics.added import added_metrics
    from specbench_kit.models.executors.base import executors
    from specbench_kit.predictors.base import families
    from specbench_kit.serving.routers.base import routers
    from specbench_kit.serving.schedulers.base import schedulers

    registries: list[tuple[str, Registry[Any]]] = [
        ("methods", methods),
        ("commands", commands),
        ("datasets", datasets),
        ("metrics", added_metrics),
        ("drafters", drafters),
        ("predictor families", families),
        ("schedulers", schedulers),
        ("routers", routers),
        ("engines", engines),
        ("streams of servers", dialects),
        ("kinds of executors", executors),
    ]
    for name, registry in registries:
        others = registry.of_other_packages()
        own = len(registry.all()) - len(others)
        parts = [f"{own} of the kit"] if own else []
        parts += [f"of other packages {', '.join(others)}"] if others else []
        if others or registry is methods:
            yield Finding(name, "ok", ", and ".join(parts))
        for broken, reason in registry.left_out().items():
            yield Finding(
                f"{registry.kind} {broken}", "missing", reason, f"all other {name} can be used"
            )


@_check("your own")
def _check_user_folder() -> Iterator[Finding]:
    from specbench_kit.core.user_data import user_folder

    folder = user_folder("predictors").parent
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK)
    advice = (
        ""
        if writable
        else "predictors, profiles and heads cannot be saved: set SKIT_HOME to a writable folder"
    )
    yield Finding("your own", "ok" if writable else "note", str(folder), advice)


@_check("extras")
def _check_extras() -> Iterator[Finding]:
    for extra, purpose in PURPOSES.items():
        modules = [module for module, its_extra in EXTRA_OF_MODULE.items() if its_extra == extra]
        if all(map(find_spec, modules)):
            yield Finding(f"extra {extra}", "ok", purpose)
        else:
            yield Finding(
                f"extra {extra}", "missing", purpose, f"pip install 'specbench-kit[{extra}]'"
            )


def _data_folder(data_dir: Path | None) -> Iterator[Finding]:
    from specbench_kit.datasets.base import datasets

    folder = data_dir or os.environ.get("SKIT_DATA_DIR")
    if not folder:
        advice = "set --data-dir or SKIT_DATA_DIR; otherwise datasets come from the hub or are small bundled samples"
        yield Finding("data folder", "note", "not set", advice)
        return
    if not Path(folder).is_dir():
        yield Finding(
            "data folder",
            "missing",
            f"'{folder}' is not a folder",
            "correct --data-dir or SKIT_DATA_DIR",
        )
        return
    entries = datasets.all()
    present = [
        name
        for name, entry in entries.items()
        if entry.local and Path(folder, entry.local).is_file()
    ]
    absent = sorted(entries.keys() - present)
    missing = f"; not {', '.join(absent)}" if absent else ""
    advice = (
        ""
        if present
        else "`skit list datasets --json` shows the path of each dataset below this folder"
    )
    found = f"{folder} has {len(present)} of {len(entries)} datasets{missing}"
    yield Finding("data folder", "ok" if present else "note", found, advice)


def _processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_words(processors: int) -> str:
    return f"{processors} processor{'' if processors == 1 else 's'}"

"""`skit doctor`: what this installation and machine have, and what each missing part would bring."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specbench_kit.cli import options
from specbench_kit.core.common_options import DataDir
from specbench_kit.core.errors import SkitError
from specbench_kit.core.version import __version__

State = Literal["ok", "note", "missing", "broken"]
MARKS: dict[State, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "missing": ("missing", "yellow"),
    "broken": ("BROKEN", "bold red"),
}
EXTRAS = {
    "llama_cpp": ("llama-cpp", "llama.cpp beside the kit in `make benchmark`"),
    "mlflow": ("mlflow", "runs in MLflow's tracking, `skit export --format mlflow`"),
    "wandb": ("wandb", "runs for Weights & Biases, `skit export --format wandb`"),
    "ray": ("ray", "simulations shared out over a cluster, `--backend ray`"),
}
"""By module the optional dependency that holds it, and what it brings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what was found there, and what to do where it is not as it should be."""

    name: str
    state: State
    found: str
    advice: str = ""


Look = Callable[[], Iterator[Finding]]


def doctor(data_dir: DataDir = None, as_json: options.JsonOption = False) -> None:
    """Look at the installation and the machine: what is there, what is missing, and what that would bring.

    Ends with exit code 1 where something is broken that every command needs.
    """
    from rich.console import Console

    with Console(stderr=True).status("looking around"):
        findings = list(examine(data_dir))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        _print(findings)
    sys.exit(int(any(finding.state == "broken" for finding in findings)))


def examine(data_dir: Path | None) -> Iterator[Finding]:
    """Every finding; a part that cannot be looked at is a finding too."""
    looks: dict[str, Look] = {**LOOKS, "data folder": partial(_datasets, data_dir)}
    for name, look in looks.items():
        try:
            yield from look()
        except SkitError as error:
            yield Finding(name, "broken", str(error))
        except (ImportError, OSError) as error:
            yield Finding(name, "broken", f"{type(error).__name__}: {error}".splitlines()[0], "install the kit again")


def _kit() -> Iterator[Finding]:
    yield Finding("specbench-kit", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    import torch
    import transformers

    yield Finding("libraries", "ok", f"torch {torch.__version__}, transformers {transformers.__version__}")


def _executors() -> Iterator[Finding]:
    from specbench_kit.models.executors.base import executors

    for name, kind in executors.all().items():
        missing = kind.missing()
        advice = "install a C++ compiler, then the kit again: several times the speed on a CPU" if missing else ""
        summary = (kind.__doc__ or "").split(".")[0]
        yield Finding(f"executor {name}", "missing" if missing else "ok", missing or summary, advice)


def _devices() -> Iterator[Finding]:
    import torch

    yield Finding("device cpu", "ok", f"{torch.backends.cpu.get_cpu_capability()}, {_processors()} processors")
    if not torch.cuda.is_available():
        yield Finding("device cuda", "missing", "no GPU that torch can use", "`--device cuda` needs one")
        return
    for number in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(number)
        yield Finding(f"device cuda:{number}", "ok", f"{card.name}, {card.total_memory / 2**30:.0f} GiB")


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> Iterator[Finding]:
    import torch

    threads, processors = torch.get_num_threads(), _processors()
    found = f"{threads} for {processors} processors (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})"
    if threads > processors:
        yield Finding("threads", "note", found, "more threads than processors wait for each other: set OMP_NUM_THREADS")
    else:
        yield Finding("threads", "ok", found)


def _machine() -> Iterator[Finding]:
    from specbench_kit.runs.machine.probe import probe_here

    load = probe_here().system().load
    busy = load > 0.5 * _processors()
    advice = "times taken now may not hold: runs say DISTURBED MACHINE where they do not" if busy else ""
    yield Finding("load", "note" if busy else "ok", f"{load:.1f} over the last minute", advice)


def _datasets(data_dir: Path | None) -> Iterator[Finding]:
    from specbench_kit.datasets.base import datasets

    folder = data_dir or os.environ.get("SKIT_DATA_DIR")
    known = datasets.all()
    if not folder:
        advice = "--data-dir or SKIT_DATA_DIR names one; without it the hub is asked, then samples of few prompts serve"
        yield Finding("data folder", "note", "none is named", advice)
        return
    if not Path(folder).is_dir():
        yield Finding("data folder", "missing", f"'{folder}' is not a folder", "correct --data-dir or SKIT_DATA_DIR")
        return
    there = [name for name, kind in known.items() if kind.local and Path(folder, kind.local).is_file()]
    absent = sorted(known.keys() - there)
    found = f"{folder} has {len(there)} of {len(known)} datasets" + (f"; not {', '.join(absent)}" if absent else "")
    advice = "" if there else "`skit list datasets --json` tells where each is looked for"
    yield Finding("data folder", "ok" if there else "note", found, advice)


def _hub() -> Iterator[Finding]:
    from specbench_kit.core.hub import hub_reachable

    if hub_reachable():
        yield Finding("hub", "ok", "answers")
    else:
        advice = "models and datasets come from folders and the library's cache alone"
        yield Finding("hub", "missing", "out of reach, or forbidden by HF_HUB_OFFLINE", advice)


def _bundled() -> Iterator[Finding]:
    from specbench_kit.models.catalogue import bundled_pairs

    for pair in bundled_pairs():
        absent = [str(folder) for folder in (pair.target, pair.draft) if not Path(folder, "config.json").is_file()]
        if absent:
            yield Finding(f"pair {pair.name}", "broken", f"{', '.join(absent)} not there", "install the kit again")
        else:
            yield Finding(f"pair {pair.name}", "ok", pair.summary)


def _own() -> Iterator[Finding]:
    from specbench_kit.core.user_data import user_folder

    folder = user_folder("predictors").parent
    place = next(path for path in (folder, *folder.parents) if path.exists())
    writable = place.is_dir() and os.access(place, os.W_OK)
    advice = "" if writable else "predictors, profiles and heads cannot be kept: set SKIT_HOME to a folder of yours"
    yield Finding("your own", "ok" if writable else "note", str(folder), advice)


def _extras() -> Iterator[Finding]:
    for module, (extra, brings) in EXTRAS.items():
        if find_spec(module):
            yield Finding(f"extra {extra}", "ok", brings)
        else:
            yield Finding(f"extra {extra}", "missing", brings, f"pip install 'specbench-kit[{extra}]'")


LOOKS: dict[str, Look] = {
    "kit": _kit,
    "executors": _executors,
    "devices": _devices,
    "threads": _threads,
    "load": _machine,
    "hub": _hub,
    "bundled pair": _bundled,
    "your own": _own,
    "extras": _extras,
}


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specbench_kit.core.plain_text import one_line

    table = Table(box=None, pad_edge=False, show_header=False)
    for overflow in ("ignore", "ignore", "fold"):
        table.add_column(no_wrap=overflow == "ignore", overflow=overflow)
    for finding in findings:
        mark, style = MARKS[finding.state]
        words = one_line(". ".join(filter(None, (finding.found, finding.advice))))
        table.add_row(Text(finding.name), Text(mark, style=style), Text(words))
    Console().print(table)

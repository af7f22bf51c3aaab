"""A benchmark in several processes: what each adds, what a killed one leaves, and what cannot go with them."""

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from breaking_method import add_breaking, add_breaking_in
from command_line import TinyPair, write_rows
from test_bench_run import no_report, settings

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.datasets.loading import load
from specbench_kit.deployments.loading import load as load_deployment
from specbench_kit.studies.bench.campaign import NOTHING_KEPT, Campaign
from specbench_kit.studies.bench.fresh_processes import ProcessOutcome, decode_in_processes
from specbench_kit.studies.bench.lanes import Progress
from specbench_kit.studies.bench.settings import BenchSettings

PROMPTS = 6


def prompts(folder: Path) -> LoadedDataset:
    rows = [{"id": f"q{number}", "prompt": f"How many are {number}?"} for number in range(PROMPTS)]
    file = write_rows(folder / "prompts.jsonl", *rows)
    return load(str(file), data_dir=None, allow_sample=False, limit=None, seed=0)


def options(tiny: TinyPair, folder: Path, **changes: object) -> BenchSettings:
    return settings(tiny, folder, "fixed-k:k=2", **{"processes": 2, "max_new_tokens": 4, **changes})


def decode(
    asked: BenchSettings,
    report: Callable[[Progress], None] = no_report,
    tell: Callable[[str], None] = print,
) -> ProcessOutcome:
    return decode_in_processes(asked, [prompts(asked.out)], tell, report)


def test_each_process_decodes_every_request_once(tiny: TinyPair, tmp_path: Path) -> None:
    reported: list[Progress] = []
    (conclusion,) = decode(options(tiny, tmp_path), reported.append).conclusions()
    run = conclusion.directory
    expected = [(f"q{number}", process) for process in range(2) for number in range(PROMPTS)]
    assert [record.key for record in run.records()] == expected
    assert sorted(record.key for record in run.baseline_records()) == sorted(expected)
    assert [progress.done for progress in reported] == list(range(1, 4 * PROMPTS + 1))
    document = run.document
    assert (document.config.processes, document.requests) == (2, 2 * PROMPTS)
    assert document.resumptions == []
    assert len(document.machine) == len(document.warm_up.rounds) == 2
    assert conclusion.summary.partial is False
    assert conclusion.summary.overall.throughput, "the second process is no interruption"
    assert (
        "Each prompt was timed in 2 processes; intervals and verdicts cover"
        in (run.path / "report.md").read_text()
    )
    ends_s = [record.finished_s or 0.0 for record in run.records()]
    assert ends_s == sorted(ends_s)


@dataclass(frozen=True)
class Ended:
    """Prompts that end the process which reads them by a signal, as it stores a certain record of a method."""

    dataset: LoadedDataset
    folder: Path
    record: int
    signal: int

    def __reduce__(self) -> tuple[Callable[..., LoadedDataset], tuple[object, ...]]:
        return planted, (self.dataset, self.folder, self.record, self.signal)


def planted(dataset: LoadedDataset, folder: Path, record: int, number: int) -> LoadedDataset:
    """Return the prompts in a process that gets a signal before it writes the record, counted over all processes."""
    stored = sum(len(file.read_bytes().splitlines()) for file in folder.glob("*/requests.jsonl"))

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal stored
        if (
            event == "open"
            and str(arguments[0]).endswith("requests.jsonl")
            and arguments[2] & os.O_APPEND
        ):
            stored += 1
            if stored == record:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)
    return dataset


@pytest.mark.nightly  # the test above runs processes, and tests/studies/bench/test_resume.py kills a run
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_killed_process_is_one_line_and_its_run_goes_on(tiny: TinyPair, tmp_path: Path) -> None:
    asked = options(tiny, tmp_path)
    ended: Any = Ended(prompts(tmp_path), tmp_path, PROMPTS + 3, signal.SIGKILL)
    with pytest.raises(
        SkitError,
        match=r"^process 2 of 2 was ended by signal 9; finished requests are kept, --resume",
    ):
        decode_in_processes(asked, [ended], print, no_report)
    (folder,) = (file.parent for file in tmp_path.glob("*/run.json"))
    before = (folder / "requests.jsonl").read_bytes()
    assert len(before.splitlines()) == PROMPTS + 2
    (conclusion,) = decode(replace(asked, resume=True)).conclusions()
    run = conclusion.directory
    assert run.path == folder
    assert (folder / "requests.jsonl").read_bytes().startswith(before)
    assert [record.key for record in run.records()] == [
        (f"q{n}", process) for process in range(2) for n in range(PROMPTS)
    ]
    assert sorted(record.key for record in run.baseline_records()) == sorted(
        record.key for record in run.records()
    )
    assert (run.document.config.processes, run.document.requests) == (2, 2 * PROMPTS)
    assert len(run.document.resumptions) == 1, (
        "the first process had nothing to do, and notes nothing"
    )
    assert conclusion.summary.partial is False
    assert (
        "Each prompt was timed in 2 processes; intervals and verdicts cover"
        in (run.path / "report.md").read_text()
    )


@dataclass(frozen=True)
class WithBreaking:
    """Prompts that bring a method whose policy fails into the process which reads them."""

    dataset: LoadedDataset

    def __reduce__(self) -> tuple[Callable[..., LoadedDataset], tuple[object, ...]]:
        return with_breaking, (self.dataset,)


def with_breaking(dataset: LoadedDataset) -> LoadedDataset:
    """Return the prompts in a process that knows the method from now on."""
    add_breaking()
    return dataset


@pytest.mark.nightly  # test_campaign.py has such a method in one process
def test_a_method_whose_policy_fails_costs_no_process_its_work(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_breaking_in(monkeypatch)
    asked = replace(options(tiny, tmp_path), methods=("breaking", "fixed-k:k=2"))
    told: Any = WithBreaking(prompts(tmp_path))
    outcome = decode_in_processes(asked, [told], print, no_report)
    assert re.match(
        "Breaking: .*root, which was not drafted.*; the other methods went on$",
        str(outcome.problem),
    )
    records = {
        conclusion.directory.run["method"]: [
            record.key for record in conclusion.directory.records()
        ]
        for conclusion in outcome.conclusions()
    }
    assert records["fixed-k:k=2"] == [
        (f"q{number}", process) for process in range(2) for number in range(PROMPTS)
    ]
    assert records["breaking"] == [
        (f"q{number}", process) for process in range(2) for number in range(3)
    ]


@pytest.mark.nightly
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_concludes_what_was_decoded(tiny: TinyPair, tmp_path: Path) -> None:
    ended: Any = Ended(prompts(tmp_path), tmp_path, 4, signal.SIGINT)
    outcome = decode_in_processes(options(tiny, tmp_path), [ended], print, no_report)
    assert (
        outcome.problem
        == "interrupted; finished requests are kept, --resume continues with the others"
    )
    (conclusion,) = outcome.conclusions()
    assert conclusion.summary.partial
    assert {record.key for record in conclusion.directory.records()} >= {
        ("q0", 0),
        ("q1", 0),
        ("q2", 0),
    }


@dataclass(frozen=True)
class StoppedAtOnce:
    """Prompts that interrupt the process which reads them before its first answer."""

    dataset: LoadedDataset

    def __reduce__(self) -> tuple[Callable[..., LoadedDataset], tuple[object, ...]]:
        return with_interrupt, (self.dataset,)


def with_interrupt(dataset: LoadedDataset) -> LoadedDataset:
    """Return the prompts in a process whose decoding is interrupted as it begins."""

    def run(*_: object) -> None:
        raise KeyboardInterrupt

    Campaign.run = run  # type: ignore[method-assign]
    return dataset


def test_an_interrupt_before_the_first_answer_of_a_process_leaves_no_folder(
    tiny: TinyPair, tmp_path: Path
) -> None:
    stopped: Any = StoppedAtOnce(prompts(tmp_path))
    outcome = decode_in_processes(options(tiny, tmp_path), [stopped], print, no_report)
    assert (outcome.problem, outcome.interrupted) == (NOTHING_KEPT, True)
    assert outcome.conclusions() == []
    assert list(tmp_path.glob("*/run.json")) == []


@pytest.mark.nightly
def test_minutes_are_shared_out(tiny: TinyPair, tmp_path: Path) -> None:
    """Too short a time ends each process after its first turn."""
    (conclusion,) = decode(options(tiny, tmp_path, minutes=1e-9)).conclusions()
    assert [record.key for record in conclusion.directory.records()] == [("q0", 0), ("q0", 1)]
    assert conclusion.summary.partial


@pytest.mark.nightly
def test_a_problem_before_decoding_is_told_as_in_one_process(
    tiny: TinyPair, tmp_path: Path
) -> None:
    outcome = decode(options(tiny, tmp_path, resume=True))
    assert "holds no unfinished run with these settings" in (outcome.problem or "")
    assert outcome.conclusions() == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"repeats": 2}, "--repeats: each process is a repeat"),
        ({"until_decided": 0.05}, "--until-decided: it goes on with new prompts"),
        ({"timeline": True}, "--timeline: a timeline shows one process"),
        ({"server": "127.0.0.1:1"}, "--server: the server's process"),
    ],
)
def test_what_cannot_be_done_in_several_processes_is_refused(
    tiny: TinyPair, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(SkitError, match=f"--processes cannot go with {reason}"):
        options(tiny, tmp_path, **changes)


def test_modelled_time_is_the_same_in_every_process(tiny: TinyPair, tmp_path: Path) -> None:
    with pytest.raises(
        SkitError, match="--processes cannot go with --deployment: modelled time is the same"
    ):
        options(tiny, tmp_path, deployment=load_deployment("wan"))
    with pytest.raises(SkitError, match="--processes must be at least 1, not 0"):
        options(tiny, tmp_path, processes=0)

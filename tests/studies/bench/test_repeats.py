"""The same requests several times: interleaved, told apart, and completed after an interruption."""

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import TinyPair, read_rows
from msgspec import structs
from test_bench_run import DIALOGUES, interrupt, no_report, prepare, settings

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import load
from specbench_kit.metrics.run_summary import RequestCounts
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.studies.bench.lanes import Progress

Keys = list[tuple[str, int]]


def keys(run: RunDirectory) -> Keys:
    return [record.key for record in run.records()]


def test_every_request_is_asked_again_with_the_same_answer(tiny: TinyPair, tmp_path: Path) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k", "oracle", repeats=3), DIALOGUES)
    reported: list[Progress] = []
    benchmark.run(reported.append)
    assert [(progress.done, progress.planned) for progress in reported] == [
        (n, 54) for n in range(1, 55)
    ]
    plain, chains, oracle = "autoregressive", "fixed-k", "oracle"
    # The second turn is backwards, so that the oracle finds no new answer of plain decoding in it.
    turns = [
        (plain, chains, oracle),
        (chains, plain),
        (chains, oracle, plain),
        (plain, oracle, chains),
    ]
    assert [progress.method for progress in reported[:11]] == [
        name for turn in turns for name in turn
    ]
    for conclusion in benchmark.write_results():
        records = conclusion.directory.records()
        names = [f"d{number}/{turn}" for number in range(2) for turn in (1, 2, 3)]
        assert [record.key for record in records] == [
            (name, repeat) for repeat in range(3) for name in names
        ]
        for record in records:
            first = next(earlier for earlier in records if earlier.key == (record.request_id, 0))
            assert (record.prompt_ids, record.output_ids) == (first.prompt_ids, first.output_ids)
            assert [step.accepted for step in record.rounds] == [
                step.accepted for step in first.rounds
            ]
        ends_s = [record.finished_s or 0.0 for record in records]
        assert ends_s == sorted(ends_s)
        assert conclusion.summary.requests == RequestCounts(18, 18, 0)
        assert conclusion.summary.lossless.identical == 18


@pytest.mark.parametrize("after", [3, 8, 13, 20])
def test_an_interrupted_repeat_is_completed(after: int, tiny: TinyPair, tmp_path: Path) -> None:
    options = settings(tiny, tmp_path, "fixed-k", repeats=2)
    benchmark = prepare(options, DIALOGUES)
    interrupt(benchmark, after)
    (run,) = benchmark.runs.values()
    before = run.path.joinpath("requests.jsonl").read_bytes()
    resumed = prepare(replace(options, resume=True), DIALOGUES)
    assert resumed.done == after
    resumed.run(no_report)
    assert run.path.joinpath("requests.jsonl").read_bytes().startswith(before)
    assert len(keys(run)) == len(run.baseline_records()) == 12
    ends_s = [record.finished_s or 0.0 for record in run.records()]
    assert ends_s == sorted(ends_s)


def test_a_repeat_that_is_recorded_twice_and_not_alike_is_an_error(
    tiny: TinyPair, tmp_path: Path
) -> None:
    benchmark = prepare(settings(tiny, tmp_path, "fixed-k", repeats=2))
    benchmark.run(no_report)
    (run,) = benchmark.runs.values()
    run.append(structs.replace(run.records()[-1], text="other"))
    with pytest.raises(
        SkitError, match=r"requests\.jsonl:9: request 'q3', repeat 1, is recorded twice"
    ):
        run.records()


def test_repeats_define_a_run(tiny: TinyPair, tmp_path: Path) -> None:
    single, twice = (
        prepare(settings(tiny, tmp_path / str(n), "fixed-k", repeats=n)) for n in (1, 2)
    )
    assert single.runs["fixed-k"].path.name[-8:] != twice.runs["fixed-k"].path.name[-8:]


def test_warm_up_is_stated_and_in_no_record(tiny: TinyPair, tmp_path: Path) -> None:
    options = settings(tiny, tmp_path, "fixed-k")
    benchmark = prepare(options)
    interrupt(benchmark, 2)
    (run,) = benchmark.runs.values()
    (rounds,) = RunDirectory.open(run.path).run["warm_up"]["rounds"]
    assert 1 <= rounds <= 16
    resumed = prepare(replace(options, resume=True))
    resumed.run(no_report)
    again = RunDirectory.open(run.path).run["warm_up"]
    assert again == {"tokens": 16, "rounds": [rounds, rounds]}
    assert len(read_rows(run.path / "requests.jsonl")) == 4


def test_modelled_time_is_not_measured_again(tiny: TinyPair, tmp_path: Path) -> None:
    with pytest.raises(
        SkitError, match="--repeats cannot go with --deployment: modelled time never varies"
    ):
        settings(tiny, tmp_path, "fixed-k", repeats=2, deployment=load("wan"))
    with pytest.raises(SkitError, match="--repeats must be at least 1, not 0"):
        settings(tiny, tmp_path, "fixed-k", repeats=0)

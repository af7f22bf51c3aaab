"""`skit batch-sizes`: each size a benchmark of its own, then one line per method."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from environments import DEPLOYMENT
from report_builders import run_document
from trace_builders import MODELS, made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import find, load
from specbench_kit.methods.base import methods
from specbench_kit.reports import render_markdown
from specbench_kit.reports.document import Table
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.sweep.batch_sizes import (
    BatchSizePoint,
    BatchSizeStudy,
    LengthAtContext,
    NeverFull,
    build,
    fixed_length,
    group_labels,
    schedule,
    terminal,
)
from specbench_kit.studies.sweep.batch_sizes_command import _parse_sizes
from specbench_kit.studies.sweep.batch_sizes_run import run_curves
from specbench_kit.studies.sweep.lengths import fastest_lengths, kv_room


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> BatchSizeStudy:
    folder = tmp_path_factory.mktemp("curves")
    trace = write_trace(folder / "trace.parquet", made_requests(4), MODELS).path
    settings = BenchSettings(("fixed-k:k=2",), deployment=replace(DEPLOYMENT), out=folder)
    return run_curves(settings, (1, 4), trace, lambda _: None)


def test_every_method_has_a_place_at_every_size(curves: BatchSizeStudy) -> None:
    rows = curves.result.places
    assert [(row.method, row.batch_size) for row in rows] == [
        ("autoregressive", 1),
        ("fixed-k:k=2", 1),
        ("autoregressive", 4),
        ("fixed-k:k=2", 4),
    ]
    assert len(curves.result.runs) == 2
    alone, together = rows[1], rows[3]
    assert together.throughput > 2 * alone.throughput
    assert together.tpot_s > alone.tpot_s
    assert [row.requests for row in rows] == [4, 4, 16, 16], (
        "whole passes, at least four times the size"
    )
    assert all(0.5 < row.full < 1 for row in rows)


def test_what_is_written(curves: BatchSizeStudy) -> None:
    assert {file.name for file in curves.folder.rglob("*.*")} == {
        "curves.csv",
        "report.html",
        "report.md",
        "run.json",
        "summary.json",
        "throughput_tpot.png",
        "throughput_tpot.svg",
    }
    with (curves.folder / "curves.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    report = (curves.folder / "report.md").read_text()
    assert "modelled" in report
    assert "![Throughput against TPOT](plots/throughput_tpot.png)" in report
    assert "<svg " in (curves.folder / "report.html").read_text()
    assert "MODELLED TIME" in report
    assert (
        report.index("MODELLED TIME")
        < report.index("![Throughput against TPOT]")
        < report.index("| method |")
    )
    assert any(isinstance(block, Table) for block in terminal(curves.result.places, curves.run, []))


def row(method: str, size: int, throughput: float) -> BatchSizePoint:
    return BatchSizePoint(method, size, throughput, tpot_s=0.01, full=0.8, requests=64)


def test_a_method_pays_up_to_where_it_first_falls_behind() -> None:
    speeds = {"good": (3, 3, 3), "early": (3, 3, 1), "gap": (3, 1, 3), "never": (1, 3, 3)}
    rows = [row("autoregressive", size, 2) for size in (1, 2, 4)]
    rows += [
        row(name, size, speed)
        for name, own in speeds.items()
        for size, speed in zip((1, 2, 4), own, strict=True)
    ]
    about = {"dataset": {"name": "made"}, "requests": 3, "time_kind": "measured"}
    text = render_markdown.render(build(rows, run_document(about), []))
    lines = {line.split("`")[1]: line for line in text.splitlines() if "`" in line}
    limits = {name: line.rstrip("| ").rpartition("| ")[2] for name, line in lines.items()}
    assert limits == {"autoregressive": "–", "good": "4", "early": "2", "gap": "1", "never": "none"}


def test_many_methods_are_drawn_by_group() -> None:
    names = list(methods.all())
    groups = group_labels(names)
    assert all(labels[0] == "autoregressive" for labels in groups.values())
    assert sorted({label for labels in groups.values() for label in labels}) == sorted(names)
    assert max(map(len, groups.values())) < 10
    assert group_labels(["autoregressive", "svip"]) == {"": ["autoregressive", "svip"]}


@pytest.mark.parametrize("text", ["", "0", "1,1", "1,x", "-2"])
def test_sizes_that_make_no_sense(text: str) -> None:
    with pytest.raises(SkitError, match="--sizes must be different whole numbers from 1 up"):
        _parse_sizes(text)
    assert _parse_sizes("8,1") == (1, 8)


def test_what_finds_earlier_answers_is_not_given_the_same_prompts_again(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(4), MODELS).path
    settings = BenchSettings(("suffix",), deployment=DEPLOYMENT, out=tmp_path)
    with pytest.raises(
        SkitError, match=r"drafter 'suffix' searches earlier answers.*add shared=false"
    ):
        run_curves(settings, (4,), trace, lambda _: None)


def test_answers_that_end_as_they_begin_fill_no_batch(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(4, length=1), MODELS).path
    settings = BenchSettings(("fixed-k:k=2",), deployment=DEPLOYMENT, out=tmp_path)
    with pytest.raises(
        SkitError, match=r"^no batch was ever full, in .*A speed needs longer ones"
    ) as caught:
        run_curves(settings, (1, 4), trace, lambda _: None)
    (run,) = re.findall("in (.*) and the runs", str(caught.value))
    assert (Path(run) / "summary.json").is_file(), "what was decoded stays"


def test_a_size_that_was_never_full_is_named(curves: BatchSizeStudy) -> None:
    missing = [NeverFull(method, 8) for method in ("autoregressive", "fixed-k:k=2")]
    report = render_markdown.render(build(curves.result.places, curves.run, [], missing))
    assert "NEVER FULL: `autoregressive`, `fixed-k:k=2` with 8 places. There was no time" in report
    assert "NEVER FULL" not in (curves.folder / "report.md").read_text()


def test_the_fastest_lengths_are_given_as_vllm_takes_them() -> None:
    speeds = {
        "autoregressive": (100, 350, 1000, 2000),
        "fixed-k:k=2": (180, 600, 1100, 1900),
        "fixed-k:k=5": (210, 700, 900, 1500),
        "threshold": (250, 800, 1300, 2100),
    }
    rows = [
        row(method, size, speed)
        for method, of_sizes in speeds.items()
        for size, speed in zip((1, 4, 16, 64), of_sizes, strict=True)
    ]
    assert [tuple(one) for one in schedule(rows)] == [(1, 4, 5), (5, 16, 2), (17, 64, 0)]
    about = run_document({"dataset": {"name": "made"}, "requests": 3, "time_kind": "measured"})
    text = render_markdown.render(build(rows, about, ()))
    assert "5 for 1 to 4, 2 for 5 to 16, none for 17 to 64" in text
    assert '"num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 16, 2], [17, 64, 0]]' in text
    assert "max_draft_len: 5, draft_len_schedule: {4: 5, 16: 2}" in text
    # One length says nothing of how many tokens to draft.
    few = [one for one in rows if one.method in ("autoregressive", "fixed-k:k=2")]
    assert schedule(few) == []
    assert "speculative-config" not in render_markdown.render(build(few, about, ()))
    assert [fixed_length(spec) for spec in ("fixed-k", "fixed-k:k=7", "threshold")] == [4, 7, None]


def test_the_fastest_length_by_context_is_that_of_the_round_times() -> None:
    scene = load("server:gpu=h100,target=llama3.1-8b,drafter=eagle3,engine=vllm")
    assert scene is not None
    committed = {"fixed-k:k=1": 1.7, "fixed-k:k=3": 2.4, "fixed-k:k=7": 2.7}
    found = list(fastest_lengths(scene, committed, (1, 64, 256), (500, 60_000)))
    assert [(one.context, one.batch_size) for one in found] == [
        (context, size) for context in (500, 60_000) for size in (1, 64, 256)
    ]
    for one in found:
        plain_s = scene.verifier.pass_s([(1, one.context)] * one.batch_size)
        busy = scene.verifier.while_speculating
        speeds = {0: 1.0}
        for spec, tokens in committed.items():
            drafted = int(spec.rpartition("=")[2])
            draft_s = drafted * scene.drafter.pass_s([(1, one.context)] * one.batch_size)
            verify_s = busy.pass_s([(1 + drafted, one.context)] * one.batch_size)
            speeds[drafted] = tokens * plain_s / (draft_s + verify_s)
        assert one.tokens == max(speeds, key=speeds.__getitem__)
        assert one.speedup == pytest.approx(speeds[one.tokens])
    # A large batch of short contexts is busy with operations, one of long contexts with its KV.
    short, long = (one for one in found if one.batch_size == 256)
    assert short.tokens < long.tokens


def test_a_batch_whose_kv_does_not_fit_has_no_length() -> None:
    name = "server:gpu=h100,target=llama3.1-8b,drafter=eagle3,engine=vllm"
    scene, room = load(name), kv_room(find(name))
    assert scene is not None
    # 80 GB less 16 of the target, 1.5 of the head and a tenth, at 131 kB a token and 4 more of the head.
    assert 300_000 < room.tokens < 500_000
    assert room.context == 131_072
    committed = {"fixed-k:k=1": 1.7, "fixed-k:k=3": 2.4}
    found = list(fastest_lengths(scene, committed, (1, 64), (1000, 64_000, 200_000), room))
    assert [(one.context, one.batch_size) for one in found] == [(1000, 1), (1000, 64), (64_000, 1)]


def test_lengths_by_context_stand_below_the_speeds() -> None:
    about = run_document({"dataset": {"name": "made"}, "requests": 3, "time_kind": "measured"})
    lengths = [LengthAtContext(500, 1, 3, 1.9), LengthAtContext(500, 64, 0, 1.0)]
    text = render_markdown.render(
        build([row("fixed-k", 1, 10), row("fixed-k", 64, 20)], about, (), (), lengths)
    )
    assert "| 500 | 3 (1.90x) | none |" in " ".join(text.split())

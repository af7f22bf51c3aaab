"""The kit from Python: the same runs as the commands make, without a word on the terminal."""

import re
import runpy
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import pytest
from breaking_method import add_breaking_in
from command_line import TinyPair, read_object, read_rows, write_rows
from trace_builders import made_requests, write_trace

import specbench_kit.api as skit
from specbench_kit.core.errors import SkitError

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def result(tiny: TinyPair, tmp_path_factory: pytest.TempPathFactory) -> skit.Result:
    folder = tmp_path_factory.mktemp("api")
    rows = [
        {"id": str(number), "prompt": f"Who is number {number}?", "answer": ["the 7th", ""]}
        for number in range(6)
    ]
    prompts_file = write_rows(folder / "ask.jsonl", *rows)
    pair = {"target": str(tiny.target), "draft": str(tiny.draft)}
    methods = ["fixed-k:k=2", "threshold"]
    return skit.bench(
        methods,
        str(prompts_file),
        deployment="specedge",
        max_new_tokens=8,
        draft_answers=True,
        out=folder / "out",
        **pair,
    )


def test_a_bench_has_tables_a_headline_and_a_report(result: skit.Result, tmp_path: Path) -> None:
    table = result.to_pandas()
    assert [name.split()[0] for name in table["method"]] == [
        "autoregressive",
        "fixed-k",
        "threshold",
    ]
    assert (table["lossless_errors"].dropna() == 0).all()
    assert any("MODELLED TIME" in line for line in result.warnings)
    assert repr(result) == f"<Result of skit bench, 2 runs: {result.headline}>"
    assert {path.name for path in result.report(tmp_path / "report", ["md", "csv"])} == {
        "report.md",
        "report.csv",
    }
    with pytest.raises(
        SkitError, match=r"there is no table 'categories' in this result; it has overall"
    ):
        result.to_pandas("categories")


def test_the_report_says_how_many_answers_are_right(result: skit.Result, tmp_path: Path) -> None:
    (page,) = result.report(tmp_path, ["md"])
    answers = page.read_text().partition("## Answers")[2].partition("\n## ")[0]
    rows = [
        line.split(" | ")[0].strip("| `") for line in answers.splitlines() if line.startswith("|")
    ][2:]
    assert [row.split(" (")[0] for row in rows] == [
        "target",
        "draft model alone",
        "threshold",
        "fixed-k",
    ]
    assert answers.count("| 6 |") == 4


def test_runs_are_loaded_from_their_folders(result: skit.Result) -> None:
    again = skit.load(result.folders[0].parent)
    assert again.to_pandas().equals(result.to_pandas())
    assert again.compare(against="threshold").reference.startswith("threshold")


def test_what_was_just_made_is_not_read_from_its_files(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "some.parquet", made_requests(4))
    made = skit.replay(["fixed-k", "threshold"], trace.path, deployment="wan", out=tmp_path / "out")
    read = skit.load(tmp_path / "out").to_pandas()
    for file in (tmp_path / "out").rglob("*.jsonl"):
        file.unlink()
    assert made.to_pandas().equals(read)


def test_a_notebook_shows_the_table_as_text_that_is_no_markup(result: skit.Result) -> None:
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + len(result.to_pandas())
    assert "MODELLED TIME" in page
    title, svg = re.search(
        r'<img alt="([^"]+)" [^>]*src="data:image/svg\+xml;base64,([^"]+)"', page
    ).groups()
    assert "peedup" in title
    assert b"<svg " in b64decode(svg)


def test_methods_that_went_on_without_another_have_their_reports(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_breaking_in(monkeypatch)
    rows = [{"id": str(number), "prompt": f"Who is {number}?"} for number in range(6)]
    prompts_file = write_rows(tmp_path / "ask.jsonl", *rows)
    options = {
        "target": str(tiny.target),
        "draft": str(tiny.draft),
        "max_new_tokens": 4,
        "out": tmp_path / "out",
    }
    with pytest.raises(SkitError, match=r"^Breaking: .* not drafted.*; the other methods went on$"):
        skit.bench(["breaking", "fixed-k:k=2"], str(prompts_file), **options)
    done = {}
    for report in (tmp_path / "out").glob("*/report.md"):
        name = read_object(report.with_name("run.json"))["method"].partition(":")[0]
        done[name] = [row["request_id"] for row in read_rows(report.with_name("requests.jsonl"))]
    assert done == {"breaking": ["0", "1", "2"], "fixed-k": ["0", "1", "2", "3", "4", "5"]}


def test_runs_that_cannot_be_compared_share_no_table(
    result: skit.Result, tiny: TinyPair, tmp_path: Path
) -> None:
    rows = [{"id": str(number), "prompt": f"Who is number {number}?"} for number in range(2)]
    prompts_file = write_rows(tmp_path / "ask.jsonl", *rows)
    pair = {
        "target": str(tiny.target),
        "draft": str(tiny.draft),
        "deployment": "wan",
        "out": tmp_path / "out",
    }
    skit.bench("fixed-k:k=2", str(prompts_file), max_new_tokens=4, **pair)
    both = skit.load(tmp_path / "out", result.folders[0].parent)
    assert isinstance(both, skit.Result)
    named = "they differ in .*max_new_tokens: 4 / 8; .*: `groups` holds a result for those that can"
    with pytest.raises(SkitError, match=named):
        both.to_pandas()
    with pytest.raises(SkitError, match=named):
        print(both.headline)
    assert re.search(named, both.warnings[0])
    assert [len(group.folders) for group in both.groups] == [1, 2]
    assert [len(group.to_pandas()) for group in both.groups] == [2, 3]
    assert both._repr_html_().count("<table") == 2
    pooled = skit.load(tmp_path / "out", result.folders[0].parent, force=True)
    assert isinstance(pooled, skit.Result)
    assert any(line.startswith("FORCED COMPARISON") for line in pooled.warnings)


def test_a_sweep_of_a_trace_is_a_table(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "made.parquet", made_requests(3))
    grid = {
        "deployment": "wan",
        "replaced": "link.rtt_s=0.01,0.1",
        "trace": str(trace.path),
        "out": str(tmp_path),
    }
    study = skit.sweep("fixed-k:k=2", **grid)
    table = study.to_pandas()
    assert len(table) == len(study.result.rows) == 4
    assert study.report.is_file()
    assert repr(study) == f"<Study of skit sweep in {study.folder}: {study.headline}>"
    page = study._repr_html_()
    assert "<td>fixed-k:k=2</td>" in page
    assert (
        page.index("MODELLED TIME") < page.index('<img alt="Speedup against') < page.index("<table")
    )
    with pytest.raises(SkitError, match=r"unknown option 'rounds'; known: .*trace"):
        skit.sweep("fixed-k", rounds=3)


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        SkitError,
        match=r"unknown option 'batchsize' .did you mean 'batch_size'.*; known: .*batch_size",
    ):
        skit.bench("fixed-k", batchsize=3)
    with pytest.raises(
        SkitError, match=r"unknown option 'trails' .did you mean 'trials'.*; known: .*trials"
    ):
        skit.train(trails=1)
    with pytest.raises(SkitError, match="--devices takes numbers"):
        skit.simulate(devices="many")
    with pytest.raises(SkitError, match="unknown method"):
        skit.bench("fixed-kk", out=tmp_path)


def test_a_value_of_another_kind_is_one_line() -> None:
    for name, value, words in (
        ("limit", "1", "a whole number, not '1'"),
        ("limit", True, "a whole number, not True"),
        ("batch_size", 2.5, "a whole number, not 2.5"),
        ("batch_size", None, "a whole number, not None"),
        ("temperature", "hot", "a number, not 'hot'"),
        ("baseline", 1, "True or False, not 1"),
        ("target", ["bundled"], "a text, not ['bundled']"),
        ("out", 3, "a path, not 3"),
        ("launch", "rocket", "virtual or processes, not 'rocket'"),
    ):
        with pytest.raises(
            SkitError, match=rf"^--{name.replace('_', '-')} must be {re.escape(words)}$"
        ):
            skit.bench("fixed-k", **{name: value})
    with pytest.raises(SkitError, match=r"^--deployment must be a text, not True$"):
        skit.simulate(deployment=["wan", True])


REFUSED = {
    "bench": (
        skit.bench,
        {"methods": "fixed-k"},
        [("top_k", 3), ("top_p", 0.5), ("draft_top_n", 2)],
    ),
    "replay": (
        skit.replay,
        {"methods": "fixed-k", "trace": "no.parquet"},
        [
            *[("target", "bundled"), ("draft", "bundled"), ("device", "cpu"), ("dtype", "float32")],
            *[
                ("executor", "cache"),
                ("max_new_tokens", 4),
                ("top_k", 3),
                ("draft_answers", True),
                ("link", "rtt_s=1"),
            ],
            *[
                ("temperature", 0.5),
                ("resume", True),
                ("exclude_seen", True),
                ("token_view", True),
                ("repeats", 2),
            ],
        ],
    ),
    "sweep": (
        skit.sweep,
        {
            "methods": "fixed-k",
            "trace": "no.parquet",
            "deployment": "wan",
            "replaced": "link.rtt_s=0.01,0.1",
        },
        [("dataset", "gsm8k"), ("data_dir", "."), ("sample", False), ("executor", "cache")],
    ),
    "synthetic sweep": (
        skit.sweep,
        {
            "methods": "fixed-k",
            "target": "synthetic",
            "deployment": "wan",
            "replaced": "link.rtt_s=0.01,0.1",
        },
        [("dataset", "gsm8k"), ("sample", False), ("device", "cpu"), ("max_draft", 3)],
    ),
    "simulate": (
        skit.simulate,
        {"acceptance": "iid:alpha=0.8,length=4"},
        [
            ("dataset", "gsm8k"),
            ("sample", False),
            ("limit", 1),
            ("target", "bundled"),
            ("max_new_tokens", 4),
        ],
    ),
    "train": (
        skit.train,
        {"trace": "no.parquet"},
        [
            ("dataset", "gsm8k"),
            ("data_dir", "."),
            ("limit", 1),
            ("executor", "cache"),
            ("max_new_tokens", 4),
        ],
    ),
}
"""Functions, options that are given, and options that have no effect beside them, as for the commands."""


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [(name, *option) for name, (_, _, options) in REFUSED.items() for option in options],
)
def test_an_option_without_effect_is_refused_before_any_work(
    name: str, option: str, value: object, tmp_path: Path
) -> None:
    function, usual_arguments, _ = REFUSED[name]
    flag = f"--{'no-' if value is False else ''}{option.replace('_', '-')}"
    with pytest.raises(SkitError, match=rf"(^{flag} |leave out .*{flag}\b|cannot go with {flag}:)"):
        function(**{**usual_arguments, option: value, "out": tmp_path / "out"})
    assert not (tmp_path / "out").exists()


def test_a_dataset_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match="a dataset is given twice"):
        skit.bench("fixed-k", ["gsm8k", "gsm8k"], limit=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sweep_of_a_synthetic_pair_needs_no_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("a synthetic pair answers random tokens")

    monkeypatch.setattr(skit, "load_dataset", unexpected)
    pair = {
        "target": "synthetic",
        "draft": "synthetic",
        "deployment": "wan",
        "replaced": "link.rtt_s=0.01,0.1",
    }
    study = skit.sweep("fixed-k", **pair, limit=1, max_new_tokens=4, out=tmp_path)
    assert len(study.to_pandas()) == 4


def test_nothing_is_printed_and_nothing_heavy_loads_before_it_is_used() -> None:
    line = "import sys, specbench_kit; assert not {'torch', 'pandas'} & set(sys.modules); specbench_kit.__version__"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_run(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    written = {path.name for path in tmp_path.rglob("report.*")}
    assert written >= (
        {"report.html", "report.tex"} if example.stem == "first_steps" else {"report.md"}
    )

"""`skit sweep` from the command line."""

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest
from command_line import TinyPair, error_line, read_object, skit, skit_here, write_rows
from trace_builders import made_requests, write_trace

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.reports.writing.formatting import times
from specbench_kit.serving.parallel import Workers
from specbench_kit.studies.sweep.grid import replay_grid
from specbench_kit.studies.sweep.run import summarise
from specbench_kit.studies.sweep.settings import SweepSettings

pytestmark = pytest.mark.slow

ROUND_TRIPS = (0.005, 0.02, 0.08, 0.32)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("trace") / "made.parquet"
    write_trace(file, made_requests(10))
    return file


def swept(*arguments: object) -> tuple[Path, JsonObject, str]:
    """The run directory, the summary with flat rows, and what was said."""
    done = skit_here("sweep", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    (folder,) = map(Path, document["run_dirs"])
    summary = document["summary"]
    assert read_object(folder / "summary.json") == summary
    rows = [{**row["values"], "method": row["spec"], **row["overall"]} for row in summary["rows"]]
    return folder, {**summary, "rows": rows}, done.stderr


@pytest.fixture(scope="module")
def over_round_trips(
    trace: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, JsonObject, str]:
    values = ",".join(map(str, ROUND_TRIPS))
    methods = ["--method", "fixed-k", "--method", "threshold:max_draft=6"]
    out = tmp_path_factory.mktemp("out")
    return swept(
        "--replay",
        trace,
        "--deployment",
        "wan",
        "--set",
        f"link.rtt_s={values}",
        *methods,
        "--out",
        out,
    )


def speedups(summary: JsonObject, method: str, key: str = "link.rtt_s") -> dict[float | str, float]:
    return {row[key]: row["speedup"] for row in summary["rows"] if row["method"] == method}


def test_a_sweep_leaves_table_report_and_plots(
    over_round_trips: tuple[Path, JsonObject, str],
) -> None:
    folder, _, terminal = over_round_trips
    assert re.fullmatch(r"\d{8}T\d{6}Z-sweep-wan-[0-9a-f]{8}", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "summary.json", "sweep.csv", "report.md", "report.html", "plots",
    }  # fmt: skip
    names = {f"{name}.{suffix}" for name in ("speedup", "throughput") for suffix in ("png", "svg")}
    assert {path.name for path in (folder / "plots").iterdir()} == names
    assert f"report: {folder / 'report.html'} (as text: report.md)" in terminal
    page = (folder / "report.html").read_text()
    assert page.index("<svg ") < page.index("Which method is the fastest where")
    assert (
        "Speedup against round trip of the link (s). Over autoregressive decoding at the server: below 1"
        in page
    )
    assert "; rings: break-even; dotted: with the draft model on the server." in page


def test_a_sweep_says_where_a_draft_model_on_the_server_would_be_faster(
    over_round_trips: tuple[Path, JsonObject, str],
) -> None:
    folder, summary, terminal = over_round_trips
    gains = []
    for won in summary["fastest"]:
        here = [row for row in summary["rows"] if won["place"].items() <= row.items()]
        at_edge = max(row["speedup"] or 1 for row in here)
        gains.append(max(row["colocated_speedup"] or 0 for row in here) / max(1, at_edge))
    faster = [gain for gain in gains if gain > 1]
    assert faster
    line = (
        f"SERVER-ONLY IS FASTER at {len(faster)} of {len(ROUND_TRIPS)} points: with draft models on the server the "
        f"fastest method is up to {times(max(faster))} as fast as what is fastest with them at the edge, "
        "autoregressive decoding included."
    )
    said, report = " ".join(terminal.split()), (folder / "report.md").read_text()
    assert line in said
    assert line in report
    headline = report.splitlines()[2].strip("*")
    assert "`, drafting at the edge, is the fastest at" in headline
    assert headline.endswith(
        f"; drafting on the server is faster at {len(faster)} of {len(ROUND_TRIPS)} points."
    )
    assert headline.replace("`", "") in said


def test_a_method_stands_once_where_an_axis_is_the_option_of_another(
    trace: Path, tmp_path: Path
) -> None:
    """Four points, at which one method has four rows and the other, and autoregressive decoding, two."""
    folder, summary, terminal = swept(
        *("--replay", trace, "--deployment", "phone", "--out", tmp_path),
        *("--method", "fixed-k", "--method", "decoupled:k=2"),
        *("--set", "link.rtt_s=5ms,320ms", "--set", "fixed-k.k=1,3"),
    )
    assert len(summary["rows"]) == 4 * 3
    page = (folder / "report.md").read_text()
    results = page.partition("## Results (modelled)")[2].partition("##")[0]
    cells = [line.split(" | ")[:3] for line in results.splitlines() if "`" in line][1:]
    shown = [(row[0].strip("| "), row[1], row[2]) for row in cells]
    names = ("`autoregressive`", "`decoupled:k=2`")
    assert {row for row in shown if row[2] in names} == {
        (rtt_s, "–", name) for rtt_s in ("0.005", "0.32") for name in names
    }
    fixed = [(rtt_s, k, f"`fixed-k:k={k}`") for rtt_s in ("0.005", "0.32") for k in "13"]
    assert [row for row in shown if row[2] not in names] == fixed
    assert len(shown) == 8
    headline = page.splitlines()[2]
    assert headline.startswith("**`decoupled:k=2`, drafting at the edge, is the fastest")
    assert "at round trip = 0.005 s" in headline
    assert "fixed-k.k" not in headline
    # The table of break-even points leads, in milliseconds.
    (found,) = (one for one in summary["edge"] if one["method"] == "decoupled:k=2")
    (crossing,) = found["crossings"]
    everywhere = f"| `decoupled:k=2` | everywhere | below {1e3 * crossing['at']:.1f} ms |"
    assert page.index(everywhere) < page.index("[!WARNING]")
    said = " ".join(terminal.split())
    assert said.index(f"decoupled:k=2 everywhere below {1e3 * crossing['at']:.1f} ms") < said.index(
        "throughput"
    )


def test_a_benchmark_says_below_its_headline_that_the_server_alone_is_faster(
    trace: Path, tmp_path: Path
) -> None:
    """The method that is fastest at the edge drafts ahead; another one would be faster beside the server."""
    methods = ["--method", "decoupled", "--method", "fixed-k"]
    arguments = ["--replay", trace, "--deployment", "phone", *methods, "--out", tmp_path]
    done = skit_here("bench", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    with next(tmp_path.glob("*-bench-*/report.csv")).open() as file:
        rows = {row["method"].partition(" ")[0]: row for row in csv.DictReader(file)}
    ahead, fixed = rows["decoupled"], rows["fixed-k"]
    edge, beside = float(ahead["speedup"]), float(fixed["colocated_speedup"])
    assert beside > edge > max(1, float(fixed["speedup"]))
    line = (
        "SERVER-ONLY IS FASTER: with draft models on the server the fastest method "
        f"(`{fixed['method']}`, {times(beside)}) is {times(beside / edge)} as fast as what is fastest with them at "
        f"the edge (`{ahead['method']}`, {times(edge)}), autoregressive decoding included. On the server,"
    )
    said = " ".join(done.stderr.split())
    assert said.count("SERVER-ONLY") == 1
    assert said.index(line.replace("`", "")) < said.index("batch size 1")
    (page,) = tmp_path.glob("*-bench-*/report.md")
    assert page.read_text().index(line) < page.read_text().index("## Results")


def test_the_table_has_a_row_per_point_and_method(
    over_round_trips: tuple[Path, JsonObject, str],
) -> None:
    folder, summary, terminal = over_round_trips
    compared = ["fixed-k", "threshold:max_draft=6"]
    shown = {words[0]: words[1:] for line in terminal.splitlines() if (words := line.split())}
    for winner in summary["fastest"]:
        rtt_s = winner["place"]["link.rtt_s"]
        stars = ["*"] if winner["speedup"] >= 1 and winner["method"] in compared else []
        speeds = [
            [times(speedups(summary, name)[rtt_s]), *stars * (name == winner["method"])]
            for name in compared
        ]
        assert shown[f"{rtt_s:g}"] == [word for words in speeds for word in words]
    with (folder / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    methods = ["autoregressive", "fixed-k", "threshold:max_draft=6"]
    grid = [(str(rtt_s), method) for rtt_s in ROUND_TRIPS for method in methods]
    assert [(row["link.rtt_s"], row["method"]) for row in rows] == grid
    for row, entry in zip(rows, summary["rows"], strict=True):
        assert float(row["speedup"]) == entry["speedup"]
        assert float(row["throughput"]) == pytest.approx(entry["tokens"] / entry["makespan_s"])
        assert row["cost_efficiency"] == ""
    assert set(speedups(summary, "autoregressive").values()) == {1.0}


def test_break_even_is_interpolated_between_neighbours_and_said(
    over_round_trips: tuple[Path, JsonObject, str],
) -> None:
    folder, summary, terminal = over_round_trips
    report = (folder / "report.md").read_text()
    for entry in summary["break_even"]:
        line = speedups(summary, entry["method"])
        own_s = {
            row["link.rtt_s"]: row["makespan_s"]
            for row in summary["rows"]
            if row["method"] == entry["method"]
        }
        lost_s = {rtt_s: own_s[rtt_s] * (1 - line[rtt_s]) for rtt_s in ROUND_TRIPS}
        (crossing,) = entry["crossings"]
        low, high = crossing["low"], crossing["high"]
        assert line[low] > 1 > line[high]
        assert ROUND_TRIPS.index(high) == ROUND_TRIPS.index(low) + 1
        share = (crossing["at"] - low) / (high - low)
        assert lost_s[low] + share * (lost_s[high] - lost_s[low]) == pytest.approx(0, abs=1e-9)
        sentence = f"{entry['method']} stops beating autoregressive decoding at the server at round trip = "
        assert sentence in " ".join(terminal.split())
        assert sentence in report
        assert f"(between {low:g} and {high:g})" in report
    assert "MODELLED TIME" in report
    assert "## Deployment (modelled)" in report


def test_run_json_says_what_was_swept(
    over_round_trips: tuple[Path, JsonObject, str], trace: Path
) -> None:
    run = read_object(over_round_trips[0] / "run.json")
    assert run["config"]["axes"] == {"link.rtt_s": list(ROUND_TRIPS)}
    assert (run["command"], run["time_kind"], run["requests"]) == ("sweep", "modelled", 10)
    assert run["trace"]["file"] == trace.name
    assert run["deployment"]["link"]["rtt_s"] == ROUND_TRIPS[0]


def test_a_point_of_a_sweep_is_the_benchmark_of_that_deployment(
    over_round_trips: tuple[Path, JsonObject, str], trace: Path, tmp_path: Path
) -> None:
    options = ["--deployment", "wan", "--set", "link.rtt_s=0.08", "--out", tmp_path, "--json"]
    done = skit_here("bench", "--replay", trace, "--method", "fixed-k", *options)
    overall = json.loads(done.stdout)["summary"]["fixed-k"]["overall"]
    row = next(
        r
        for r in over_round_trips[1]["rows"]
        if (r["link.rtt_s"], r["method"]) == (0.08, "fixed-k")
    )
    assert row["speedup"] == overall["speedup"]
    assert row["makespan_s"] == overall["makespan_s"]
    assert row["typical_speedup"] == overall["typical_speedup"]
    for metric in ("speedup", "typical_speedup"):
        low, high = overall["intervals"][metric]
        least, most = row["intervals"][metric]
        # The intervals of all methods of a point hold together, and that of a benchmark of one method holds alone.
        assert least < low < high < most
        assert most / least < (high / low) ** 2


def test_options_of_methods_are_swept_too(trace: Path, tmp_path: Path) -> None:
    """Without a deployment, on the recording machine's time; methods that an axis does not concern stay level."""
    methods = ["--method", "fixed-k", "--method", "threshold:max_draft=6"]
    folder, summary, _ = swept(
        "--replay", trace, "--set", "fixed-k.k=1,2,4", *methods, "--out", tmp_path
    )
    fixed = {
        row["fixed-k.k"]: row["acceptance_length"]
        for row in summary["rows"]
        if row["method"].startswith("fixed")
    }
    assert list(fixed) == [1, 2, 4]
    assert fixed[1] < fixed[2] < fixed[4]
    assert {row["method"] for row in summary["rows"]} >= {
        "fixed-k:k=1",
        "fixed-k:k=2",
        "fixed-k:k=4",
    }
    assert len(set(speedups(summary, "threshold:max_draft=6", "fixed-k.k").values())) == 1
    assert [entry["method"] for entry in summary["break_even"]] == [
        "fixed-k",
        "threshold:max_draft=6",
    ]
    assert read_object(folder / "run.json")["deployment"]["name"] == "recorded"


def test_two_axes_make_a_line_for_each_value_of_the_second(trace: Path, tmp_path: Path) -> None:
    grid = ["--set", "link.rtt_s=0.01,0.5", "--set", "fixed-k.k=1,4", "--deployment", "specedge"]
    _, summary, _ = swept("--replay", trace, *grid, "--method", "fixed-k", "--out", tmp_path)
    assert [entry["method"] for entry in summary["break_even"]] == ["fixed-k:k=1", "fixed-k:k=4"]
    assert len(summary["rows"]) == 4 * 2
    assert all(row["cost_efficiency"] > 0 for row in summary["rows"])


def test_ranges_without_a_break_even_are_named(trace: Path, tmp_path: Path) -> None:
    near = [
        "--deployment",
        "wan",
        "--set",
        "link.rtt_s=0.001,0.002",
        "--method",
        "fixed-k",
        "--out",
        tmp_path,
    ]
    assert (
        "beats autoregressive decoding at the server everywhere in the range"
        in swept("--replay", trace, *near)[2]
    )
    far = [*near[:3], "link.rtt_s=0.5,1", *near[4:]]
    assert (
        "beats autoregressive decoding at the server nowhere in the range"
        in swept("--replay", trace, *far)[2]
    )


def test_values_that_are_no_numbers_have_no_point_in_between(trace: Path, tmp_path: Path) -> None:
    placements = [
        "--deployment",
        "wan",
        "--set",
        "drafter.placement=server,edge",
        "--set",
        "link.rtt_s=0.3",
    ]
    folder, summary, terminal = swept(
        "--replay", trace, *placements, "--method", "fixed-k", "--out", tmp_path
    )
    (break_even,) = summary["break_even"]
    assert (break_even["verdict"], break_even["faster_at"], break_even["crossings"]) == (
        "in part",
        ["server"],
        [],
    )
    sentence = (
        "fixed-k beats autoregressive decoding at the server only at place of the drafter = server."
    )
    assert sentence in " ".join(terminal.split())
    assert "| `fixed-k` | at server |" in (folder / "report.md").read_text()


def test_a_deployment_may_propose_its_own_sweep(trace: Path, tmp_path: Path) -> None:
    _, summary, _ = swept(
        "--replay", trace, "--deployment", "wan", "--method", "fixed-k", "--out", tmp_path
    )
    assert summary["axes"] == {"link.rtt_s": [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32]}


@pytest.mark.nightly  # test_interrupted_commands.py compares the rows of two sweeps
def test_the_same_sweep_leaves_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    command = [
        "sweep",
        "--replay",
        trace,
        "--deployment",
        "wan",
        "--set",
        "link.rtt_s=0.01,0.1",
        "--method",
        "fixed-k",
    ]
    for name in ("a", "b"):
        assert skit(*command, "--out", tmp_path / name).returncode == 0
    (first,), (second,) = (list((tmp_path / name).iterdir()) for name in ("a", "b"))
    for name in ("summary.json", "sweep.csv", "plots/speedup.svg"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_without_a_trace_one_is_recorded(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(
        tmp_path / "p.jsonl", *({"id": f"q{i}", "prompt": f"What is {i}?"} for i in range(4))
    )
    options = [
        "--dataset",
        prompts,
        "--limit",
        3,
        "--max-new-tokens",
        12,
        "--max-draft",
        4,
        *tiny.options,
    ]
    grid = ["--deployment", "specedge", "--set", "link.rtt_s=0.01,0.1"]
    folder, summary, terminal = swept(
        *options, *grid, "--method", "fixed-k", "--out", tmp_path / "results"
    )
    assert (folder / "trace.parquet").is_file()
    assert {row["finished"] for row in summary["rows"]} == {3}
    assert "recording" in terminal
    again = [
        "--replay",
        folder / "trace.parquet",
        *grid,
        "--method",
        "fixed-k",
        "--out",
        tmp_path / "again",
    ]
    assert swept(*again)[1] == summary


def test_trees_are_swept_on_a_trace_that_holds_them(tmp_path: Path) -> None:
    options = [
        "--replay",
        "qwen2.5-coder-trees",
        "--deployment",
        "specedge",
        "--set",
        "link.rtt_s=0.01,0.1",
    ]
    _, summary, _ = swept(*options, "--method", "sequoia:size=8", "--out", tmp_path)
    near, far = (row for row in summary["rows"] if row["method"].startswith("sequoia"))
    assert near["speedup"] > far["speedup"] > 0
    assert near["finished"] == far["finished"] == 45
    beyond = skit_here(
        "sweep", *options, "--method", "specinfer:branching=9-9", "--out", tmp_path / "beyond"
    )
    assert error_line(beyond).startswith(
        "specinfer:branching=9-9: its tree asks for more of the draft model than"
    )


WAN = ["--deployment", "wan"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--method", "fixed-k"], "nothing to sweep over: give --set with several values"),
        (
            ["--method", "fixed-k", "--set", "link.rtt_s=1,2"],
            "--set link.rtt_s: only a modelled deployment has fields",
        ),
        (
            ["--method", "specedge", *WAN, "--target", "bundled", "--limit", "2"],
            "specedge drafts trees, and a sweep records chains: leave it out, replay a",
        ),
        (
            ["--method", "sparse-quantised", *WAN],
            "sparse-quantised changes the draft model's distributions, which no",
        ),
        (
            [
                "--method",
                "specedge",
                *WAN,
                "--replay",
                "qwen2.5-coder",
                "--set",
                "link.rtt_s=0,0.1",
            ],
            "a trace holds chains, so a method that drafts trees cannot be replayed: run it live, or take a trace of",
        ),
        (["--method", "fixd-k", *WAN], "unknown method 'fixd-k' (did you mean 'fixed-k'?)"),
        (
            ["--method", "fixed-k", *WAN, "--set", "link.rtt=1,2"],
            "the deployment wan with link.rtt=1, [link] has unkn",
        ),
        (
            ["--method", "fixed-k", *WAN, "--set", "fixed-k.k=0,2"],
            "fixed-k: k must be at least 1, not 0",
        ),
        (
            ["--method", "fixed-k", *WAN, "--set", "fixed-k.q=1,2"],
            "fixed-k: unknown option 'q'; known: k",
        ),
        (
            ["--method", "fixed-k", *WAN, "--set", "oracle.max_draft=1,2"],
            "--set oracle.max_draft: there is no --method",
        ),
        (
            ["--method", "fixed-k:k=1", "--method", "fixed-k:k=2", "--set", "fixed-k.k=1,2"],
            "two methods become the s",
        ),
        (["--method", "autoregressive", *WAN], "no method to compare with autoregressive serving"),
        (
            ["--method", "fixed-k", *WAN, "--max-draft", "0"],
            "--max-draft must be at least 1, not 0",
        ),
        (
            ["--method", "fixed-k", *WAN, "--batch-size", "0"],
            "--batch-size must be at least 1, not 0",
        ),
        (
            ["--method", "fixed-k", *WAN, "--replay", "no.parquet"],
            "cannot read the trace no.parquet",
        ),
    ],
)
def test_what_no_sweep_can_be_made_of_is_one_line(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    done: subprocess.CompletedProcess[str] = skit_here("sweep", *arguments, "--out", tmp_path)
    assert error_line(done).startswith(line)
    assert list(tmp_path.iterdir()) == []


def test_drafts_longer_than_recorded_are_refused(trace: Path, tmp_path: Path) -> None:
    done = skit_here("sweep", "--replay", trace, *WAN, "--method", "fixed-k:k=9", "--out", tmp_path)
    assert "record the trace with a larger --max-draft" in error_line(done)


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    write_trace(tmp_path / "empty.parquet", [])
    done = skit_here(
        "sweep",
        "--replay",
        tmp_path / "empty.parquet",
        *WAN,
        "--method",
        "fixed-k",
        "--out",
        tmp_path,
    )
    assert "holds no request" in error_line(done)
    assert [path.name for path in tmp_path.iterdir()] == ["empty.parquet"]


def test_a_synthetic_pair_is_swept_with_trees_and_without_a_trace() -> None:
    pair = {"target": "synthetic", "draft": "synthetic:spread=0", "max_new_tokens": 40, "limit": 1}
    settings = SweepSettings(
        methods=("fixed-k:k=2", "specinfer:branching=2"),
        deployment="specedge",
        replaced=("draft.ranks=0.5+0.4,1.0",),
        **pair,
    )
    rows, _ = replay_grid(settings, settings.points(), None, lambda *_: None, Workers())
    totals = {(row.values["draft.ranks"], row.spec): row.overall for row in rows}
    assert totals[1.0, "fixed-k:k=2"].acceptance_rate == 1
    assert (totals["0.5+0.4", "specinfer:branching=2"].acceptance_length or 0) > 1.7
    best = {
        entry.place["draft.ranks"]: entry.method
        for entry in summarise(rows, settings.axes()).fastest
    }
    assert best[1.0] == "fixed-k:k=2"


def test_options_of_a_draft_need_a_synthetic_pair(tmp_path: Path) -> None:
    command = [
        "sweep",
        "--method",
        "fixed-k",
        "--set",
        "draft.ranks=0.5,0.9",
        "--deployment",
        "wan",
        "--out",
        tmp_path,
    ]
    assert "give --target synthetic" in error_line(skit_here(*command))
    pair = ["--target", "synthetic", "--draft", "synthetic"]
    local = ["sweep", *pair, "--method", "fixed-k", "--set", "draft.ranks=0.5,1"]
    assert "choose a modelled --deployment" in error_line(skit_here(*local, "--out", tmp_path))


def test_minutes_sweep_over_what_is_recorded_by_then(tiny: TinyPair, tmp_path: Path) -> None:
    rows = (
        {"id": f"p{number}", "prompt": "Who was it?" * (1 + number), "chat": False}
        for number in range(10)
    )
    prompts = write_rows(tmp_path / "prompts.jsonl", *rows)
    sizes = ("--dataset", prompts, "--max-new-tokens", 4, "--max-draft", 3, *tiny.options)
    grid = ("--method", "fixed-k:k=2", "--deployment", "wan", "--set", "link.rtt_s=0.01,0.1")
    folder, _, terminal = swept(*sizes, *grid, "--minutes", 1e-6, "--out", tmp_path / "out")
    run = read_object(folder / "run.json")
    assert 0 < run["requests"] < 10
    line = f"PARTIAL RUN: {run['requests']} of 10 requests were recorded before --minutes were over"
    assert line in " ".join(terminal.split())
    assert line in (folder / "report.md").read_text()
    resumed = skit_here(
        "record", *sizes, "--limit", 100, "--out", folder / "trace.parquet", "--resume"
    )
    assert resumed.returncode == 0, resumed.stderr
    complete = swept("--replay", folder / "trace.parquet", *grid, "--out", tmp_path / "out")
    assert read_object(complete[0] / "run.json")["requests"] == 10
    assert "PARTIAL" not in complete[2]


def test_a_limit_replays_the_first_requests_of_a_trace_as_a_benchmark_does(
    trace: Path, tmp_path: Path
) -> None:
    options = ["--replay", trace, "--method", "fixed-k", "--deployment", "wan", "--out", tmp_path]
    grid = ["--set", "link.rtt_s=0.04,0.08"]
    folder, summary, _ = swept(*options, *grid, "--limit", 7)
    done = skit_here("bench", *options, "--set", "link.rtt_s=0.04", "--limit", 7, "--json")
    assert done.returncode == 0, done.stderr
    benchmark = json.loads(done.stdout)
    overall = benchmark["summary"]["fixed-k"]["overall"]
    assert speedups(summary, "fixed-k")[0.04] == overall["speedup"]
    run = read_object(folder / "run.json")
    assert run["requests"] == 7
    assert run["dataset"] == read_object(Path(benchmark["run_dirs"][0]) / "run.json")["dataset"]
    everything, whole, _ = swept(*options, *grid)
    assert read_object(everything / "run.json")["requests"] == 10
    assert speedups(whole, "fixed-k") != speedups(summary, "fixed-k")


@pytest.mark.parametrize(("limit", "prompts"), [(None, 100), (7, 7)])
def test_100_prompts_are_recorded_unless_a_number_is_given(limit: int | None, prompts: int) -> None:
    settings = SweepSettings(methods=("fixed-k",), deployment="wan", limit=limit)
    assert (settings.prompts, settings.recording.limit) == (prompts, prompts)


def test_a_headline_names_no_edge_where_the_server_drafts(trace: Path, tmp_path: Path) -> None:
    options = [
        "--replay",
        trace,
        "--deployment",
        "specedge-server",
        "--method",
        "fixed-k",
        "--out",
        tmp_path,
    ]
    folder, summary, _ = swept(*options, "--set", "fixed-k.k=1,2")
    assert summary["edge"] == []
    headline = (folder / "report.md").read_text().splitlines()[2]
    assert "fast" in headline
    assert "drafting" not in headline

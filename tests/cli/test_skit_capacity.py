"""`skit capacity` from the command line."""

import csv
import json
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit_here

from specbench_kit.core.typed_json import JsonObject

pytestmark = pytest.mark.slow

LENGTHS = ["--prompt-tokens", 300, "--output-tokens", 30]
SHORT = ["--duration", 15, "--warm-up", 3, "--jobs", 1]
LONGER = ["--duration", 30, "--warm-up", 5, "--jobs", 1]


def searched(*arguments: object, command: str = "capacity") -> tuple[Path, JsonObject, str]:
    """The run directory, the summary, and what was said."""
    done = skit_here(command, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    (folder,) = map(Path, document["run_dirs"])
    return folder, document["summary"], done.stderr


@pytest.fixture(scope="module")
def two_systems(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JsonObject, str]:
    out = tmp_path_factory.mktemp("out")
    systems = ["--system", "wisp", "--system", "sled", "--acceptance", "iid:alpha=0.8,length=4"]
    slos = ["--slo", "class-3", "--slo", "class-4", "--slo", "class-3:0.5,class-4:0.5"]
    return searched(*systems, *slos, *LENGTHS, *SHORT, "--seeds", 2, "--out", out)


def test_capacities_of_systems_and_classes_side_by_side(
    two_systems: tuple[Path, JsonObject, str],
) -> None:
    folder, summary, terminal = two_systems
    capacities = {(row["series"], row["slo"]): row["capacity"]["mean"] for row in summary["rows"]}
    assert list(capacities) == [
        (name, slo)
        for name in ("wisp", "sled")
        for slo in ("class-3", "class-4", "class-3:0.5,class-4:0.5")
    ]
    for name in ("wisp", "sled"):
        assert 0 < capacities[name, "class-4"] < capacities[name, "class-3"]
    assert all(capacities["wisp", slo] > capacities["sled", slo] for slo in ("class-3", "class-4"))
    assert "MODELLED TIME" in terminal
    assert (folder / "report.md").read_text().startswith("# Capacity of `wisp` and `sled`\n")
    assert {path.name for path in folder.iterdir()} == {
        "run.json", "summary.json", "capacity.csv", "report.md", "report.html", "plots",
    }  # fmt: skip
    plots = {f"{name}.{suffix}" for name in ("capacity", "tried") for suffix in ("png", "svg")}
    assert {path.name for path in (folder / "plots").iterdir()} == plots
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert max(files, key=lambda path: path.stat().st_mtime_ns).name == "summary.json", (
        "it marks a folder as whole"
    )


def test_one_capacity_is_explained_by_the_loads_that_were_tried(tmp_path: Path) -> None:
    odds = ["--system", "sled", "--acceptance", "iid:alpha=0.8,length=4"]
    folder, _, _ = searched(
        *odds, *LENGTHS, *SHORT, "--seeds", 1, "--epsilon", 0.1, "--out", tmp_path
    )
    assert {path.name for path in (folder / "plots").iterdir()} == {"tried.png", "tried.svg"}
    assert (
        "Below the dotted line, at 10%, a load counts as served"
        in (folder / "report.md").read_text()
    )


def test_every_seed_says_how_it_found_its_capacity(
    two_systems: tuple[Path, JsonObject, str],
) -> None:
    summary = two_systems[1]
    for row in summary["rows"]:
        by_seed = [search["load"] for search in row["seeds"]]
        assert row["capacity"]["mean"] == pytest.approx(sum(by_seed) / 2)
        for search in row["seeds"]:
            tried = {trial["load"]: trial["holds"] for trial in search["trials"]}
            assert (
                max((devices for devices, holds in tried.items() if holds), default=0)
                == search["load"]
            )
            assert all(
                not trial["settled"] or not trial["low"] <= 0.05 < trial["high"]
                for trial in search["trials"]
            )


def test_a_capacity_has_the_latency_of_its_responses(
    two_systems: tuple[Path, JsonObject, str],
) -> None:
    """Mean and percentiles over the seeds, each at the load that it found."""
    folder, summary, _ = two_systems
    for row in summary["rows"]:
        latency_s = row["response_s"]
        assert 0 < latency_s["p50"]["mean"] <= latency_s["p95"]["mean"] <= latency_s["p99"]["mean"]
        at_capacity = [
            trial["latencies"]["all"]["response_s"]["mean"]
            for seed in row["seeds"]
            for trial in seed["trials"]
            if trial["load"] == seed["load"]
        ]
        assert latency_s["mean"]["mean"] == pytest.approx(sum(at_capacity) / 2)
    report = (folder / "report.md").read_text()
    assert "response at capacity" in report
    assert "Latency of responses at the capacity (modelled)" in report
    by_class = {(row["series"], row["slo"]): row["latencies"] for row in summary["rows"]}
    assert list(by_class["wisp", "class-3:0.5,class-4:0.5"]) == ["all", "class-3", "class-4"]
    assert list(by_class["wisp", "class-4"]) == ["all"]
    with (folder / "capacity.csv").open() as file:
        lines = {
            (line["series"], line["slo"], line["class"]): line for line in csv.DictReader(file)
        }
    assert len(lines) == 2 * (1 + 1 + 3)
    for (series, slo), latencies in by_class.items():
        for name, group in latencies.items():
            for metric in ("ttft_s", "icl_s", "response_s"):
                line = lines[series, slo, name]
                assert float(line[f"{metric}_p99"]) == group[metric]["p99"]["mean"]


def test_a_class_that_cannot_be_served_is_said_beside_the_others(tmp_path: Path) -> None:
    slos = ["--slo", "class-4", "--slo", "60/s"]
    odds = ["--acceptance", "iid:alpha=0.8,length=4"]
    _, summary, terminal = searched(
        *odds, *slos, *LENGTHS, *SHORT, "--seeds", 1, "--most", 4, "--out", tmp_path
    )
    served, refused = summary["rows"]
    assert served["bounded"]
    assert refused["capacity"]["mean"] == 0
    assert "no batch can meet the SLO '60/s'" in refused["refused"]
    assert "AT LEAST: wisp, 8 tokens/s" in terminal
    assert "REFUSED: wisp, 60 tokens/s" in terminal


def test_capacity_against_the_estimators_error(tmp_path: Path) -> None:
    grid = ["--estimator-factor", "0.5,1", "--slo", "class-4"]
    odds = ["--acceptance", "iid:alpha=0.8,length=4"]
    folder, summary, _ = searched(*odds, *grid, *LENGTHS, *SHORT, "--seeds", 1, "--out", tmp_path)
    assert [row["estimator_factor"] for row in summary["rows"]] == [0.5, 1.0]
    assert read_object(folder / "run.json")["config"]["estimator_factor"] == [0.5, 1.0]


def test_a_preset_of_the_search_runs_under_either_command(tmp_path: Path) -> None:
    rules = ["--scheduler", "static:size=8", "--acceptance", "iid:alpha=0.78,length=4"]
    smaller = ["--system", "sled", *rules, "--slo", "class-4", "--label", "sled"]
    options = ["--preset", "wisp-table-2", *smaller, *LONGER, "--seeds", 1]
    searches = [
        searched(*options, "--out", tmp_path / command, command=command)[1]
        for command in ("simulate", "capacity")
    ]
    assert searches[0] == searches[1]
    pairs = {
        (published["series"], published["where"]["slo"]): published
        for published in searches[0]["published"]
    }
    assert pairs["sled", "class-4"]["value"] == 21
    assert pairs["sled", "class-4"]["simulated"]["mean"] > 0
    assert pairs["algorithm 1, late lane", "class-1"]["simulated"] is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--slo", "60/s"], "no batch can meet the SLO '60/s'"),
        (["--epsilon", "2"], "--epsilon is a share of responses"),
        (["--most", "0"], "--most must be at least 1 device"),
        (
            ["--output-tokens", "2000"],
            "at 4 tokens/s a response may take 500 s: give --duration 1003 or more",
        ),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str, tmp_path: Path) -> None:
    odds = ["--acceptance", "iid:alpha=0.8,length=4", "--prompt-tokens", 60, *SHORT, "--seeds", 1]
    lengths = [] if "--output-tokens" in arguments else ["--output-tokens", 30]
    assert line in error_line(skit_here("capacity", *odds, *lengths, *arguments, "--out", tmp_path))


def test_a_run_too_short_for_its_promise_is_refused_before_anything_is_recorded(
    tmp_path: Path,
) -> None:
    short = ["--target", "bundled", "--max-new-tokens", 128, "--duration", 40, "--warm-up", 30]
    done = skit_here("capacity", *short, "--out", tmp_path)
    assert "no response of 128 tokens is due within 40 s" in error_line(done)
    assert "recording  " not in done.stderr
    assert not list(tmp_path.glob("**/trace.parquet"))


def test_a_method_that_no_recording_serves_is_refused_before_it(tmp_path: Path) -> None:
    done = skit_here(
        "capacity",
        "--target",
        "bundled",
        "--method",
        "specinfer",
        *LENGTHS,
        *SHORT,
        "--out",
        tmp_path,
    )
    assert "cannot be replayed" in error_line(done)
    assert "recording  " not in done.stderr
    assert not list(tmp_path.glob("**/trace.parquet"))


def test_the_best_two_are_searched_at_the_ends_of_derived_times(tmp_path: Path) -> None:
    """A slower verifier serves no more devices, and the line says whether the best one stays ahead."""
    systems = ["--system", "wisp", "--system", "sled", "--system", "centralized"]
    where = [
        "--deployment",
        "wisp-roofline",
        "--acceptance",
        "iid:alpha=0.8,length=4",
        "--slo",
        "class-4",
    ]
    folder, summary, terminal = searched(
        *systems, *where, *LENGTHS, *SHORT, "--seeds", 1, "--out", tmp_path
    )
    means = {row["series"]: row["capacity"]["mean"] for row in summary["rows"]}
    first, second = sorted(means, key=lambda name: -means[name])[:2]
    assert [row["series"] for row in summary["ranges"]] == [first, second]
    for row in summary["ranges"]:
        slow, fast = row["capacity"]
        assert row["ends"] == {"fast verifier": fast, "slow verifier": slow}
        assert slow < fast
        assert slow <= row["mean"] == means[row["series"]] <= fast
    low, high = summary["ranges"][1]["capacity_ratio"]
    verdict = (
        "seeds show no difference" if low > 1 or high < 1 else "no difference is shown there either"
    )
    line = " ".join(terminal.split())
    assert f"{first} ({verdict}); 1 more was not searched at the ends." in line
    assert line.count("DERIVED TIMES") == 1
    assert low <= means[second] / means[first] <= high
    assert "DERIVED TIMES" in (folder / "report.md").read_text()

"""`skit simulate` from the command line."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TinyPair, error_line, read_object, skit_here, write_rows
from trace_builders import made_requests, write_trace

from specbench_kit.core.typed_json import JsonObject

pytestmark = pytest.mark.slow

ODDS = ["--acceptance", "iid:alpha=0.8,length=4", "--prompt-tokens", 60, "--output-tokens", 30]
SHORT = ["--duration", 40, "--warm-up", 5, "--jobs", 1]
MIX = "class-1:0.5,class-4:0.5"
FIGURES = ("violations", "throughput", "waiting", "interference", "attainment")


def simulated(*arguments: object, command: str = "simulate") -> tuple[Path, JsonObject, str]:
    """The run directory, the summary, and what was said."""
    done = skit_here(command, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    (folder,) = map(Path, document["run_dirs"])
    return folder, document["summary"], done.stderr


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JsonObject, str]:
    out = tmp_path_factory.mktemp("out")
    systems = ["--system", "wisp", "--system", "centralized", "--system", "sled"]
    load = ["--devices", "4,8,60", "--slo", MIX, "--seeds", 2, "--events", "--timeline", "10:11"]
    return simulated(*systems, *ODDS, *SHORT, *load, "--out", out)


def test_a_run_leaves_tables_report_and_plots(side_by_side: tuple[Path, JsonObject, str]) -> None:
    folder, summary, terminal = side_by_side
    assert re.fullmatch(r"\d{8}T\d{6}Z-simulate-wisp-centralized-sled-[0-9a-f]{8}", folder.name)
    files = {"run.json", "summary.json", "simulate.csv", "report.md", "report.html"}
    assert files <= {path.name for path in folder.iterdir()}
    plots = {path.name for path in (folder / "plots").iterdir()}
    assert plots >= {f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg")}
    assert read_object(folder / "summary.json") == summary
    assert f"report: {folder / 'report.html'} (as text: report.md)" in terminal
    assert "MODELLED TIME" in terminal


def test_a_row_per_system_and_number_of_devices(side_by_side: tuple[Path, JsonObject, str]) -> None:
    folder, summary, _ = side_by_side
    grid = [
        (series, devices) for series in ("wisp", "centralized", "sled") for devices in (4, 8, 60)
    ]
    assert [(row["series"], row["devices"]) for row in summary["rows"]] == grid
    for row in summary["rows"]:
        overall = row["figures"]["overall"]
        assert set(row["figures"]["classes"]) == {"class-1", "class-4"}
        assert overall["goodput"]["mean"] <= overall["throughput"]["mean"]
        assert (
            overall["throughput"]["low"]
            <= overall["throughput"]["mean"]
            <= overall["throughput"]["high"]
        )
    with (folder / "simulate.csv").open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 3 * len(grid)
    first = summary["rows"][0]["figures"]["overall"]["throughput"]["mean"]
    assert float(table[0]["throughput"]) == first
    slow_class = summary["rows"][0]["figures"]["classes"]["class-1"]
    for metric in ("ttft_s", "icl_s", "response_s"):
        for percentile in ("p50", "p95", "p99"):
            assert (
                float(table[1][f"{metric}_{percentile}"])
                == slow_class[metric][percentile]["mean"]
                > 0
            )


def test_series_are_compared_seed_by_seed(side_by_side: tuple[Path, JsonObject, str]) -> None:
    rows = {(row["series"], row["devices"]): row for row in side_by_side[1]["rows"]}
    for pair in side_by_side[1]["against_first"]:
        ours, theirs = rows[pair["series"], pair["devices"]], rows["wisp", pair["devices"]]
        rates = [row["figures"]["overall"]["violation_rate"]["mean"] for row in (ours, theirs)]
        assert pair["violation_difference"]["mean"] == pytest.approx(rates[0] - rates[1])


def test_the_report_says_what_was_assumed(side_by_side: tuple[Path, JsonObject, str]) -> None:
    folder = side_by_side[0]
    report = (folder / "report.md").read_text()
    assert report.startswith("# Simulation of 3 systems\n")
    for section in (
        "Results (modelled)",
        "By class",
        "Latency of responses",
        "Rounds",
        "Server",
        "More figures",
        "Events",
        "Systems",
        "Deployment",
    ):
        assert f"## {section}" in report
    assert "MODELLED TIME" in report
    assert "24,708 tokens, what" in report
    page = (folder / "report.html").read_text()
    assert page.count("<svg ") >= len(FIGURES)
    run = read_object(folder / "run.json")
    assert (run["command"], run["time_kind"]) == ("simulate", "modelled")
    assert run["config"]["devices"] == [4, 8, 60]
    assert [series["method"] for series in run["series"]] == ["wisp", "autoregressive", "fixed-k"]


def test_events_are_tables_of_every_run(side_by_side: tuple[Path, JsonObject, str]) -> None:
    import pandas

    folder = side_by_side[0]
    files = sorted((folder / "events").iterdir())
    assert len(files) == 3 * 3 * 2 * 3
    rounds = pandas.read_parquet(folder / "events" / "sled-devices-4-seed-1-rounds.parquet")
    batches = pandas.read_parquet(folder / "events" / "sled-devices-4-seed-1-batches.parquet")
    verified = rounds[rounds["batch"] >= 0]
    assert len(verified) > 50
    assert (
        verified.groupby("batch").size() == batches["size"][: verified["batch"].max() + 1]
    ).all()
    assert (rounds["cached"] == 0).all()


def test_the_timeline_shows_the_window(side_by_side: tuple[Path, JsonObject, str]) -> None:
    folder = side_by_side[0]
    trace = read_object(folder / "timeline-wisp.json")
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    labels = {span["name"] for span in spans}
    assert labels >= {"draft", "transfer", "queue", "verify"}
    assert all(
        span["ts"] < 11e6 and span["ts"] + span["dur"] > 10e6
        for span in spans
        if span["name"] == "verify"
    )
    names = {
        event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"
    }
    assert {"edge", "link", "server queue", "server"} <= names


def test_the_same_run_leaves_the_same_bytes_for_any_number_of_processes(tmp_path: Path) -> None:
    command = [*ODDS, "--devices", "5,9", "--seeds", 2, *SHORT[:-2]]
    folders = [
        simulated(*command, "--jobs", jobs, "--out", tmp_path / str(jobs))[0] for jobs in (1, 2)
    ]
    for name in ("summary.json", "simulate.csv", "plots/violations.svg"):
        assert folders[0].joinpath(name).read_bytes() == folders[1].joinpath(name).read_bytes()


def test_a_trace_is_replayed_under_the_drafting_method(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "made.parquet", made_requests(6)).path
    methods = ["--method", "fixed-k:k=1", "--method", "fixed-k:k=4"]
    folder, summary, _ = simulated(
        "--acceptance", trace, *methods, *SHORT, "--seeds", 1, "--out", tmp_path
    )
    sent = [row["figures"]["overall"]["submitted_per_verify"]["mean"] for row in summary["rows"]]
    assert sent == pytest.approx([1, 4])
    assert [series["acceptance"] for series in read_object(folder / "run.json")["series"]] == [
        "made.parquet"
    ] * 2


def test_a_run_is_a_source_of_acceptance(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "made.parquet", made_requests(6)).path
    bench = skit_here(
        "bench", "--replay", trace, "--method", "fixed-k:k=3", "--out", tmp_path, "--json"
    )
    (folder,) = json.loads(bench.stdout.splitlines()[-1])["run_dirs"]
    _, summary, _ = simulated("--acceptance", folder, *SHORT, "--seeds", 1, "--out", tmp_path)
    assert summary["rows"][0]["figures"]["overall"]["submitted_per_verify"][
        "mean"
    ] == pytest.approx(3)


def test_without_a_source_a_trace_is_recorded(tiny: TinyPair, tmp_path: Path) -> None:
    prompts = write_rows(
        tmp_path / "p.jsonl", *({"id": f"q{i}", "prompt": f"What is {i}?"} for i in range(4))
    )
    recording = [
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
    options = ["--system", "sled", *recording, *SHORT, "--seeds", 1, "--out", tmp_path]
    folder, _, terminal = simulated(*options)
    run = read_object(folder / "run.json")
    assert "recording 3 answers to " in terminal
    assert "no --acceptance" not in terminal
    assert (folder / "trace.parquet").is_file()
    assert run["dataset"]["count"] == 3
    assert set(run["models"]) == {"target", "draft"}
    assert run["series"][0]["acceptance"] is None


def test_arrivals_of_a_trace_file(tmp_path: Path) -> None:
    rows = "".join(f"{second},{40 + second},{10}\n" for second in range(30))
    (tmp_path / "azure.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}")
    system = ["--system", "centralized", "--acceptance", "iid:alpha=0,length=0", "--devices", 30]
    arrivals = ["--arrivals", tmp_path / "azure.csv", "--objective", "tpot", "--slo", "5/s"]
    _, summary, _ = simulated(*system, *arrivals, *SHORT, "--seeds", 1, "--out", tmp_path)
    overall = summary["rows"][0]["figures"]["overall"]
    assert overall["responses"]["mean"] == 25
    assert overall["violation_rate"]["mean"] == 0


def test_guard_times_are_weighed_against_a_wrong_estimator(tmp_path: Path) -> None:
    grid = [
        "--estimator-factor",
        "0.5,1",
        "--guard",
        "0.05,0.4",
        "--devices",
        40,
        "--slo",
        "class-4",
    ]
    folder, summary, terminal = simulated(*ODDS, *grid, *SHORT, "--seeds", 2, "--out", tmp_path)
    assert len(summary["rows"]) == 4
    assert [guard["estimator_factor"] for guard in summary["guards"]] == [0.5]
    assert "estimator times 0.5, noise 0" in terminal
    assert "## Guard time against a wrong estimator" in (folder / "report.md").read_text()
    wrong = [row for row in summary["rows"] if row["estimator_factor"] == 0.5]
    assert all(
        row["figures"]["server"]["estimate_over_true"]["mean"] == pytest.approx(0.5)
        for row in wrong
    )


def test_a_preset_stands_beside_the_paper(tmp_path: Path) -> None:
    short = ["--duration", 30, "--warm-up", 5, "--seeds", 1, "--jobs", 1]
    folder, summary, terminal = simulated("--preset", "wisp-table-1", *short, "--out", tmp_path)
    rates = [pair for pair in summary["published"] if pair["series"] == "fcfs"]
    assert [pair["value"] for pair in rates] == pytest.approx([0.0, 0.3645, 0.9415, 0.9835])
    # Devices that were promised more are disappointed more often, in the paper and here.
    violation_rates = [pair["simulated"]["mean"] for pair in rates]
    assert violation_rates == sorted(violation_rates)
    assert violation_rates[-1] > 0.5
    report = (folder / "report.md").read_text()
    assert "## Published and simulated" in report
    assert "## Assumed inputs" in report
    assert "published" in terminal
    run = read_object(folder / "run.json")
    assert (run["preset"]["name"], run["config"]["seeds"]) == ("wisp-table-1", 1)


def test_the_printed_algorithm_livelocks_and_says_so(tmp_path: Path) -> None:
    load = [
        "--devices",
        260,
        "--slo",
        "class-4",
        "--duration",
        150,
        "--warm-up",
        5,
        "--jobs",
        1,
        "--seeds",
        1,
    ]
    longer = [*ODDS[:3], 500, *ODDS[4:]]
    _, summary, terminal = simulated(*longer, "--scheduler", "wisp-paper", *load, "--out", tmp_path)
    assert summary["rows"][0]["figures"]["server"]["refusals"]["mean"] > 0
    assert "LIVELOCK: wisp at 260 devices" in terminal


PROFILE = """name = "other"
role = "verifier"
device = "a100-80"
model = "llama3.1-70b"
dtype = "bfloat16"
source = "published"
reference = "made up"

[coefficients]
form = "interactions"
a_s = 1e-5
b_compute_s = 1e-9
b_read_s = 1e-6
c_s = 0.01
"""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--devices", "0"], "a simulation needs at least 1 device, not 0"),
        (["--devices", "few"], "--devices takes numbers such as 20"),
        (["--slo", "60/s"], "no batch can meet the SLO '60/s' of 60 tokens/s"),
        (
            ["--slo", "class-5"],
            "unknown SLO 'class-5'; give a speed such as 7.5tok/s, or a class: class-1 (2 tokens/s)",
        ),
        (["--prompt-tokens", "50000"], "exceeds the model's context of 40960"),
        (
            ["--kv-tokens", "100", "--prompt-tokens", "200"],
            "exceeds the server's KV memory of 100 tokens",
        ),
        (
            ["--kv-tokens", "much"],
            "--kv-tokens takes a number of tokens, auto or unlimited, not 'much'",
        ),
        (["--system", "wisps"], "unknown system 'wisps' (did you mean 'wisp'?)"),
        (["--scheduler", "lifo"], "unknown scheduler 'lifo'"),
        (
            ["--scheduler", "wisp"],
            "unknown scheduler 'wisp' (did you mean 'wisp-paper' or 'wisp-promise'?)",
        ),
        (
            ["--scheduler", "wisp-paper:guard=1"],
            "wisp-paper: unknown option 'guard' (did you mean 'guard_s'?); known: guard_s, late_lane, amortise, by",
        ),
        (["--preset", "wisp-table-9"], "unknown preset 'wisp-table-9'"),
        (["--deployment", "local"], "choose a --deployment from skit list deployments"),
        (["--deployment", "nowhere"], "unknown deployment 'nowhere'"),
        (["--acceptance", "iid:alpha=1.2"], "acceptance rates must lie in 0..1"),
        (["--acceptance", "iid:length=3"], "iid: option 'alpha' has to be given"),
        (["--acceptance", "iid:alpha=0.5,recall=0.9"], "needs both its recall and its specificity"),
        (["--acceptance", "nothing.parquet"], "unknown acceptance 'nothing.parquet'"),
        (["--arrivals", "rarely"], "unknown arrivals 'rarely'"),
        (["--arrivals", "poisson:rate_per_s=0"], "the arrival rate must be above 0"),
        (["--arrivals", "poisson"], "poisson: option 'rate_per_s' has to be given"),
        (["--arrivals-scale", "2"], "--arrivals-scale is for the arrivals of a file"),
        (["--objective", "beauty"], "--objective must be speed or tpot, not 'beauty'"),
        (["--backend", "cloud"], "--backend must be processes or ray, not 'cloud'"),
        (["--timeline", "5"], "--timeline takes FROM:TO in simulated seconds"),
        (["--warm-up", "50"], "the warm-up of 50 s must end before the 40 s that are simulated"),
        (
            ["--acceptance", "record", "--warm-up", "50"],
            "the warm-up of 50 s must end before the 40 s",
        ),
        (["--acceptance", "record", "--system", "specedge"], "specedge: a trace holds chains"),
        (["--estimator-factor", "0"], "the estimator's factor must be above 0"),
        (
            ["--estimator-factor", "wrong"],
            "--estimator-factor takes numbers with commas between them",
        ),
        (["--estimator-profile", "PROFILE"], "is of llama3.1-70b, but the server runs qwen3-32b"),
        (["--set", "link.speed=1"], "speed"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str, tmp_path: Path) -> None:
    (tmp_path / "profile.toml").write_text(PROFILE)
    given_arguments = [
        str(tmp_path / "profile.toml") if argument == "PROFILE" else argument
        for argument in arguments
    ]
    base = [*ODDS, *SHORT, "--seeds", 1]
    options = {
        name: value
        for name, value in zip(base[::2], base[1::2], strict=True)
        if name not in given_arguments
    }
    done = skit_here(
        "simulate",
        *[part for pair in options.items() for part in pair],
        *given_arguments,
        "--out",
        tmp_path / "o",
    )
    assert line in error_line(done)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", ["simulate", "capacity"])
def test_responses_of_unknown_length_are_refused_before_any_work(
    command: str, tmp_path: Path
) -> None:
    done = skit_here(
        command, "--acceptance", "iid:alpha=0.8,length=4", "--prompt-tokens", 60, "--out", tmp_path
    )
    assert error_line(done).endswith(
        "give --prompt-tokens and --output-tokens, such as 200 and 128"
    )
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n")
    done = skit_here(
        "simulate", *ODDS, "--arrivals", tmp_path / "none.csv", "--out", tmp_path / "o"
    )
    assert "holds no request" in error_line(done)
    empty = tmp_path / "empty.parquet"
    source = write_trace(tmp_path / "made.parquet", made_requests(1))
    from specbench_kit.traces.writing import TraceWriter

    with TraceWriter(empty, source.header):
        pass
    done = skit_here(
        "simulate", "--acceptance", empty, "--method", "fixed-k", "--out", tmp_path / "o"
    )
    assert "holds no request" in error_line(done)


def test_trees_cannot_come_from_a_trace(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "made.parquet", made_requests(2)).path
    done = skit_here(
        "simulate", "--system", "specedge", "--acceptance", trace, "--out", tmp_path / "o"
    )
    assert "run it live" in error_line(done)


def test_a_ray_cluster_gives_the_same_numbers(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    command = [*ODDS, "--devices", "5,9", "--seeds", 2, *SHORT]
    local_folder, _, _ = simulated(*command, "--out", tmp_path / "here")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        ray_folder, _, _ = simulated(*command, "--backend", "ray", "--out", tmp_path / "there")
    finally:
        ray.shutdown()
    assert (local_folder / "summary.json").read_bytes() == (
        ray_folder / "summary.json"
    ).read_bytes()


ANSWERED = """
import sys
from specbench_kit.cli.main import main
from specbench_kit.studies.serving import terminal
shown = terminal.print_serving
def show(*arguments):
    slow = {"torch", "transformers", "joblib", "matplotlib", "pyarrow", "pandas", "sklearn"}
    print("LOADED", *sorted(slow & sys.modules.keys()))
    shown(*arguments)
terminal.print_serving = show
main()
"""


def test_a_small_simulation_is_answered_before_anything_slow_is_loaded(tmp_path: Path) -> None:
    """No library of models, no other processes, and figures only after the result is shown."""
    command = map(str, ("simulate", *ODDS, *SHORT, "--devices", 2, "--out", tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", ANSWERED, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    assert line == "LOADED"
    assert done.stdout.index("LOADED") < done.stdout.index("report:")
    assert len(list(tmp_path.glob("*/plots/*.svg"))) > 1


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = skit_here("simulate", *ODDS, *SHORT, "--backend", "ray", "--out", tmp_path)
    assert error_line(done) == "--backend ray needs Ray: pip install 'specbench-kit[ray]'"


def test_derived_times_show_their_range_and_whether_a_verdict_holds(tmp_path: Path) -> None:
    command = (
        "simulate",
        "--deployment",
        "wisp-roofline",
        "--system",
        "wisp",
        "--system",
        "centralized",
    )
    load = (
        "--acceptance",
        "iid:alpha=0.8,length=4",
        "--prompt-tokens",
        "200",
        "--output-tokens",
        "64",
    )
    short = (
        "--devices",
        "4",
        "--duration",
        "20",
        "--warm-up",
        "5",
        "--seeds",
        "1",
        "--out",
        tmp_path,
        "--json",
    )
    done = skit_here(*command, *load, *short)
    assert done.returncode == 0, done.stderr
    ranges = {row["series"]: row for row in json.loads(done.stdout)["summary"]["ranges"]}
    assert set(ranges["wisp"]["ends"]) == {"fast verifier", "slow verifier"}
    for row in ranges.values():
        slow, fast = row["throughput"]
        assert slow == row["ends"]["slow verifier"]["throughput"] < fast
    assert ranges["wisp"]["throughput_ratio"] is None
    low, high = ranges["centralized"]["throughput_ratio"]
    holds = low > 1 or high < 1
    text = " ".join(done.stderr.split())
    assert (
        "DERIVED TIMES: what profiles, host and interconnects may be leaves, at 4 devices: wisp"
        in text
    )
    # One seed shows no difference, which therefore cannot fail over the range either.
    assert ("(seeds show no difference)" in text) == holds
    assert ("(no difference is shown there either)" in text) != holds
    assert "verdict does not hold" not in text


def test_published_times_are_simulated_once(tmp_path: Path) -> None:
    command = (
        "simulate",
        "--deployment",
        "wisp",
        "--acceptance",
        "iid:alpha=0.8,length=4",
        "--devices",
        "2",
    )
    lengths = ("--prompt-tokens", "200", "--output-tokens", "64")
    done = skit_here(
        *command,
        *lengths,
        "--duration",
        "20",
        "--warm-up",
        "5",
        "--seeds",
        "1",
        "--out",
        tmp_path,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["ranges"] == []
    assert "DERIVED TIMES" not in done.stderr


@pytest.mark.parametrize("command", [("simulate", "--devices", "2"), ("capacity", "--most", "2")])
def test_without_a_word_on_what_to_record_the_recorded_pair_is_taken(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    short = (
        "--method",
        "fixed-k",
        "--duration",
        "30",
        "--warm-up",
        "2",
        "--seeds",
        "1",
        "--jobs",
        "1",
    )
    done = skit_here(*command, *short, "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    assert "no --acceptance: taking qwen2.5-coder" in " ".join(done.stderr.split())
    (run,) = tmp_path.glob("*/run.json")
    assert read_object(run)["config"]["acceptance"] == ["qwen2.5-coder"]


def test_a_bare_number_is_tokens_per_second_and_a_class_is_named(tmp_path: Path) -> None:
    promised = {}
    for slo in ("4", "4/s", "class-2", "class-4"):
        out = tmp_path / slo.replace("/", "-")
        rates = (
            "--acceptance",
            "iid:alpha=0.8,length=4",
            "--prompt-tokens",
            "60",
            "--output-tokens",
            "20",
        )
        short = (
            "--devices",
            "1",
            "--duration",
            "20",
            "--warm-up",
            "2",
            "--seeds",
            "1",
            "--jobs",
            "1",
            "--out",
            out,
        )
        done = skit_here("simulate", *rates, *short, "--slo", slo, "--json")
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout.splitlines()[-1])["summary"]["rows"]
        ((name, figures),) = row["figures"]["classes"].items()
        promised[slo] = name, figures["promised_speed"]["mean"]
    assert promised == {
        "4": ("4/s", 4),
        "4/s": ("4/s", 4),
        "class-2": ("class-2", 4),
        "class-4": ("class-4", 8),
    }

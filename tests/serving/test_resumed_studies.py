"""Simulations and searches that are interrupted, killed or lose a node of a cluster go on where they ended."""

import json
import operator
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_line import SKIT, TinyPair, environment, error_line, skit_here, write_rows
from trace_builders import made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.runs.folder import unused_folder
from specbench_kit.runs.parts import NAME, KeptParts, unfinished_parts
from specbench_kit.serving.parallel import Workers
from specbench_kit.studies.planning import search
from specbench_kit.studies.serving import capacity, simulation_grid
from specbench_kit.studies.sweep import grid
from specbench_kit.studies.sweep.settings import SweepSettings

ODDS = ("--acceptance", "iid:alpha=0.8,length=4", "--prompt-tokens", 60, "--output-tokens", 30)
SHORT = ("--duration", 12, "--warm-up", 2, "--jobs", 1)
SEARCH = (
    "capacity",
    "--deployment",
    "wisp",
    "--system",
    "sled",
    "--slo",
    "4",
    *ODDS,
    *SHORT,
    "--seeds",
    3,
    "--most",
    16,
)
GRID = (
    "simulate",
    "--system",
    "wisp",
    "--system",
    "sled",
    *ODDS,
    *SHORT,
    "--devices",
    "2,4",
    "--seeds",
    2,
)
PLAN = (
    *(
        "plan",
        "--devices",
        60,
        "--class",
        6,
        "--link",
        "40ms",
        "--gpus",
        "l40s",
        "--cards",
        1,
        "--bits",
        4,
    ),
    *(
        "--method",
        "fixed-k:k=2",
        "--scheduler",
        "fcfs",
        "--max-batch",
        16,
        "--acceptance",
        "iid:alpha=0.8,length=2",
    ),
    *("--prompt-tokens", 200, "--output-tokens", 24, "--jobs", 1),
)
SWEEP = (
    *(
        "sweep",
        "--target",
        "synthetic",
        "--draft",
        "synthetic:ranks=0.5",
        "--limit",
        1,
        "--max-new-tokens",
        24,
    ),
    *(
        "--method",
        "fixed-k:k=2",
        "--deployment",
        "wan",
        "--set",
        "link.rtt_s=0.01,0.1,0.2",
        "--set",
        "fixed-k.k=1,2",
    ),
)
COMMANDS = [
    pytest.param(SEARCH, capacity, "find_capacity", 3, id="capacity"),
    pytest.param(GRID, simulation_grid, "simulate_and_measure", 8, id="simulate"),
    pytest.param(SWEEP, grid, "work_on_point", 6, id="sweep"),
    pytest.param(
        PLAN, search, "most_devices", None, id="plan", marks=[pytest.mark.slow, pytest.mark.nightly]
    ),
]


def summary_of(out: Path) -> bytes:
    (path,) = out.glob("*/summary.json")
    assert not path.with_name(NAME).exists()
    return path.read_bytes()


@pytest.mark.parametrize(("command", "module", "function", "parts"), COMMANDS)
def test_what_was_done_is_not_done_again(
    command: tuple[object, ...],
    module: ModuleType,
    function: str,
    parts: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uninterrupted = tmp_path / "whole"
    cut = tmp_path / "cut"
    calls = []
    real: Callable[..., object] = getattr(module, function)

    def counted(*arguments: object) -> object:
        calls.append(arguments)
        return real(*arguments)

    def interrupted(*arguments: object) -> object:
        if len(calls) == 2:
            raise KeyboardInterrupt
        return counted(*arguments)

    monkeypatch.setattr(module, function, counted)
    assert skit_here(*command, "--out", uninterrupted).returncode == 0
    needed = len(calls)
    assert parts in (None, needed)
    calls.clear()
    monkeypatch.setattr(module, function, interrupted)
    done = skit_here(*command, "--out", cut)
    (folder,) = cut.iterdir()
    assert error_line(done) == f"interrupted; what is done is kept in {folder}: go on with --resume"
    assert len((folder / NAME).read_text().splitlines()) == 1 + 2
    calls.clear()
    monkeypatch.setattr(module, function, counted)
    resumed = skit_here(*command, "--out", cut, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert len(calls) == needed - 2
    assert summary_of(cut) == summary_of(uninterrupted)
    (folder,) = cut.iterdir()
    refused = error_line(skit_here(*command, "--out", cut, "--resume"))
    assert "holds no unfinished run with these settings" in refused
    assert f"this run is finished: {folder}" in refused


def test_a_search_that_is_killed_goes_on(tmp_path: Path) -> None:
    """The process gets no chance to say or to write anything, and leaves half a line behind."""
    out = tmp_path / "out"
    with subprocess.Popen(
        [SKIT, *map(str, SEARCH), "--out", str(out)], env=environment(), stderr=subprocess.PIPE
    ) as run:
        while (
            not (checkpoints := list(out.glob(f"*/{NAME}")))
            or checkpoints[0].read_text().count("\n") < 2
        ):
            assert run.poll() is None, run.stderr and run.stderr.read()
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    with checkpoints[0].open("a") as file:
        file.write('{"step":1,"part":2,"resu')
    assert skit_here(*SEARCH, "--out", out, "--resume").returncode == 0
    assert skit_here(*SEARCH, "--out", tmp_path / "whole").returncode == 0
    assert summary_of(out) == summary_of(tmp_path / "whole")


def test_a_search_does_not_go_on_with_another_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(3)).path
    out = tmp_path / "out"
    loads = (
        "--deployment",
        "wisp",
        "--slo",
        "class-4",
        *SHORT,
        "--seeds",
        3,
        "--most",
        8,
        "--out",
        out,
    )
    search = ("capacity", "--system", "sled", "--acceptance", trace, *loads)
    calls = []
    real = capacity.find_capacity

    def interrupted(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(capacity, "find_capacity", interrupted)
        assert "go on with --resume" in error_line(skit_here(*search))
    write_trace(trace, made_requests(2))
    (folder,) = out.iterdir()
    refused = error_line(skit_here(*search, "--resume"))
    assert refused.startswith(
        f"{out} holds no unfinished run with these settings; nearest is {folder.name}, with "
    )
    assert refused.endswith(
        f"with other content of {trace}: give its settings, or start a run without --resume"
    )
    write_trace(trace, made_requests(3))
    other = error_line(skit_here(*search, "--epsilon", 0.2, "--resume"))
    assert other == (
        f"{out} holds no unfinished run with these settings; nearest is {folder.name}, with epsilon 0.05, not 0.2: "
        "give its settings, or start a run without --resume"
    )
    assert skit_here(*search, "--resume").returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"kit":"0.0.1"}\n', "was begun with version 0.0.1 of the kit"),
        ("", "kit is missing"),
        ("{\n", "start a new run without --resume"),
        ("\udcff\n", "start a new run without --resume"),
        (
            '{"kit":"KIT"}\n{"step":1,"part":0,"result":{"load":"many","trials":[]}}\n',
            "load must be a whole",
        ),
        ('{"kit":"KIT"}\n{"step":-1,"part":0,"result":1}\n', "step must be"),
    ],
)
def test_a_damaged_or_older_file_is_one_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specbench_kit import __version__

    def interrupted(*_: object) -> Iterator[tuple[int, capacity.SeedSearch]]:
        yield 0, capacity.SeedSearch(1.0, [])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Workers, "_as_they_end", interrupted)
        assert "interrupted" in error_line(skit_here(*SEARCH, "--out", tmp_path))
    (path,) = tmp_path.glob(f"*/{NAME}")
    path.write_text(text.replace("KIT", __version__), errors="surrogateescape")
    assert said in error_line(skit_here(*SEARCH, "--out", tmp_path, "--resume"))


def test_a_sweep_whose_recording_is_interrupted_goes_on_with_it(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No prompt is decoded twice, and another limit is another sweep."""
    prompts = write_rows(
        tmp_path / "p.jsonl", *({"id": f"q{i}", "prompt": f"What is {i}?"} for i in range(5))
    )
    sizes = ("--dataset", prompts, "--max-new-tokens", 6, "--max-draft", 3, *tiny.options)
    command = (
        "sweep",
        *sizes,
        "--method",
        "fixed-k:k=2",
        "--deployment",
        "wan",
        "--set",
        "link.rtt_s=0.01,0.1",
    )
    out = tmp_path / "out"
    begin = KeptParts.begin

    def interrupted(parts: KeptParts) -> None:
        begin(parts)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KeptParts, "begin", interrupted)
        assert "go on with --resume" in error_line(skit_here(*command, "--out", out))
    assert "no unfinished run" in error_line(
        skit_here(*command, "--limit", 2, "--out", out, "--resume")
    )
    assert skit_here(*command, "--out", out, "--resume").returncode == 0
    assert skit_here(*command, "--out", tmp_path / "whole").returncode == 0
    assert rows_of(out) == rows_of(tmp_path / "whole")


def rows_of(out: Path) -> object:
    return json.loads(summary_of(out))["rows"]


RESUME = "import sys; from pathlib import Path; from specbench_kit.runs.parts import KeptParts; "
RESUME += "KeptParts.resumed(Path(sys.argv[1]))"


def test_only_one_process_writes_to_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", RESUME, str(folder)]
    parts = KeptParts(folder)
    parts.add(1, 0, 7)
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert f"{folder} is being written by another skit" in refused.stderr
    parts.remove()
    assert not list(folder.iterdir())


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes of two processors each on this machine."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.timeout(300)
def test_a_lost_node_of_a_cluster_loses_nothing(two_nodes: Any, tmp_path: Path) -> None:
    """Each node runs one part at a time, so that the second one has begun a part when two are under way."""
    cluster, second = two_nodes
    begun, ended = (tmp_path / name for name in ("begun", "ended"))
    command = "echo {0} >> {1}; sleep 2; echo {0} >> {2}; echo {0}"
    work = [(["sh", "-c", command.format(part, begun, ended)],) for part in range(6)]
    results = iter(Workers(backend="ray").map(subprocess.check_output, work))
    first = next(results)
    while len(begun.read_text().split()) - len(ended.read_text().split()) < 2:
        time.sleep(0.05)
    cluster.remove_node(second, allow_graceful=False)
    assert [first, *results] == [f"{part}\n".encode() for part in range(6)]
    assert len(begun.read_text().split()) > 6  # what the lost node had begun


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("two_nodes")
def test_an_error_of_a_part_is_that_error_on_a_cluster_too() -> None:
    with pytest.raises(ZeroDivisionError):
        list(Workers(backend="ray").map(operator.truediv, [(1, 1), (1, 0)]))
    with pytest.raises(SkitError, match=r"lacks this version of the kit: .*No module named"):
        list(Workers(backend="ray").map(of_this_file, [(1,)]))


def of_this_file(number: int) -> int:
    """A function that no node of the cluster can import."""
    return number


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("command", [SEARCH, SWEEP], ids=["capacity", "sweep"])
def test_a_search_on_a_cluster_comes_to_the_same(
    command: tuple[object, ...], tmp_path: Path
) -> None:
    assert skit_here(*command, "--out", tmp_path / "here").returncode == 0
    assert skit_here(*command, "--backend", "ray", "--out", tmp_path / "there").returncode == 0
    assert summary_of(tmp_path / "here") == summary_of(tmp_path / "there")


@pytest.mark.timeout(300)
def test_a_sweep_that_loses_a_node_has_every_point_once(
    two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is killed when the first point is kept and both nodes work on others."""
    import ray

    cluster, second = two_nodes
    trace = write_trace(tmp_path / "trace.parquet", made_requests(60)).path
    command = (
        "sweep",
        "--replay",
        trace,
        "--method",
        "fixed-k:k=2",
        "--method",
        "threshold",
        "--deployment",
        "wan",
    )
    command += ("--set", "link.rtt_s=0.01,0.02,0.04,0.08,0.16,0.32")
    assert skit_here(*command, "--out", tmp_path / "here").returncode == 0
    kept: list[int] = []
    add = KeptParts.add

    def add_and_kill(parts: KeptParts, step: int, part: int, result: object) -> None:
        add(parts, step, part, result)
        if not kept:
            while ray.available_resources().get("CPU", 0):
                time.sleep(0.01)
            cluster.remove_node(second, allow_graceful=False)
        kept.append(part)

    monkeypatch.setattr(KeptParts, "add", add_and_kill)
    done = skit_here(*command, "--backend", "ray", "--out", tmp_path / "there")
    assert done.returncode == 0, done.stderr
    assert sorted(kept) == list(range(6))
    while sum(node["Alive"] for node in ray.nodes()) > 1:  # the cluster takes a while to notice
        time.sleep(0.1)
    assert summary_of(tmp_path / "here") == summary_of(tmp_path / "there")


@pytest.mark.nightly  # the order of results, and a capacity on two processes, are tested too
def test_points_side_by_side_come_to_the_same(tmp_path: Path) -> None:
    for jobs in (1, 2):
        assert skit_here(*SWEEP, "--jobs", jobs, "--out", tmp_path / str(jobs)).returncode == 0
    assert summary_of(tmp_path / "1") == summary_of(tmp_path / "2")


def test_a_process_that_finds_another_trace_says_so(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace.parquet", made_requests(2)).path
    settings = SweepSettings(methods=("fixed-k",), deployment="wan", trace=trace)
    with pytest.raises(SkitError, match="is another file on a node of the Ray cluster"):
        grid.work_on_point(settings, settings.points()[0], trace, "of another file")


def test_a_sweep_without_ray_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = skit_here(*SWEEP, "--backend", "ray", "--out", tmp_path)
    assert error_line(done) == "--backend ray needs Ray: pip install 'specbench-kit[ray]'"
    assert not list(tmp_path.iterdir())


def test_results_come_in_the_order_of_the_work() -> None:
    work = [(json.dumps(number),) for number in range(20)]
    assert list(Workers(2).map(json.loads, work)) == list(range(20))


def test_a_finished_study_with_these_settings_is_named_beside_an_unfinished_one(
    tmp_path: Path,
) -> None:
    """An unfinished study of other settings leaves open whether there is one to resume, until all inputs are known."""
    defining = {"epsilon": 0.05}
    finished = unused_folder(tmp_path, "capacity", "sled", defining)
    finished.mkdir()
    for name in ("run.json", "summary.json"):
        (finished / name).write_text("{}")
    other = KeptParts(
        unused_folder(tmp_path, "capacity", "sled", {"epsilon": 0.2}), {"epsilon": 0.2}
    )
    other.begin()
    with pytest.raises(
        SkitError, match=f"with these settings; this run is finished: {finished}; start another one"
    ):
        unfinished_parts(tmp_path, "capacity", defining)
    with pytest.raises(
        SkitError, match=f"nearest is {other.folder.name}, with epsilon 0.2, not 0.1"
    ):
        unfinished_parts(tmp_path, "capacity", {"epsilon": 0.1})

"""A suite of a few made requests: its numbers are those of a replay, and anyone gets them again."""

import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from signal import SIGKILL

import pytest
import torch
from command_line import environment, error_line, read_object, skit_here, write_rows
from file_faults import fault, plant
from msgspec import structs
from nightly import nightly_except
from streaming_server import streaming_server
from study_pages import assert_made_again
from tiny_predictors import confidence_predictor
from trace_builders import DRAFT_S, MODELS, VERIFY_S, made_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import decode
from specbench_kit.core.user_data import user_folder, without_user_files
from specbench_kit.datasets.loading import load as load_dataset
from specbench_kit.decoding.policy import Policy
from specbench_kit.deployments.description import digest
from specbench_kit.deployments.loading import Definition
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.predictors.library import PairHashes, find
from specbench_kit.profilers import cards
from specbench_kit.runs.provenance import hash_file
from specbench_kit.serving.arrivals import ClosedLoop
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.serving.metrics import slo_violations
from specbench_kit.serving.round_sources import RecordedRounds
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.suite import definition
from specbench_kit.studies.suite.definition import Suite, load
from specbench_kit.studies.suite.files import read, save, submissions
from specbench_kit.studies.suite.kind import scoreboard
from specbench_kit.studies.suite.report import devices, headline
from specbench_kit.studies.suite.run import check, make_board
from specbench_kit.studies.suite.running import run_cell, run_fleet, run_suite
from specbench_kit.studies.suite.scores import (
    CellResult,
    FleetResult,
    SuiteResult,
    fleet_capacity,
    rounded,
)
from specbench_kit.traces.replay import prepare_for_replay, replay
from specbench_kit.traces.trace import TraceHeader
from specbench_kit.traces.writing import TraceWriter

DEPLOYMENT = """\
name = "made"
description = "Made for a test."
source = "No paper."
[drafter]
device = "edge"
coefficients = { form = "interactions", a_s = 0.0, b_compute_s = 0.0, b_read_s = 0.0, c_s = 0.01 }
[verifier]
device = "server"
coefficients = { form = "interactions", a_s = 0.0, b_compute_s = 0.0, b_read_s = 0.0, c_s = 0.1 }
[link]
rtt_s = 0.02
"""
SUITE = """\
name = "v0"
metrics = 1
seed = 0
summary = "a few made requests"
left_out = ["Everything else."]
policies = ["oracle:max_draft=6"]
bounds = ["oracle:max_draft=6"]
[pairs.made]
words = "made requests"
trace = "{trace}"
sha256 = "{sha256}"
prompts = "{prompts}"
[pairs.random]
words = "a synthetic pair"
draft = "ranks=0.7+0.1,spread=0.5"
requests = 10
prompt_tokens = 8
output_tokens = 16
[deployments.near]
words = "near"
file = "made.toml"
digest = "{near}"
[deployments.far]
words = "far"
file = "made.toml"
set = {{ "link.rtt_s" = 0.4 }}
digest = "{far}"
[[cells]]
pairs = ["made"]
deployments = ["near", "far"]
batch_sizes = [1, 2]
[[cells]]
pairs = ["random"]
deployments = ["near"]
batch_sizes = [1]
[pairs.drawn]
words = "a synthetic pair whose draft model samples"
draft = "ranks=0.7+0.1,spread=0.5"
requests = 10
prompt_tokens = 8
output_tokens = 16
temperature = 0.7
[[cells]]
pairs = ["drawn"]
deployments = ["near"]
batch_sizes = [1]
[fleets.crowd]
words = "devices with the made requests"
pair = "made"
deployment = "near"
devices = 8
loads = [2, 8, 16]
slo = "1:0.5,4:0.5"
late_share = 0.05
think_s = 1.0
ramp_s = 1.0
warmup_s = 5.0
duration_s = 60.0
seeds = 2
scheduler = "edf"
kv_tokens = 200
[fleets.trees]
words = "devices with the synthetic pair"
pair = "random"
deployment = "near"
devices = 2
loads = [2]
slo = "1"
late_share = 0.05
think_s = 1.0
ramp_s = 1.0
warmup_s = 5.0
duration_s = 30.0
seeds = 1
scheduler = "edf"
kv_tokens = 200
"""
PROMPT_NUMBERS = (11, 13, 18, 22, 27, 28, 1, 2)
"""Of prompts to which the tiny model's answers repeat themselves, so that drafts of earlier tokens are accepted."""
Results = dict[str, SuiteResult]
CELLS = ["made/near/1", "made/near/2", "made/far/1", "made/far/2", "random/near/1", "drawn/near/1"]


@dataclass(frozen=True)
class Seen(Method):
    """Knows prompts of the half for results."""

    trained_on = frozenset({"a-prompt"})

    def policy(self) -> Policy:
        raise NotImplementedError


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """The suite v0, in place of those of the kit."""
    root = tmp_path_factory.mktemp("suites")
    folder, trace = root / "v0", root / "made.parquet"
    folder.mkdir()
    texts = (
        {"id": f"p{number}", "prompt": f"prompt number {number}", "chat": False}
        for number in PROMPT_NUMBERS
    )
    file = write_rows(folder / "prompts.jsonl", *texts)
    prompts = load_dataset(str(file), data_dir=None, allow_sample=False, limit=None, seed=0).digest
    run = {
        "models": MODELS,
        "dataset": {"name": "made", "digest": prompts},
        "prompts": ["a-prompt"],
    }
    header = TraceHeader(
        6, DRAFT_S, VERIFY_S, {**run, "config": {"max_new_tokens": 17, "dtype": "float32"}}
    )
    with TraceWriter(trace, header) as writer:
        for number, request in enumerate(made_requests(10)):
            writer.append(replace(request, category=f"task {number % 2}"))
    definition_file = folder / "made.toml"
    definition_file.write_text(DEPLOYMENT)
    read_made = Definition(definition_file, "made", cards.read_toml(definition_file))
    near, far = (digest(read_made.replace(values).build()) for values in ({}, {"link.rtt_s": 0.4}))
    text = SUITE.format(trace=trace, sha256=hash_file(trace), prompts=prompts, near=near, far=far)
    (folder / "suite.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definition, "FOLDER", root)
        load.cache_clear()
        yield load("v0")
        load.cache_clear()


@pytest.fixture(scope="module")
def results(suite: Suite) -> Results:
    """Run the suite with a few policies."""
    specs = ["autoregressive", "oracle:max_draft=6", "fixed-k:k=3", "threshold", "specinfer"]
    return {result.policy.spec: result for result in run_suite(suite, specs, 1, silent)}


def silent(*_: object) -> None:
    """Report nothing."""


def cell_of(results: Results, spec: str, cell: str) -> CellResult:
    return results[spec].policy.cells[cell]


def test_the_seconds_are_those_of_a_replay(suite: Suite, results: Results) -> None:
    trace, deployment = suite.trace("made"), suite.deployment("far")
    method = prepare_for_replay(parse_method("fixed-k:k=3"), trace, deployment)
    records = list(replay(method, trace.header, trace, deployment=deployment))
    cell = cell_of(results, "fixed-k:k=3", "made/far/1")
    assert cell.seconds == tuple(rounded(record.e2e_s or 0.0) for record in records)
    assert cell.rounds == tuple(len(record.rounds) for record in records)
    assert cell.tokens == sum(len(record.output_ids) for record in records)


def test_scores_are_ratios_of_sums(suite: Suite, results: Results) -> None:
    board = scoreboard(suite, list(results.values()))
    for cell in CELLS:
        plain_s, oracle_s, own_s = (
            sum(cell_of(results, spec, cell).seconds)
            for spec in ("autoregressive", "oracle:max_draft=6", "fixed-k:k=3")
        )
        score = board.score("fixed-k:k=3", cell)
        assert score is not None
        assert score.speedup == pytest.approx(plain_s / own_s)
        assert score.regret == pytest.approx(max(0, 1 - min(oracle_s, plain_s) / own_s)), (
            "an oracle need not draft"
        )
        assert board.rank("oracle:max_draft=6", cell) is None, "it cannot be deployed"
    assert {standing.rank for standing in board.standings("made/near/1")} == {1, 2, 3}


def test_late_responses_are_those_of_a_simulation(suite: Suite, results: Results) -> None:
    table, deployment = suite.table.fleets["crowd"], suite.deployment("near")
    trace = suite.trace("made")
    method = prepare_for_replay(parse_method("fixed-k:k=3"), trace, deployment)
    rounds = RecordedRounds(list(replay(method, trace.header, trace, deployment=deployment)))
    scenario = Scenario(
        deployment,
        structs.replace(systems.get("wisp-cache"), scheduler="edf"),
        rounds,
        devices=8,
        slo=parse_slo(table.slo),
        arrivals=ClosedLoop(think_s=1.0, ramp_s=1.0),
        memory=KvCapacity(200),
        duration_s=60.0,
        warmup_s=5.0,
        require_attainable_slo=False,
    )
    by_seed = [slo_violations(scenario, simulate(scenario, seed)) for seed in (0, 1)]
    fleet = results["fixed-k:k=3"].policy.fleets["crowd"]
    assert [late[1] for late in fleet.late] == [
        rounded(float(violated.mean())) for violated, _ in by_seed
    ]
    first = [float(violated[of_class == 0].mean()) for violated, of_class in by_seed]
    assert fleet.late_by_class[0] == pytest.approx(sum(first) / 2)


def test_capacity_is_the_load_at_which_more_are_late_than_may_be(suite: Suite) -> None:
    fleet = suite.fleets["crowd"]
    result = FleetResult(
        late=((0.0, 0.1, 0.5), (0.0, 0.0, 0.04)), late_by_class=(0.0, 0.2), goodput=1.0
    )
    capacity = fleet_capacity(fleet, result)
    # Halfway between 2 and 8 devices with the first seed, and beyond all loads with the second.
    assert (capacity.least, capacity.most, capacity.is_bounded) == (5.0, 16.0, True)
    assert capacity.devices == pytest.approx(10.5)
    assert devices(fleet, capacity) == "at least 10"
    few = fleet_capacity(fleet, structs.replace(result, late=((0.5, 1.0, 1.0),)))
    assert few.devices == pytest.approx(0.2)
    assert devices(fleet, few) == "fewer than 2"


def test_more_devices_make_more_responses_late(results: Results) -> None:
    for late in results["autoregressive"].policy.fleets["crowd"].late:
        assert list(late) == sorted(late)
        assert late[0] < late[-1]


def test_a_fleet_in_which_a_policy_cannot_run_says_why(results: Results) -> None:
    assert "a trace holds chains" in results["specinfer"].policy.fleets["crowd"].missing
    assert results["specinfer"].policy.fleets["trees"].late
    assert run_fleet("v0", False, "ssd", "trees").result.late
    decoupled = run_fleet("v0", False, "decoupled", "trees").result
    assert (
        decoupled.missing
        == "its server never waits, so that its rounds depend on how busy the server is"
    )


def test_a_draft_model_that_samples_is_rejected_more_often(results: Results) -> None:
    greedy, drawn = (
        cell_of(results, "fixed-k:k=3", f"{pair}/near/1") for pair in ("random", "drawn")
    )
    assert drawn.tokens == greedy.tokens
    assert drawn.accepted / drawn.submitted < greedy.accepted / greedy.submitted


def test_a_policy_without_a_rival_has_no_rank(suite: Suite, results: Results) -> None:
    alone = scoreboard(suite, [results["autoregressive"], results["fixed-k:k=3"]])
    assert alone.score("fixed-k:k=3", "made/near/1")
    assert alone.rank("fixed-k:k=3", "made/near/1") is None
    assert "rank" not in headline(alone, "fixed-k:k=3")


def test_a_cell_in_which_a_policy_cannot_run_says_why(results: Results) -> None:
    assert "a trace holds chains" in cell_of(results, "specinfer", "made/near/1").missing
    assert cell_of(results, "specinfer", "random/near/1").seconds


def test_a_policy_that_runs_nowhere_is_an_error(suite: Suite) -> None:
    with pytest.raises(SkitError, match="wisp runs in no cell of suite v0: no predictor"):
        list(run_suite(suite, ["wisp"], 1, silent))


@pytest.mark.usefixtures("suite")
def test_the_users_own_files_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path))
    pair = PairHashes("a" * 64, "b" * 64)
    confidence_predictor(user_folder("predictors") / "mine", pair)
    assert find(pair), "every other command finds it"
    assert "no predictor" in run_cell("v0", False, "wisp", "made/near/1").result.missing
    with without_user_files():
        assert not find(pair)
    assert find(pair)


@pytest.mark.usefixtures("suite")
def test_training_on_a_prompt_of_the_suite_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_entries", {**methods.all(), "seen": Seen})
    missing = run_cell("v0", False, "seen", "made/near/1").result.missing
    assert (
        missing == "it was trained on 1 of the suite's prompts, so that its results would not count"
    )


def test_a_file_comes_out_again(results: Results, tmp_path: Path) -> None:
    path = save(results["threshold"], tmp_path)
    assert path.name == "v0-threshold.json"
    assert submissions(tmp_path) == [read(path)]
    check_result = check(read(path), 1, silent)
    assert check_result.differences == []
    # The fleet `crowd` has two seeds of three loads, two classes and a goodput; `trees` has one of each.
    assert (check_result.cells, check_result.fleets, check_result.numbers) == (
        6,
        2,
        6 * (10 + 10 + 7) + (2 * 3 + 2 + 1) + (1 + 1 + 1),
    )


def test_a_forged_number_is_found(results: Results, tmp_path: Path) -> None:
    honest = cell_of(results, "threshold", "made/near/2")
    faster = structs.replace(honest, seconds=(honest.seconds[0] * 0.999, *honest.seconds[1:]))
    policy = results["threshold"].policy
    forged = structs.replace(policy, cells={**policy.cells, "made/near/2": faster})
    path = save(structs.replace(results["threshold"], policy=forged), tmp_path)
    (line,) = check(read(path), 1, silent).differences
    assert re.match(
        r"threshold in made/near/2: seconds of request 1 are [\d.]+ in the file and [\d.]+ here$",
        line,
    )


def test_a_forged_share_of_late_responses_is_found(results: Results, tmp_path: Path) -> None:
    policy = results["fixed-k:k=3"].policy
    honest = policy.fleets["crowd"]
    better = structs.replace(honest, late=(honest.late[0], (0.0, 0.0, 0.0)))
    forged = structs.replace(policy, fleets={**policy.fleets, "crowd": better})
    path = save(structs.replace(results["fixed-k:k=3"], policy=forged), tmp_path)
    (line,) = check(read(path), 1, silent).differences
    assert line.startswith(
        "fixed-k:k=3 in crowd: late of seed 2 are (0.0, 0.0, 0.0) in the file and ("
    )


def test_files_that_do_not_count_are_refused_in_one_line(results: Results, tmp_path: Path) -> None:
    result = results["fixed-k:k=3"]
    path = save(result, tmp_path)
    text = path.read_text()
    for changed, reason in (
        (text.replace('"tokens":400', '"tokens":401'), "its seal does not hold"),
        (text[: len(text) // 2], "is no file of skit suite run"),
        ("{}", "is no file of skit suite run: schema is missing"),
    ):
        assert changed != text
        path.write_text(changed)
        with pytest.raises(SkitError, match=reason):
            read(path)
    for altered, reason in (
        (structs.replace(result, suite="v7"), "belongs to suite v7, and this kit has v0"),
        (
            structs.replace(result, suite_sha256="0" * 64),
            "another suite of the name v0: its hash is 000000000000",
        ),
        (structs.replace(result, schema=99), "has form 99"),
    ):
        with pytest.raises(SkitError, match=reason):
            read(save(altered, tmp_path))
    with pytest.raises(SkitError, match=r"cannot read .*gone\.json: No such file"):
        read(tmp_path / "gone.json")


def test_a_policy_that_is_not_installed_as_it_was_cannot_be_checked(results: Results) -> None:
    result = results["fixed-k:k=3"]
    absent = structs.replace(result.policy, spec="my-rule", package="skit-my-rule", version="0.1.0")
    with pytest.raises(
        SkitError, match=r"my-rule is not installed here: install skit-my-rule 0\.1\.0"
    ):
        check(structs.replace(result, policy=absent), 1, silent)
    altered = structs.replace(result.policy, source_sha256="0" * 64)
    with pytest.raises(
        SkitError,
        match="the source of fixed-k here is not the submitted one: install specbench-kit",
    ):
        check(structs.replace(result, policy=altered), 1, silent)


def test_a_quick_run_is_no_submission(suite: Suite, results: Results, tmp_path: Path) -> None:
    save(structs.replace(results["threshold"], quick=True), tmp_path)
    with pytest.raises(SkitError, match="of a quick run, which compares with nothing"):
        submissions(tmp_path)
    quick = load("v0", True)
    assert [len(quick.cells[cell].tasks) for cell in CELLS] == [2, 2, 2, 2, 2, 2]
    assert [len(suite.cells[cell].tasks) for cell in CELLS] == [10, 10, 10, 10, 10, 10]


def test_a_changed_trace_or_deployment_is_refused(suite: Suite) -> None:
    pairs = {
        **suite.table.pairs,
        "made": structs.replace(suite.table.pairs["made"], sha256="0" * 64),
    }
    with pytest.raises(SkitError, match="is not the one of suite v0"):
        replace(suite, table=structs.replace(suite.table, pairs=pairs)).trace("made")
    deployments = {**suite.table.deployments, "far": suite.table.deployments["near"]}
    deployments["far"] = structs.replace(deployments["far"], set={"link.rtt_s": 0.1})
    with pytest.raises(SkitError, match="the deployment far is not the one of suite v0"):
        replace(suite, table=structs.replace(suite.table, deployments=deployments)).deployment(
            "far"
        )


def test_every_policy_has_its_page_and_every_link_leads_somewhere(
    results: Results, tmp_path: Path
) -> None:
    for result in results.values():
        save(result, tmp_path / "submissions")
    page = make_board(tmp_path / "submissions", tmp_path / "site")
    pages = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert page in pages
    assert len(pages) == 1 + len(results)
    for path, text in pages.items():
        assert "http://" not in re.sub(r"http://www\.w3\.org\S*", "", text)
        for target in re.findall(r'href="([^"#]+)"', text):
            assert (path.parent / target).resolve() in pages, f"{path.name} links to {target}"
    # The first screen is one sentence, one figure and one table.
    assert (
        0
        < pages[page].index("is closest to the oracle")
        < pages[page].index("<svg")
        < pages[page].index("<table")
    )
    assert pages[page].index("<svg") < pages[page].index("to the last digit, with skit suite check")
    own = pages[tmp_path / "site" / "policies" / "specinfer.html"]
    assert "a trace holds chains" in own
    for text in (pages[page], own):
        assert "How many devices?" in text
        assert "devices served" in text
    assert methods.get("specinfer").source in own


@pytest.mark.usefixtures("suite")
def test_the_command_runs_submits_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    methods_named = [
        part
        for spec in ("autoregressive", "oracle:max_draft=6", "svip")
        for part in ("--method", spec)
    ]
    done = skit_here("suite", "run", "v0", *methods_named, "--submit", "submissions")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"svip: [\d.]+x the speed of autoregressive decoding over 4 cells",
        " ".join(done.stdout.split()),
    )
    (page,) = tmp_path.glob("results/*/report.html")
    assert 0 < page.read_text().index("<svg") < page.read_text().index("Every number is modelled")
    assert_made_again(page.parent, tmp_path / "again")
    own = tmp_path / "submissions" / "v0-svip.json"
    before = own.read_bytes()
    again = skit_here("suite", "run", "v0", *methods_named, "--submit", "submissions", "--resume")
    assert (again.returncode, own.read_bytes()) == (0, before)
    checked = skit_here("suite", "check", own)
    assert "come out to the last digit" in checked.stdout
    forged = decode(SuiteResult, before)
    save(
        structs.replace(forged, policy=structs.replace(forged.policy, lowered="k=1")),
        tmp_path / "submissions",
    )
    refused = skit_here("suite", "check", own)
    assert (refused.returncode, "svip: its lowered is another here" in refused.stdout) == (1, True)


def run_in_fork(faulty: dict[str, str], *arguments: object) -> int:
    """Run `skit` in a fork of this process, which has the suite v0, and return its exit code: it meets a fault."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # torch has threads, which the fork does not
        child = os.fork()
    if not child:
        code = 1
        try:
            torch.set_num_threads(1)
            plant(faulty)
            code = skit_here(*arguments).returncode
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


ENDS = [("kill", 0), ("kill", 1), ("kill", 2), ("full", 0)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks this process")
@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize(("kind", "part"), nightly_except([("kill", 1)], ENDS))
def test_a_run_that_is_ended_at_any_moment_loses_and_doubles_no_result(
    kind: str, part: int, tmp_path: Path
) -> None:
    def command(name: str, *options: object) -> tuple[object, ...]:
        named = ("--method", "autoregressive", "--method", "svip")
        out = ("--submit", tmp_path / name / "submissions", "--out", tmp_path / name / "runs")
        return ("suite", "run", "v0", *named, *out, *options)

    def submitted(name: str) -> dict[str, bytes]:
        files = (tmp_path / name / "submissions").iterdir()
        return {path.name: path.read_bytes() for path in files if not path.name.startswith(".")}

    log = tmp_path / "operations"
    assert run_in_fork(fault("none", 0, tmp_path / "whole", log), *command("whole")) == 0
    uninterrupted = submitted("whole")
    assert uninterrupted.keys() == {"v0-autoregressive.json", "v0-svip.json"}
    operations = log.read_text().splitlines()
    moment = sorted(Random(kind).sample(range(1, len(operations) + 1), 3))[part]
    ended = run_in_fork(fault(kind, moment, tmp_path / "ended"), *command("ended"))
    assert ended == (-SIGKILL if kind == "kill" else 2), operations[moment - 1]
    assert run_in_fork({}, *command("ended", "--resume")) == 0
    assert submitted("ended") == uninterrupted, operations[moment - 1]


@pytest.mark.usefixtures("suite")
def test_the_command_refuses_what_would_compare_with_nothing(tmp_path: Path) -> None:
    quick = skit_here("suite", "run", "v0", "--method", "svip", "--quick", "--submit", tmp_path)
    assert error_line(quick).startswith("--submit takes results that compare with others")
    assert (
        error_line(skit_here("suite", "run", "v0"))
        == "no policy: give at least one --method, or --server twice"
    )
    assert error_line(skit_here("suite", "run", "v0", "--method", "svip", "--resume")).startswith(
        "--resume goes with"
    )


def test_running_servers_have_a_measured_row(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for spec in ("autoregressive", "oracle:max_draft=6", "fixed-k:k=3"):
        save(results[spec], tmp_path / "submissions")
    with (
        streaming_server() as (first_address, _),
        streaming_server(speculates=True) as (second_address, _),
    ):
        servers = (
            "--server",
            f"plain=vllm://{first_address}",
            "--server",
            f"own=vllm://{second_address}",
        )
        done = skit_here(
            "suite", "run", "v0", *servers, "--submit", "submissions", "--hardware", "a tiny card"
        )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "submissions" / "v0-plain-own.measured.json"
    row = read_object(path)
    assert (row["requests"], row["failed"], row["outputs"]) == (16, 0, "identical")
    plain, own = row["servers"]
    assert plain["acceptance_length"] is None
    assert own["acceptance_length"] > 1
    assert row["hardware"] == "a tiny card"
    (summary,) = (read_object(file) for file in tmp_path.glob("results/*-ab-*/summary.json"))
    (end_to_end,) = (part for part in summary["loads"][0]["comparisons"] if part["figure"] == "e2e")
    assert (row["speedup"], row["verdict"]) == (end_to_end["typical"], end_to_end["verdict"])
    board = make_board(tmp_path / "submissions", tmp_path / "site").read_text()
    assert board.index("What did running servers measure?") < board.index("a tiny card")
    # What the servers are stands below the figures, so that these have one table in a narrow terminal.
    lines = done.stdout.splitlines()
    heads = [line for line in lines if line.startswith("server ")]
    assert len(heads) == 1
    assert any(line.startswith("own ") and "a tiny card" in line for line in lines)
    assert "only measuring them again checks it" in error_line(skit_here("suite", "check", path))
    path.write_text(path.read_text().replace("a tiny card", "a giant card"))
    assert "its seal does not hold" in error_line(skit_here("suite", "board", "submissions"))


@pytest.mark.usefixtures("suite")
def test_servers_elsewhere_need_their_hardware_in_words() -> None:
    servers = ("--server", "plain=vllm://192.0.2.1:1", "--server", "own=vllm://192.0.2.1:2")
    assert "give --hardware for servers on another machine" in error_line(
        skit_here("suite", "run", "v0", *servers)
    )
    refused = skit_here("suite", "run", "v0", "--method", "svip", *servers)
    assert error_line(refused) == "give --method or --server, not both"


@pytest.mark.parametrize(
    "content", ['{"schema": 1, "suite": "v', '{"suite": "v1"}', "not a document"]
)
def test_a_damaged_file_is_refused_before_models_are_loaded(tmp_path: Path, content: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(content)
    code = (
        f"import sys\nsys.argv = ['skit', 'suite', 'check', {str(path)!r}]\n"
        "from specbench_kit.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n    print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment()
    )
    assert error_line(done).startswith(f"{path} is no file of skit suite run: ")
    assert done.stdout == "False False\n"

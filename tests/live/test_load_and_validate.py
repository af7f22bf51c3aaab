"""Many devices at a real server, and the simulator beside them."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Timer
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import BUSY, QUIET, READINGS, skit_here
from live_server import CAPACITY, TARGET, make_server, serving
from load_inputs import LENGTH, MODELS, PROFILE, PROMPTS, request
from msgspec import structs, to_builtins
from report_builders import deployment_description, serving_figures
from study_pages import assert_made_again
from tiny_models import plain_greedy
from trace_builders import write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.description import restore
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.metrics.vocabulary import DistributionValues
from specbench_kit.reports.study import read
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.load import run, validation
from specbench_kit.studies.load.kind import LOAD, LoadStudy
from specbench_kit.studies.load.report import (
    LoadDescription,
    LoadedProfile,
    LoadFigures,
    deviations,
    mean_of,
    profile_cautions,
    values_of,
)
from specbench_kit.studies.load.run import ServerSpeed
from specbench_kit.studies.load.settings import LoadPoint, LoadSettings
from specbench_kit.traces.trace import TraceFile

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tmp_path: Path) -> LoadSettings:
    trace = write_trace(
        tmp_path / "trace.parquet", [request(*prompt) for prompt in PROMPTS], MODELS
    )
    (tmp_path / "profile.toml").write_text(PROFILE)
    return LoadSettings(
        server="127.0.0.1:1",
        trace=trace.path,
        method="fixed-k:k=2",
        devices=(3,),
        slo="7.5/s",
        duration_s=1.5,
        warmup_s=0.2,
        draft_s=0.001,
        profile=str(tmp_path / "profile.toml"),
        out=tmp_path / "out",
    )


def load_of(settings: LoadSettings, address: str, **changes: Any) -> LoadStudy:
    return run.load(replace(settings, server=address, **changes), lambda *_: None)


def events(outcome: LoadStudy, kind: str) -> pd.DataFrame:
    (path,) = (outcome.folder / "events").glob(f"*{kind}*")
    return pd.read_parquet(path)


def test_every_answer_of_the_server_is_the_traces_and_a_simulation_stands_beside(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READINGS, str(BUSY))
    with serving() as (service, address):
        outcome = load_of(settings, address)
        assert service.handler.batch_runner.evictions == 0
    (row,) = outcome.result.rows
    assert row.figures.overall.acceptance_length > 1
    assert row.answers.rounds > row.answers.responses > 1
    assert (row.answers.differing, row.answers.degraded, row.answers.refusals) == (0, 0, 0)
    assert outcome.run.time_kind == "measured"
    validated = validation.validate(outcome.folder, lambda *_: None)
    (row_of_both,) = validated.result.rows
    assert row_of_both.measured == row
    assert "| 3 | closed loop | measured |" in (outcome.folder / "validation.md").read_text()
    for name in ("report.md", "validation.md"):
        text = (outcome.folder / name).read_text()
        # What voids the numbers comes before any of them.
        assert text.splitlines()[2] == "> [!WARNING]"
        assert text.splitlines()[3].startswith("> **DISTURBED MACHINE: ")
        assert "the host withheld" in text
        assert "POOR FIT: R² of the server's profile is 0.5000" in text
        page = (outcome.folder / name).with_suffix(".html").read_text()
        assert 'aria-label="' in page.partition("<table")[0]  # the figure precedes the first table


def test_a_load_of_version_0_2_says_nothing_of_the_mean_round_trip(settings: LoadSettings) -> None:
    with serving() as (_, address):
        outcome = load_of(settings, address)
    (trips,) = (row.round_s for row in outcome.result.rows)
    assert 0 < trips.mean < trips.p99  # type: ignore[operator]
    for name in ("run.json", "summary.json"):
        content = json.loads((outcome.folder / name).read_text())
        content.pop("schema_version", None)
        for row in content.get("rows", ()):
            del row["round_s"]["mean"]
        (outcome.folder / name).write_text(json.dumps(content))
    (older,) = (row.round_s for row in read(LOAD, outcome.folder).result.rows)
    assert older == structs.replace(trips, mean=None)


def test_what_batches_took_is_compared_with_the_profile_and_not_with_the_servers_own_estimates(
    settings: LoadSettings,
) -> None:
    with serving() as (_, address):
        outcome = load_of(settings, address, events=True)
    (row,) = outcome.result.rows
    batches = events(outcome, "batches")[1:]
    batches = batches[batches.started_s >= settings.warmup_s]
    profile_s = (1e-4 * batches.new + 1e-2).sum()
    assert row.slower == pytest.approx(
        (batches.ended_s - batches.started_s).sum() / profile_s, rel=0.1
    )
    assert row.estimate == pytest.approx(0.1, rel=0.01)
    (row_of_both,) = validation.validate(outcome.folder, lambda *_: None).result.rows
    simulated, as_fast = row_of_both.simulated, row_of_both.as_fast
    assert as_fast["verify"] / simulated["verify"] == pytest.approx(row.slower, rel=0.5)
    # Its scheduler expects of every batch what the server's expected.
    assert simulated["estimated / true"] == pytest.approx(0.1, rel=0.01)


def test_devices_follow_a_server_whose_answers_are_not_those_of_the_trace(
    settings: LoadSettings,
) -> None:
    write_trace(settings.trace, [request(*prompt, wrong=7) for prompt in PROMPTS], MODELS)
    with serving() as (service, address):
        outcome = load_of(settings, address, duration_s=3.0, events=True)
        texts = [session.text for session in service.handler.sessions._sessions.values()]
    answers = outcome.result.rows[0].answers
    assert 0 < answers.differing < 1
    assert 0 < answers.left_trace <= 1
    # The server's text is the target's own, and every response has as many tokens as the recorded one.
    for text in texts:
        prompt = list(text.request.prompt_ids)
        assert (
            text.tokens[len(prompt) :]
            == plain_greedy(TARGET, prompt, len(text.tokens) - len(prompt))[0]
        )
    rounds, responses = events(outcome, "rounds"), events(outcome, "responses")
    finished = responses[np.isfinite(responses.end_s)]
    assert set(finished.tokens) == {LENGTH}
    committed = rounds[np.isfinite(rounds.ended_s)].groupby(["client", "response"]).committed.sum()
    assert (committed == LENGTH).sum() == len(finished) > 1
    validation.validate(outcome.folder, lambda *_: None)
    for name in ("report.md", "validation.md"):
        assert "OTHER ANSWERS at 3 devices" in (outcome.folder / name).read_text()
    assert (
        "| 3 devices | all |"
        in (outcome.folder / "report.md")
        .read_text()
        .partition("## Time between tokens (measured)")[2]
    )


def test_a_load_goes_on_at_a_server_that_is_behind(settings: LoadSettings) -> None:
    with serving(slots=6, limits=ServerLimits(context=CAPACITY, waiting=1)) as (_, address):
        outcome = load_of(settings, address, devices=(6,), draft_s=1e-6)
    answers = outcome.result.rows[0].answers
    assert answers.degraded > 0
    assert answers.refusals > 0
    assert answers.differing == 0
    assert "OVERLOADED at 6 devices" in (outcome.folder / "report.md").read_text()


def test_a_promise_that_no_batch_can_meet_ends_neither_load_nor_validation(
    settings: LoadSettings,
) -> None:
    with serving() as (_, address):
        outcome = load_of(settings, address, slo="5000/s")
    (row,) = validation.validate(outcome.folder, lambda *_: None).result.rows
    assert row.simulated["violations"] == 1.0


def test_batches_of_one_size_tell_how_evenly_the_server_worked(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(READINGS)
    service = make_server()
    verifier = service.handler.batch_runner._verifier
    verify, numbers = verifier.verify, count()

    def every_third_slowly(rounds: Any) -> Any:
        sleep(0.05 * (next(numbers) % 3 == 0))
        return verify(rounds)

    verifier.verify = every_third_slowly
    with serving(service) as (_, address):
        outcome = load_of(settings, address, devices=(1,))
    assert outcome.run.machine[0].lanes["the server"].spread > 2
    assert outcome.result.rows[0].scatter > 0.5
    assert "the same step of the server took up to" in (outcome.folder / "report.md").read_text()


def test_scatter_is_that_of_batches_of_one_size() -> None:
    random = np.random.default_rng(0)
    ratios = random.lognormal(0.0, np.sqrt(np.log(1 + 0.2**2)), 4000)
    speed = ServerSpeed(1.0, 1.0, [ratios[:2000].tolist(), (3 * ratios[2000:]).tolist()])
    assert speed.scatter == pytest.approx(0.2, rel=0.05)
    assert ServerSpeed(None, None, []).scatter is None


def test_requests_arrive_at_a_rate_whatever_the_server_does(
    settings: LoadSettings, tmp_path: Path
) -> None:
    with serving() as (_, address):
        outcome = load_of(settings, address, devices=(4,), rate=(4.0, 40.0), events=True)
    assert [(row.devices, row.rate) for row in outcome.result.rows] == [(4, 4.0), (4, 40.0)]
    trace = TraceFile(settings.trace)
    for point in (LoadPoint(4, 4.0), LoadPoint(4, 40.0)):
        (path,) = (outcome.folder / "events").glob(
            f"devices-4-rate-{point.rate:g}-responses.parquet"
        )
        scenario = run.make_scenario(
            outcome.run.config, point, trace, restore(outcome.run.deployment)
        )
        assert sorted(pd.read_parquet(path).start_s) == pytest.approx(
            sorted(simulate(scenario).responses["start_s"])
        )
    validation.validate(outcome.folder, lambda *_: None)
    report = (outcome.folder / "validation.md").read_text()
    assert_made_again(outcome.folder, tmp_path)
    assert "| 4 | 4/s | measured |" in report
    assert "| 4 | 40/s | measured |" in report


def test_a_server_that_goes_away_ends_the_load_with_one_line(settings: LoadSettings) -> None:
    with serving() as (service, address):
        Timer(1.0, service.stop).start()
        with pytest.raises(SkitError, match="the server is gone"):
            load_of(settings, address, duration_s=60.0)
        service._loop = None  # it cannot be stopped twice


def test_both_commands_say_that_the_machine_was_disturbed(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (
        "--trace",
        settings.trace,
        "--profile",
        settings.profile,
        "--devices",
        3,
        "--out",
        settings.out,
    )
    times = ("--duration", 1, "--warm-up", 0.2, "--draft-s", 0.001, "--method", "fixed-k:k=2")
    for readings, disturbed in ((BUSY, True), (QUIET, False)):
        monkeypatch.setenv(READINGS, str(readings))
        with serving() as (_, address):
            loaded = skit_here("load", "--server", address, *options, *times)
        folder = max(settings.out.iterdir())
        validated = skit_here("validate", folder)
        for done in (loaded, validated):
            assert done.returncode == 0, done.stderr
            assert ("DISTURBED MACHINE" in done.stdout) is disturbed
            assert "POOR FIT" in done.stdout


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"rate": (0.0,)}, "--rate must be above 0"), ({"rate": (float("inf"),)}, "and finite")],
)
def test_rates_that_mean_nothing(
    changes: dict[str, Any], reason: str, settings: LoadSettings
) -> None:
    with pytest.raises(SkitError, match=reason):
        replace(settings, **changes)


def test_sessions_that_are_too_short_for_the_trace_are_refused_before_the_load(
    settings: LoadSettings,
) -> None:
    with (
        serving(limits=ServerLimits(context=25)) as (_, address),
        pytest.raises(SkitError, match="--session-tokens"),
    ):
        load_of(settings, address)
    assert not settings.out.exists()


def test_a_trace_of_another_target_is_refused(settings: LoadSettings) -> None:
    write_trace(
        settings.trace, [request("0", [1, 2])], {**MODELS, "target": {"name": "tiny", "hash": "2"}}
    )
    with serving() as (_, address), pytest.raises(SkitError, match="WRONG_TOKENIZER"):
        load_of(settings, address)


def described(**changes: object) -> LoadDescription:
    config = {"method": "wisp", "scheduler": "fcfs", "slo": ["2"], "max_batch": 4, "seed": 0}
    config |= {"duration_s": 2.0, "warmup_s": 1.0}
    content = {
        "config": config,
        "server": {},
        "deployment": to_builtins(deployment_description()),
        **changes,
    }
    return LoadDescription.read(content)


def test_round_trips_of_a_busy_server_are_those_of_its_number_of_devices() -> None:
    measured = described(busy_by_sessions=[[1.0, 0.0], [2.0, 1e-3], [4.0, 5e-3]])
    assert [validation._busy_s(measured, devices) for devices in (1, 2, 3, 4, 9)] == pytest.approx(
        [0.0, 1e-3, 3e-3, 5e-3, 5e-3]
    )
    assert validation._busy_s(described(), 7) == 0.0


def test_reach_is_a_share_of_what_was_measured_or_points() -> None:
    def load(p50: float, p95: float, throughput: float, late: float) -> LoadFigures:
        figures = serving_figures(0.0, throughput=throughput, violation_rate=late)
        return LoadFigures(
            devices=3, round_s=DistributionValues(None, p50, p95, None), figures=figures
        )

    measured = load(0.1, 0.2, 100.0, 0.1)
    simulated = mean_of([load(0.108, 0.26, 81.0, 0.14), load(0.110, 0.26, 101.0, 0.14)])
    assert simulated["round p50"] == pytest.approx(0.109)
    off = deviations(values_of(measured), simulated)
    within = {name: error.within for name, error in off.items() if error.within is not None}
    assert within == {
        "throughput (tokens/s)": True,
        "round p50": True,
        "round p95": False,
        "violations": False,
    }


def test_a_run_without_what_its_simulation_needs_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"command": "load", "config": {"method": "wisp"}}')
    (tmp_path / "summary.json").write_text('{"rows": [], "late": []}')
    with pytest.raises(
        SkitError, match=r"run\.json: config\.\w+ is missing: it is not what skit load"
    ):
        validation.validate(tmp_path, lambda *_: None)


def test_loads_at_another_speed_than_the_profiles_are_named_with_how_much() -> None:
    run = SimpleNamespace(profile=LoadedProfile())
    loads = [
        SimpleNamespace(name=f"{devices} devices", slower=slower)
        for devices, slower in ((2, 0.5), (4, 1), (8, 3))
    ]
    assert profile_cautions(run, loads) == [
        "OTHER SPEED: verifications took 0.50 times as long at 2 devices, 3.00 times as long at 8 devices as by the "
        "profile: measure it again, right before the load."
    ]

"""A server's own time, from the other end of its wire."""

from pathlib import Path

import numpy as np
import pytest
from command_line import BUSY, READINGS
from live_server import make_server, serving

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.latency import ServedModel, sums_of
from specbench_kit.decoding.time_limit import TimeLimit
from specbench_kit.live.connection import ClientIdentity, Connection
from specbench_kit.live.server.admission import ServerLimits
from specbench_kit.profilers import loading
from specbench_kit.profilers.base import COEFFICIENTS, Profile
from specbench_kit.studies.server_profile import run
from specbench_kit.studies.server_profile.run import (
    BatchGap,
    LoadGenerator,
    ObservedBatch,
    ObservedRound,
    SessionLoad,
    batch_gaps,
    observed_batches,
    transit_times,
)
from specbench_kit.studies.server_profile.settings import ServerProfileSettings

pytestmark = pytest.mark.slow

CALLER = ClientIdentity("same", 64)


def test_rounds_are_sorted_into_the_batches_that_they_were_verified_in() -> None:
    answers = [(4, 0.41, 9), (5, 0.48, 7), (4, 0.42, 8), (4, 0.45, 7)]
    rounds = [
        ObservedRound(0.0, 0.0, batch / 100, arrived_s, batch, (2, cached))
        for batch, arrived_s, cached in answers
    ]
    assert observed_batches(rounds) == [
        ObservedBatch([(2, 9), (2, 8), (2, 7)], 0.04, pytest.approx((0.45 - 0.41) / 2), leaving=0),
        ObservedBatch([(2, 7)], 0.05, None, leaving=1),  # it began at 0.43
    ]


def test_rounds_are_on_their_way_for_as_long_as_the_server_tells_nothing_of() -> None:
    answers = [(4, 1.00, 0.10), (4, 1.02, 0.13), (5, 1.30, 0.12)]
    rounds = [
        ObservedRound(trip_s, 0.01, 0.05, arrived_s, batch, (2, 9))
        for batch, arrived_s, trip_s in answers
    ]
    assert transit_times(rounds, 0.02) == pytest.approx([0.04, 0.05, 0.06])


def test_a_device_alone_waits_before_its_next_draft() -> None:
    with serving() as (_, address):
        rounds = LoadGenerator(Connection(address, CALLER)).rounds(
            SessionLoad(sessions=1, drafted=1, context=10, pause_s=0.05), 0.1
        )
    sent = [answered.arrived_s - answered.trip_s for answered in rounds]
    assert all(
        sent_s - previous.arrived_s >= 0.05
        for previous, sent_s in zip(rounds, sent[1:], strict=False)
    )


def test_a_busy_server_tells_what_it_takes_between_its_verifications() -> None:
    """Batch 5 waited for 4 and began 20 ms behind it; the round of 6 came when 5 was through; of 7 there is no 8."""
    answers = [(4, 1.00, 0.0), (4, 1.01, 0.0), (5, 1.12, 0.08), (6, 1.32, 0.05), (9, 2.0, 0.1)]
    rounds = [
        ObservedRound(0.0, queue_s, 0.1, arrived_s, batch, (2, 9))
        for batch, arrived_s, queue_s in answers
    ]
    assert batch_gaps(rounds) == [BatchGap(2, pytest.approx(0.02))]


def test_a_turn_is_so_much_and_so_much_for_each_answer() -> None:
    between = [BatchGap(answers, 1e-3 + 2e-4 * answers) for answers in (1, 1, 4, 8)] + [
        BatchGap(1, 0.9)
    ]
    assert run._gap_line(between) == pytest.approx((1e-3, 2e-4))
    assert run._gap_line([]) == (0.0, 0.0)


def test_what_verifications_of_one_load_scatter_by_is_found() -> None:
    """However wrong the fit is about the load."""
    random, times = np.random.default_rng(0), np.array([1e-3, 0, 0, 0, 0, 1e-3, 0])
    seconds = 0.05 * random.lognormal(0.0, np.sqrt(np.log(1 + 0.2**2)), 4000)
    loads = [
        [ObservedBatch([(2, 7)], verify_s, None, 0) for verify_s in part]
        for part in (seconds[:2000], 3 * seconds[2000:])
    ]
    assert run._scatter(times, loads) == pytest.approx(0.2, rel=0.05)


def test_rows_are_what_the_server_computed() -> None:
    with serving() as (_, address):
        busy = LoadGenerator(Connection(address, CALLER))
        warm = busy.rounds(SessionLoad(sessions=2, drafted=3, context=10), 0.05)
        cold = busy.rounds(SessionLoad(sessions=2, drafted=3, context=10, cold=True), 0.05)
    assert {row for *_, row in cold} == {(13, 0)}
    assert {new for *_, (new, _) in warm} == {4}
    assert min(cached for *_, (_, cached) in warm) >= 10


def test_a_server_with_little_context_is_profiled_for_as_long_as_it_takes() -> None:
    """A session ends before its text and a draft outgrow the server, not only after a fixed number of tokens."""
    with serving(make_server(limits=ServerLimits(context=64))) as (_, address):
        generator = LoadGenerator(Connection(address, CALLER))
        rounds = generator.rounds(SessionLoad(sessions=2, drafted=7, context=16), 0.6)
    assert len(rounds) > 24, "more than two sessions hold"
    assert max(new + cached for *_, (new, cached) in rounds) <= 64


def test_a_fit_finds_the_times_that_batches_were_made_of() -> None:
    true_times = (2e-4, 1e-7, 3e-7, 1e-4, 6e-4, 3e-3, 2e-4)
    train, _ = run._loads(24, 512)
    loads: list[list[ObservedBatch]] = []
    for load in train:
        row = (load.context + load.drafted, 0) if load.cold else (load.drafted + 1, load.context)
        batches = [
            ObservedBatch([row] * load.sessions, 0.0, None, leaving) for leaving in (0, 1, 7)
        ]
        loads.append(
            [batch._replace(verify_s=run._features(batch) @ true_times) for batch in batches]
        )
    times = run._fit(loads)
    assert times == pytest.approx(true_times, rel=1e-6)
    model, rows = ServedModel(**run._coefficients(times)), [(5, 160), (5, 160)]
    assert model.of_sums(sums_of(rows)) == pytest.approx(
        run._features(ObservedBatch(rows, 0.0, None, leaving=2)) @ true_times
    )


def test_a_profile_of_a_server_is_one_that_schedulers_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServerProfileSettings(
        server="", to=tmp_path / "server.toml", sessions=4, window_s=0.02
    )
    with serving() as (_, address):
        monkeypatch.setattr(run, "_connect", lambda _: Connection(address, CALLER))
        monkeypatch.setenv(READINGS, str(BUSY))
        outcome = run.profile_server(settings, lambda *_: None)
    assert outcome.doubts[0].startswith("DISTURBED MACHINE: the host withheld")
    profile = loading.load(str(settings.to))
    # Such short loads may fit or not; a fit that does not is said.
    assert any("POOR FIT" in doubt for doubt in outcome.doubts) is not (profile.test_r2 >= 0.9)
    assert (profile.form, profile.source, profile.model_hash) == ("served", "measured", "0")
    assert set(profile.coefficients) == set(COEFFICIENTS["served"])
    assert profile.latency().seconds([(5, 50)]) > 0
    assert profile.fit["wire_s"] > 0
    assert profile.fit["frame_s"] > 0
    sessions, busy_s = zip(*profile.fit["busy_by_sessions"], strict=True)
    assert (sessions, min(busy_s)) == ((1.0, 2.0, 3.0, 4.0), 0.0)
    assert profile.fit["answer_s"] >= 0


def test_minutes_end_the_measurement_between_two_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ServerProfileSettings(
        server="", to=tmp_path / "server.toml", sessions=2, window_s=0.02, minutes=5
    )

    class AfterLoads(TimeLimit):
        begun = 0

        @property
        def is_over(self) -> bool:
            AfterLoads.begun += 1
            return AfterLoads.begun > loads_allowed

    monkeypatch.setattr(run, "TimeLimit", AfterLoads)
    with serving() as (_, address):
        monkeypatch.setattr(run, "_connect", lambda _: Connection(address, CALLER))
        loads_allowed = 3
        with pytest.raises(
            SkitError, match=r"--minutes 5 were over after 3 of \d+ measurements.*give about"
        ):
            run.profile_server(settings, lambda *_: None)
        assert not settings.to.exists()
        loads = len([part for parts in run._loads(2, 128) for part in parts])
        AfterLoads.begun, loads_allowed = 0, loads
        outcome = run.profile_server(settings, lambda *_: None)
    assert f"; {loads} of {2 * loads} measurements were made" in outcome.text
    assert settings.to.exists()


@pytest.mark.parametrize(("r2", "words"), [(0.5, ["POOR FIT"]), (None, ["POOR FIT"]), (0.97, [])])
def test_a_profile_that_does_not_fit_its_test_loads_says_so(
    r2: float | None, words: list[str]
) -> None:
    profile = Profile(
        "p",
        "verifier",
        "cpu",
        "tiny",
        "float32",
        "measured",
        "served",
        {},
        fit={"test": {"r2": r2}},
    )
    assert [doubt.partition(":")[0] for doubt in run._doubts(profile)] == words


def test_what_cannot_be_measured_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match=r"is no \.toml file"):
        ServerProfileSettings(server="", to=tmp_path / "server.json")
    with pytest.raises(SkitError, match="--minutes takes a number above 0"):
        ServerProfileSettings(server="", to=tmp_path / "server.toml", minutes=0)
    with pytest.raises(SkitError, match=r"no server answers at 127\.0\.0\.1:1"):
        run.profile_server(
            ServerProfileSettings(server="127.0.0.1:1", to=tmp_path / "x.toml"), lambda *_: None
        )

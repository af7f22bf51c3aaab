"""A calibration finds the speed of a server whose log was made by simulating one."""

import json
from pathlib import Path

import pytest
from command_line import error_line, skit_here
from msgspec import structs

from specbench_kit.profilers.architectures import bundled_architectures
from specbench_kit.profilers.devices import find_device
from specbench_kit.profilers.loading import load
from specbench_kit.profilers.roofline import Roofline, judge
from specbench_kit.profilers.software import KERNELS, find_software
from specbench_kit.serving.memory import KvCapacity
from specbench_kit.studies.calibration.logs import LoggedRequest
from specbench_kit.studies.calibration.run import (
    EngineSettings,
    LoggedServer,
    ServedLog,
    agreement,
    extrapolation,
    fit_speed,
)

SERVER = LoggedServer(
    Roofline(find_device("rtx4090"), bundled_architectures()["llama3.1-8b"], "bfloat16")
)
ENGINE = EngineSettings(max_batch=32, batch_tokens=512, memory=KvCapacity(40_000, 8192))
TRUE = structs.replace(
    find_software(KERNELS).on("rtx4090"), compute=0.6, bandwidth=0.9, step_s=2e-3, request_s=5e-5
)
LOAD = [LoggedRequest(0.3 * n, 0.0, 0.0, 200 + 197 * n % 1500, 20 + 13 * n % 60) for n in range(90)]


@pytest.fixture(scope="module")
def log() -> ServedLog:
    """The log of a simulated server."""
    simulated = ServedLog(LOAD, ENGINE).simulated(SERVER.latency(TRUE))
    rows = zip(LOAD, simulated["TTFT"].tolist(), simulated["latency"].tolist(), strict=True)
    requests = [
        request._replace(first_s=request.at_s + ttft_s, last_s=request.at_s + latency_s)
        for request, ttft_s, latency_s in rows
    ]
    return ServedLog(requests, ENGINE)


@pytest.mark.nightly  # the command below fits too
def test_a_fit_to_the_first_requests_predicts_the_others(log: ServedLog) -> None:
    start = find_software(KERNELS).on("rtx4090")
    later_requests = slice(30, None)
    before = agreement(log.simulated(SERVER.latency(start)), log.measured, later_requests)
    assert max(abs(metric.mean - 1) for metric in before) > 0.05
    steps: list[tuple[int, int]] = []
    speed = fit_speed(log, 30, SERVER, start, lambda done, planned: steps.append((done, planned)))
    after = agreement(log.simulated(SERVER.latency(speed)), log.measured, later_requests)
    assert all(metric.mean == pytest.approx(1, abs=0.03) for metric in after)
    assert all(metric.tail == pytest.approx(1, abs=0.1) for metric in after)
    assert steps == sorted(steps)
    assert (speed.corner, speed.layer_s) == (start.corner, start.layer_s)


def test_batches_beyond_those_of_the_log_are_said_to_be_extrapolated_and_how_far(
    log: ServedLog,
) -> None:
    """Half as fast a card, with a step so short that a light load does not tell: they differ in large batches alone."""
    law, fitted = (
        SERVER.latency(TRUE),
        SERVER.latency(structs.replace(TRUE, bandwidth=0.45, step_s=0.0)),
    )
    beyond = extrapolation(log, fitted, law)
    sizes = log._simulate(fitted).batches["size"]
    assert (sizes <= beyond.usual_batch).mean() >= 0.95 > (sizes < beyond.usual_batch).mean()
    assert beyond.largest_batch == min(32, 40_000 // beyond.context)
    assert beyond.is_beyond
    step = [(1, beyond.context)] * beyond.largest_batch
    assert beyond.fitted_s == pytest.approx(fitted.seconds(step))
    assert f"more than {beyond.usual_batch} requests" in beyond.text
    assert f"{beyond.fitted_s / law.seconds(step) - 1:+.0%}" in beyond.text


def test_a_log_that_fills_the_engine_is_not_extrapolated(log: ServedLog) -> None:
    small = ServedLog(
        log.requests, EngineSettings(max_batch=1, batch_tokens=512, memory=KvCapacity(40_000, 8192))
    )
    latency = SERVER.latency(TRUE)
    assert not extrapolation(small, latency, latency).is_beyond


@pytest.mark.nightly  # the other tests fit the same logs, and test_every_option.py runs the command
@pytest.mark.slow
def test_the_command_saves_a_profile_that_deployments_can_use(
    log: ServedLog, tmp_path: Path
) -> None:
    names = ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in log.requests)
    )
    command = (
        "calibrate",
        path,
        "--gpu",
        "rtx4090",
        "--target",
        "llama3.1-8b",
        "--kv-tokens",
        "40000",
    )
    engine = (
        "--max-batch",
        "32",
        "--batch-tokens",
        "512",
        "--save-to",
        tmp_path / "mine.toml",
        "--json",
    )
    done = skit_here(*command, *engine)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document["rest"]) == {"law", "calibrated"}
    assert (
        document["extrapolation"]["largest_batch"] >= document["extrapolation"]["usual_batch"] >= 1
    )
    assert all(abs(metric["mean"] - 1) < 0.03 for metric in document["rest"]["calibrated"])
    profile = load(str(tmp_path / "mine.toml"))
    assert (profile.source, profile.form, judge(profile).kind) == (
        "calibrated",
        "rounded",
        "possible",
    )
    assert profile.reference.startswith(
        "fitted to the first 30 requests of log.jsonl; means of the others are off by"
    )
    ends = profile.range()
    assert ends is not None
    assert (
        ends[0].seconds([(1, 512)])
        <= profile.latency().seconds([(1, 512)])
        <= ends[1].seconds([(1, 512)])
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("nowhere.jsonl --gpu rtx4090", "cannot read the log nowhere.jsonl"),
        ("log.jsonl --gpu rtx409", "unknown GPU 'rtx409'"),
        ("log.jsonl --gpu rtx4090 --cards 2", "--cards above 1 needs the --interconnect"),
        ("log.jsonl --gpu rtx4090 --max-batch 0", "--max-batch must be at least 1"),
        ("log.jsonl --gpu rtx4090 --save-to mine.json", "--save-to must name a .toml file"),
        ("log.jsonl --gpu rtx2080ti --dtype bfloat16", "rtx2080ti has no units for bfloat16"),
    ],
)
def test_bad_input_is_one_line(options: str, problem: str) -> None:
    assert problem in error_line(
        skit_here("calibrate", *options.split(), "--target", "llama3.1-8b")
    )

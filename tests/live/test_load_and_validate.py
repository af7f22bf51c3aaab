"""Many devices at a real server, and the simulator beside them."""

from pathlib import Path

import numpy as np
import pytest
from command_line import BUSY, READINGS
from live_server import TARGET, VOCABULARY, serving
from tiny_models import plain_greedy, random_prompts
from trace_builders import write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.reports.live.report import deviations, mean_of, values_of
from specbench_kit.studies.load import run, validation
from specbench_kit.studies.load.settings import LoadSettings
from specbench_kit.traces.trace import RequestTrace

pytestmark = pytest.mark.slow

LENGTH, DRAFT = 20, 3
MODELS = {"target": {"name": "tiny", "hash": "0"}, "draft": {"name": "tinier", "hash": "1"}}
PROFILE = """
name = "made"
role = "verifier"
device = "cpu"
model = "tiny"
dtype = "float32"
source = "published"
reference = "made up"
date = "2026-01-01"

[coefficients]
form = "interactions"
a_s = 1e-5
b_compute_s = 0.0
b_read_s = 0.0
c_s = 1e-3
"""


def request(name: str, prompt: list[int]) -> RequestTrace:
    """The target's own answer, drafted with every fourth token wrong."""
    answer = np.array(plain_greedy(TARGET, prompt, LENGTH + DRAFT)[0])
    drafted = np.lib.stride_tricks.sliding_window_view(answer, DRAFT)[:LENGTH].astype(np.int32)
    drafted[::4] = (drafted[::4] + 1) % VOCABULARY
    statistics = np.full((LENGTH, DRAFT, 5), 0.5, np.float32)
    answer_ids = answer.tolist()
    return RequestTrace(name, "test", prompt, answer_ids[:LENGTH], "length", answer_ids[LENGTH:], drafted, statistics)


@pytest.fixture
def settings(tmp_path: Path) -> LoadSettings:
    texts = [request(str(n), prompt) for n, prompt in enumerate(random_prompts([5, 9], VOCABULARY))]
    trace = write_trace(tmp_path / "trace.parquet", texts, MODELS)
    (tmp_path / "profile.toml").write_text(PROFILE)
    return LoadSettings(
        server="127.0.0.1:1",
        trace=trace.path,
        method="fixed-k:k=2",
        devices=(3,),
        slo="7.5/s",
        duration_s=1.0,
        warmup_s=0.2,
        draft_s=0.001,
        profile=str(tmp_path / "profile.toml"),
        out=tmp_path / "out",
    )


def test_every_answer_of_the_server_is_the_traces_and_a_simulation_stands_beside(
    settings: LoadSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READINGS, str(BUSY))
    with serving() as (service, address):
        outcome = run.load(LoadSettings(**{**_fields(settings), "server": address}), lambda *_: None)
        assert service.handler.batch_runner.evictions == 0
    (row,) = outcome.summary["rows"]
    assert row["figures"]["overall"]["acceptance_length"] > 1
    assert outcome.run["time_kind"] == "measured"
    validated = validation.validate(outcome.folder, lambda *_: None)
    (row_of_both,) = validated.summary["rows"]
    assert row_of_both["measured"] == row
    # The made-up profile knows nothing of this server; what its batches took is known all the same.
    taken_s = [values["verify"] for values in (values_of(row), row_of_both["simulated"], row_of_both["as_fast"])]
    assert taken_s[2] / taken_s[1] == pytest.approx(row["slower"], rel=0.5)
    assert abs(taken_s[2] - taken_s[0]) < abs(taken_s[1] - taken_s[0])
    assert "| 3 | measured |" in (outcome.folder / "validation.md").read_text()
    for name in ("report.md", "validation.md"):
        assert "DISTURBED MACHINE: the host withheld" in (outcome.folder / name).read_text()


def test_a_trace_of_another_target_is_refused(settings: LoadSettings) -> None:
    write_trace(settings.trace, [request("0", [1, 2])], {**MODELS, "target": {"name": "tiny", "hash": "2"}})
    with serving() as (_, address), pytest.raises(SkitError, match="WRONG_TOKENIZER"):
        run.load(LoadSettings(**{**_fields(settings), "server": address}), lambda *_: None)


def test_reach_is_a_share_of_what_was_measured_or_points() -> None:
    measured = {"round_s": {"p50": 0.1, "p95": 0.2}, "figures": {"overall": {"throughput": 100, "violation_rate": 0.1}}}
    drawn = [
        {"round_s": {"p50": p50, "p95": 0.26}, "figures": {"overall": {"throughput": speed, "violation_rate": 0.14}}}
        for p50, speed in ((0.108, 81), (0.110, 101))
    ]
    simulated = mean_of(drawn)
    assert simulated["round p50"] == pytest.approx(0.109)
    off = deviations(values_of(measured), simulated)
    within = {name: error["within"] for name, error in off.items() if error["within"] is not None}
    assert within == {"throughput (tokens/s)": True, "round p50": True, "round p95": False, "violations": False}


def _fields(settings: LoadSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}

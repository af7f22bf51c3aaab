"""Logs of real servers: every known format gives the same requests, and damaged ones are one line."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from result_files import FORMS, WITHOUT_STARTS, Sent, vllm_oldest

from specbench_kit.core.errors import SkitError
from specbench_kit.studies.calibration.logs import LEAST_REQUESTS, LoggedRequest, read_log

REQUESTS = [
    LoggedRequest(0.5 * n, 0.5 * n + 0.25, 0.5 * n + 1.25, 100 + n, 5)
    for n in range(LEAST_REQUESTS)
]
"""Each has its first token after a quarter of a second, and four more in a second."""
ZERO_S = 1000.0


def _engine_log(path: Path) -> None:
    names = ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
    _write_lines(path, [dict(zip(names, _shifted(request), strict=True)) for request in REQUESTS])


def _blis(path: Path) -> None:
    names = (
        "send_time_us",
        "first_chunk_time_us",
        "last_chunk_time_us",
        "input_tokens",
        "output_tokens",
        "status",
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for request in REQUESTS:
            *times, prompt, output = _shifted(request)
            writer.writerow([*(round(1e6 * time) for time in times), prompt, output, "ok"])
        writer.writerow([0, 0, 0, 9, 0, "timeout"])


def _shifted(request: LoggedRequest) -> tuple[float, float, float, int, int]:
    at_s, first_s, last_s, prompt, output = request
    return ZERO_S + at_s, ZERO_S + first_s, ZERO_S + last_s, prompt, output


def _write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


ENGINE_LOGS: dict[str, Callable[[Path], None]] = {"engine.jsonl": _engine_log, "trace.csv": _blis}
SENT = [
    Sent(request.at_s, (0.25, 0.5, 0.75, 1.0, 1.25), request.prompt_tokens, request.output_tokens)
    for request in REQUESTS
]


@pytest.mark.parametrize(
    "name", [*ENGINE_LOGS, *(name for name in FORMS if name not in WITHOUT_STARTS)]
)
def test_every_format_holds_the_same_requests(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name in ENGINE_LOGS:
        ENGINE_LOGS[name](path)
    else:
        path.write_text(FORMS[name](SENT))
    log = read_log(path)
    read = log.requests
    assert f"; {len(REQUESTS)} requests" in log.reading.line
    assert [request[3:] for request in read] == [request[3:] for request in REQUESTS]
    times = [time for request in read for time in request[:3]]
    assert times == pytest.approx([time for request in REQUESTS for time in request[:3]], abs=1e-6)


ROW = {"queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3, "input_toks": 4, "output_toks": 5}
BAD = {
    "not JSON": ("{", ":1: not valid JSON"),
    "no object": ("[1]", ":1: not a request, but list"),
    "unknown": (json.dumps({"when": 1}), ":1: not a request of a known log"),
    "text": (
        json.dumps({**ROW, "first_token_ts": "soon"}),
        ":1: queued_ts and the columns beside it are needed",
    ),
    "disorder": (
        json.dumps({**ROW, "last_token_ts": 1.5}),
        ":1: arrival, first and last token must be times in this",
    ),
    "negative": (json.dumps({**ROW, "input_toks": -1}), ":1: lengths must not be negative"),
    "short": (json.dumps(ROW), "holds 1 finished requests, of at least 30"),
    "no starts": (
        vllm_oldest(SENT),
        "holds no start_times, without which its load cannot be replayed",
    ),
    "lengths": (
        json.dumps({"ttfts": [1.0], "start_times": [1.0]}),
        "is of vllm bench serve: itls is missing",
    ),
    "two loads": (json.dumps({"benchmarks": [{"requests": {}}] * 2}), "holds 2 loads of GuideLLM"),
    "no requests": (
        json.dumps({"benchmarks": [{}]}),
        "is of GuideLLM: benchmarks[0].requests is missing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_log_is_one_line(name: str, tmp_path: Path) -> None:
    text, problem = BAD[name]
    (tmp_path / "log.jsonl").write_text(text)
    with pytest.raises(SkitError, match=problem.replace("[", r"\[")) as refused:
        read_log(tmp_path / "log.jsonl")
    assert "\n" not in str(refused.value)
    with pytest.raises(SkitError, match="cannot read the log"):
        read_log(tmp_path / "nowhere.jsonl")

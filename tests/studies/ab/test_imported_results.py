"""Result files of AIPerf, GuideLLM, `vllm bench serve` and SGLang's benchmark in the comparison of `skit ab`."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import error_line, read_object, read_rows, skit_here

Body = dict[str, Any]
COUNT = 8


def vllm_bench(step_s: float, text: str = "a b c", prompt: int = 9, rate: object = "inf") -> Body:
    """Three tokens each: two in the first chunk's place would not be known, so the file has two chunks."""
    return {
        "max_concurrency": 1,
        "request_rate": rate,
        "ttfts": [2 * step_s] * COUNT,
        "itls": [[step_s]] * COUNT,
        "output_lens": [3] * COUNT,
        "input_lens": [prompt + number for number in range(COUNT)],
        "start_times": [100.0 + number for number in range(COUNT)],
        "generated_texts": [f"{text} {number}" for number in range(COUNT)],
        "errors": [""] * COUNT,
    }


def aiperf(step_ms: float, conversations: str = "c") -> str:
    lines = []
    for number in range(COUNT):
        metadata = {
            "session_num": number,
            "conversation_id": f"{conversations}{number}",
            "turn_index": 0,
            "request_start_ns": 1_000_000_000 * (7 + number),
            "benchmark_phase": "profiling",
        }
        metrics = {
            "time_to_first_token": {"value": 5 * step_ms, "unit": "ms"},
            "request_latency": {"value": 7 * step_ms, "unit": "ms"},
            "inter_chunk_latency": {"value": [step_ms, step_ms], "unit": "ms"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
            "input_sequence_length": {"value": 5, "unit": "tokens"},
        }
        lines.append({"metadata": metadata, "metrics": metrics, "error": None})
    lines.append({**lines[-1], "metadata": {**lines[-1]["metadata"], "benchmark_phase": "warmup"}})
    failed = {"metadata": {**metadata, "session_num": COUNT, "conversation_id": f"{conversations}{COUNT}"}}
    lines.append({**failed, "metrics": {}, "error": {"code": 500, "message": "lost"}})
    return "".join(json.dumps(line) + "\n" for line in lines)


def guidellm(step_s: float) -> Body:
    def benchmark(strategy: Body) -> Body:
        requests = [
            {
                "request_args": f"prompt {number}",
                "output": f"answer {number}",
                "prompt_tokens": 4,
                "output_tokens": 5,
                "info": {
                    "timings": {
                        "request_start": 10.0 * number,
                        "first_token_iteration": 10.0 * number + step_s,
                        "last_token_iteration": 10.0 * number + 5 * step_s,
                        "token_iterations": 5,
                    }
                },
            }
            for number in range(COUNT)
        ]
        return {"config": {"strategy": strategy}, "requests": {"successful": requests, "errored": []}}

    strategies = [{"type_": "synchronous"}, {"type_": "constant", "rate": 2.0}]
    return {"benchmarks": [benchmark(strategy) for strategy in strategies]}


def compare(folder: Path, first: object, second: object) -> Any:
    """Compare two contents as files."""
    for name, content in (("one", first), ("two", second)):
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return skit_here("ab", f"plain={folder / 'one'}", f"spec={folder / 'two'}", "--out", folder / "out")


def summary_of(folder: Path) -> Body:
    (run,) = (folder / "out").glob("*-ab-imported-*")
    assert "NOT IN TURNS" in (run / "report.md").read_text()
    return read_object(run / "summary.json")


def ratios(load: Body) -> dict[str, float]:
    return {entry["figure"]: entry["ratio"] for entry in load["comparisons"]}


def test_vllm_bench_serve(tmp_path: Path) -> None:
    done = compare(tmp_path, vllm_bench(0.2), vllm_bench(0.1))
    assert done.returncode == 0, done.stderr
    (load,) = summary_of(tmp_path)["loads"]
    assert load["load"] == "concurrency 1"
    assert ratios(load) == pytest.approx({"ttft": 2, "tpot": 2, "e2e": 2})
    assert {entry["verdict"] for entry in load["comparisons"]} == {"faster"}
    assert load["outputs"]["both"] == {"compared": COUNT, "identical": COUNT}
    # Two chunks of three tokens: the second chunk's are two gaps of half its time.
    assert load["servers"]["spec"]["tpot"]["p50"] == pytest.approx(0.05)
    assert load["servers"]["spec"]["counted_by"] == ["usage at the end"]


def sglang_bench(step_s: float) -> Body:
    """No start times, Infinity where there is no rate, and null for requests without an error."""
    columns = {name: value for name, value in vllm_bench(step_s, rate=float("inf")).items() if name != "start_times"}
    return {
        **columns,
        "backend": "sglang",
        "max_concurrency": 2,
        "errors": [None] * COUNT,
        "accept_length": float("nan"),
    }


def test_sglang_s_benchmark(tmp_path: Path) -> None:
    done = compare(tmp_path, sglang_bench(0.2), sglang_bench(0.1))
    assert done.returncode == 0, done.stderr
    summary = summary_of(tmp_path)
    (load,) = summary["loads"]
    assert ratios(load) == pytest.approx({"ttft": 2, "tpot": 2, "e2e": 2})
    # Two places in flight: eight requests of 3 steps one after the other in each.
    assert (load["load"], load["turns"], load["turn_requests"]) == ("concurrency 2", COUNT // 2, 2)
    rows = read_rows(next((tmp_path / "out").glob("*-ab-*")) / "answers.jsonl")
    sent_s = sorted(row["sent_s"] for row in rows if row["key"]["server"] == "plain")
    assert sent_s == pytest.approx([0.6 * batch for batch in range(4) for _ in range(2)], abs=1e-4)


@pytest.mark.parametrize("places", [0, -3])
def test_a_result_without_places_in_flight_is_one_line(places: int, tmp_path: Path) -> None:
    done = compare(tmp_path, sglang_bench(0.2), {**sglang_bench(0.1), "max_concurrency": places})
    assert "it has no start_times" in error_line(done)


def test_more_places_in_flight_than_requests_start_all_at_once(tmp_path: Path) -> None:
    sides = [{**sglang_bench(step_s), "max_concurrency": 10**12} for step_s in (0.2, 0.1)]
    done = compare(tmp_path, *sides)
    assert done.returncode == 0, done.stderr
    (load,) = summary_of(tmp_path)["loads"]
    assert (load["turns"], load["turn_requests"]) == (1, COUNT)


def test_runs_that_were_appended_to_a_file_are_loads(tmp_path: Path) -> None:
    sides = ["\n".join(json.dumps(vllm_bench(step_s, rate=rate)) for rate in (2.0, 4.0, 4.0)) for step_s in (0.2, 0.1)]
    done = compare(tmp_path, *sides)
    assert done.returncode == 0, done.stderr
    assert [load["load"] for load in summary_of(tmp_path)["loads"]] == [
        "rate 2, concurrency 1",
        "rate 4, concurrency 1",
        "rate 4, concurrency 1, run 2",
    ]


def test_aiperf_with_names_that_are_made_up_anew(tmp_path: Path) -> None:
    done = compare(tmp_path, aiperf(2.0), aiperf(1.0, conversations="other"))
    assert done.returncode == 0, done.stderr
    summary = summary_of(tmp_path)
    (load,) = summary["loads"]
    assert ratios(load) == pytest.approx({"ttft": 2, "tpot": 2, "e2e": 2})
    assert (summary["finished"], summary["failed"]) == (2 * COUNT, 2)
    assert load["outputs"]["gate"] == "not compared"
    assert load["servers"]["plain"]["itl"]["p99"] == pytest.approx(0.002)


def test_guidellm_has_several_loads_in_a_file(tmp_path: Path) -> None:
    done = compare(tmp_path, guidellm(0.3), guidellm(0.1))
    assert done.returncode == 0, done.stderr
    loads = summary_of(tmp_path)["loads"]
    assert [load["load"] for load in loads] == ["concurrency 1", "rate 2"]
    assert ratios(loads[1]) == pytest.approx({"ttft": 3, "tpot": 3, "e2e": 3})
    assert loads[0]["servers"]["spec"]["tokens"] == 5 * COUNT


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (vllm_bench(0.1), vllm_bench(0.1, prompt=8), "9 prompt tokens in one result and 8 in the other"),
        (vllm_bench(0.1), vllm_bench(0.1, rate=3.0), "no load in common: plain has concurrency 1; spec has rate 3"),
        (vllm_bench(0.1), {"some": "file"}, "is no result file with single requests of AIPerf, GuideLLM, SGL"),
        (vllm_bench(0.1), {**vllm_bench(0.1, rate=3.0), "start_times": None}, "it has no start_times"),
        (vllm_bench(0.1), {**vllm_bench(0.1), "ttfts": [float("nan")] * COUNT}, "ttfts[0] must be a number"),
        (vllm_bench(0.1), {**vllm_bench(0.1), "itls": "x"}, "itls must be a list"),
    ],
)
def test_results_that_cannot_be_compared(first: object, second: object, message: str, tmp_path: Path) -> None:
    assert message in error_line(compare(tmp_path, first, second))
    assert not (tmp_path / "out").exists()

"""Result files of AIPerf, GuideLLM, `vllm bench serve` and SGLang's benchmark in the comparison of `skit ab`."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import error_line, read_object, read_rows, skit_here
from result_files import (
    FORMS,
    ZERO_S,
    aiperf_record,
    evenly,
    guide_row,
    guidellm_newest,
    json_lines,
    vllm_newest,
)

from specbench_kit.core.foreign_file import FileReading
from specbench_kit.studies.ab.imports.base import (
    ImportedAnswer,
    ImportedResults,
    reading_of,
    recognised,
    timed_answer,
)

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
    failed = {
        "metadata": {**metadata, "session_num": COUNT, "conversation_id": f"{conversations}{COUNT}"}
    }
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
        return {
            "config": {"strategy": strategy},
            "requests": {"successful": requests, "errored": []},
        }

    strategies = [{"type_": "synchronous"}, {"type_": "constant", "rate": 2.0}]
    return {"benchmarks": [benchmark(strategy) for strategy in strategies]}


def compare(folder: Path, first: object, second: object) -> Any:
    """Compare two contents as files."""
    for name, content in (("one", first), ("two", second)):
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return skit_here(
        "ab", f"plain={folder / 'one'}", f"spec={folder / 'two'}", "--out", folder / "out"
    )


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
    columns = {
        name: value
        for name, value in vllm_bench(step_s, rate=float("inf")).items()
        if name != "start_times"
    }
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
    sides = [
        "\n".join(json.dumps(vllm_bench(step_s, rate=rate)) for rate in (2.0, 4.0, 4.0))
        for step_s in (0.2, 0.1)
    ]
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
        (
            vllm_bench(0.1),
            vllm_bench(0.1, prompt=8),
            "9 prompt tokens in one result and 8 in the other",
        ),
        (
            vllm_bench(0.1),
            vllm_bench(0.1, rate=3.0),
            "no load in common: plain has concurrency 1; spec has rate 3",
        ),
        (
            vllm_bench(0.1),
            {"some": "file"},
            "with single requests of AIPerf, GenAI-Perf, GuideLLM, SGL",
        ),
        (
            vllm_bench(0.1),
            {**vllm_bench(0.1, rate=3.0), "start_times": None},
            "it has no start_times",
        ),
        (
            vllm_bench(0.1),
            {**vllm_bench(0.1), "ttfts": [float("nan")] * COUNT},
            "ttfts[0] must be a number",
        ),
        (vllm_bench(0.1), {**vllm_bench(0.1), "itls": "x"}, "itls must be a list"),
        (
            vllm_bench(0.1),
            {"backend": "vllm", "completed": COUNT, "mean_ttft_ms": 200.0},
            "two: it holds no single requests: run vllm bench serve again with --save-result --save-detailed",
        ),
        (
            {"backend": "sglang", "completed": COUNT, "mean_ttft_ms": 200.0},
            vllm_bench(0.1),
            "one: it holds no single requests: run SGLang's bench_serving again with --output-details",
        ),
    ],
)
def test_results_that_cannot_be_compared(
    first: object, second: object, message: str, tmp_path: Path
) -> None:
    assert message in error_line(compare(tmp_path, first, second))
    assert not (tmp_path / "out").exists()


def read(content: str) -> tuple[ImportedResults, FileReading]:
    """What a result file holds, and what it is said to be."""
    kind = recognised(Path("file.json"), content)
    assert kind is not None
    results = kind.read(Path("file.json"), content)
    return results, reading_of(Path("file.json"), kind, results)


def answered(results: ImportedResults) -> list[ImportedAnswer]:
    return [entry for load in results.loads for entry in load.answers if entry.answer is not None]


@pytest.mark.parametrize("form", FORMS)
def test_every_published_form_holds_the_same_requests(form: str) -> None:
    requests = evenly(4, 0.5)
    results, reading = read(FORMS[form](requests))
    found = [
        (entry.answer.ttft_s, entry.answer.e2e_s, entry.answer.tokens, entry.answer.prompt_tokens)
        for entry in answered(results)
        if entry.answer is not None
    ]
    expected = [
        (sent.moments_s[0], sent.moments_s[-1], sent.tokens, sent.prompt) for sent in requests
    ]
    assert [pytest.approx(line, abs=1e-6) for line in expected] == found
    assert reading.line.startswith("file.json: taken for results of ")
    assert re.search(r", times in \w+(, as each says)?; 4 requests\.$", reading.line)
    assert not reading.doubts


def test_end_and_time_per_token_are_those_of_vllm_s_own_file() -> None:
    """A chunk more than tokens, as the chat benchmark counts the one with the role: no moment of the file is lost."""
    gaps = [0.9] * 7 + [1.0]
    columns = {
        "ttfts": [0.1] * 4,
        "itls": [gaps] * 4,
        "output_lens": [8] * 4,
        "backend": "openai-chat",
    }
    results, _ = read(vllm_newest(evenly(4, 0.5), **columns))
    answers = [entry.answer for entry in answered(results) if entry.answer is not None]
    # vLLM's own: mean_e2el_ms is 7400, and mean_tpot_ms (7400 - 100) / 7.
    assert [answer.e2e_s for answer in answers] == pytest.approx([7.4] * 4)
    assert [answer.tpot_s for answer in answers] == pytest.approx([7.3 / 7] * 4)
    assert [answer.tokens for answer in answers] == [8] * 4
    (note,) = results.notes
    assert "4 answers of file.json have more chunks than tokens" in note
    assert "The next one came 900 ms later" in note
    # Without the chat endpoint no chunk is known to be the role's, and one that comes with the token moves nothing.
    assert not read(vllm_newest(evenly(4, 0.5), **(columns | {"backend": "vllm"})))[0].notes
    assert not read(vllm_newest(evenly(4, 0.5), **(columns | {"itls": [[0.0, *gaps[1:]]] * 4})))[
        0
    ].notes


def test_tokens_spread_over_all_chunks_of_an_answer() -> None:
    """Whichever chunks hold none: the first token came with the first, the last with the last, and none is lost."""
    random = Random(5)
    for _ in range(200):
        chunks, tokens = random.randint(1, 30), random.randint(1, 30)
        moments_s = sorted(random.uniform(0.1, 9) for _ in range(chunks))
        answer = timed_answer(moments_s, tokens, None, None)
        assert (answer.tokens, answer.ttft_s, answer.e2e_s) == (tokens, moments_s[0], moments_s[-1])
    with pytest.raises(ValueError, match="the times of an answer's chunks fall"):
        timed_answer([0.2, 0.1], 2, None, None)


@pytest.mark.parametrize(
    "form", ["vllm newest", "sglang newest", "guidellm 0.7", "aiperf newest", "genai-perf"]
)
def test_a_time_of_zero_to_the_first_token_is_no_answer(form: str, tmp_path: Path) -> None:
    requests = evenly(COUNT, 0.5)
    requests[2] = requests[2]._replace(moments_s=(0.0, *requests[2].moments_s[1:]))
    results, reading = read(FORMS[form](requests))
    assert len(answered(results)) == COUNT - 1
    assert "; left out: 1 with a time of 0 to the first token." in reading.line
    assert reading.doubts[0].startswith(
        f"1 of {COUNT} answers with a time of 0 to the first token: no token came"
    )
    done = compare(tmp_path, FORMS[form](requests), FORMS[form](evenly(COUNT, 0.5)))
    assert done.returncode == 0, done.stderr
    # It stands before any result.
    assert (
        done.stdout.index("DOUBTFUL: one")
        < done.stdout.index("results of")
        < done.stdout.index("typical turn")
    )
    (run,) = (tmp_path / "out").glob("*-ab-*")
    report = (run / "report.md").read_text()
    assert report.index("DOUBTFUL: one") < report.index("Which one is faster")
    assert read_object(run / "summary.json")["failed"] == 1


def test_refused_connections_of_guidellm_count_without_a_time_of_their_own() -> None:
    """They have no `request_start`: as failures of the moment when they were taken up, or else as a number."""
    timings = {"request_start": None, "resolve_start": ZERO_S + 3.0, "token_iterations": 0}
    refused = {"info": {"error": "refused", "timings": timings}, "request_args": "x"}
    never = {"info": {"error": "refused", "timings": {}}, "request_args": "y"}
    rows = [guide_row(number, sent) for number, sent in enumerate(evenly(3, 0.5))]
    results, reading = read(
        guidellm_newest([], requests={"successful": rows, "errored": [refused, never]})
    )
    (load,) = results.loads
    assert sorted(entry.sent_s - ZERO_S for entry in load.answers) == [0, 3, 10, 20]
    assert reading.line.endswith("3 requests; left out: 2 failed.")


def test_guidellm_s_warm_up_and_cool_down_are_left_out(tmp_path: Path) -> None:
    """Slow requests outside of the measured window change nothing."""
    window = {"measure_start_time": ZERO_S + 20, "measure_end_time": ZERO_S + 109}
    sides = [evenly(12, 0.5), [*evenly(2, 5.0), *evenly(11, 0.5)[2:], *evenly(12, 5.0)[11:]]]
    rows = [[guide_row(number, sent) for number, sent in enumerate(side)] for side in sides]
    contents = [
        guidellm_newest(
            [], scheduler_metrics=window, requests={"successful": side, "incomplete": side[:1]}
        )
        for side in rows
    ]
    assert read(contents[1])[1].line.endswith(
        "9 requests; left out: 2 of the warm-up, 1 of the cool-down, 1 cut off by the end of the load."
    )
    done = compare(tmp_path, *contents)
    assert done.returncode == 0, done.stderr
    (load,) = summary_of(tmp_path)["loads"]
    assert ratios(load) == pytest.approx({"ttft": 1, "tpot": 1, "e2e": 1})


@pytest.mark.parametrize(("unit", "per_s"), [("ns", 1e9), ("us", 1e6), ("ms", 1e3), ("sec", 1.0)])
def test_aiperf_s_units_are_those_of_each_metric(unit: str, per_s: float) -> None:
    requests = evenly(3, 0.5)
    rows = [aiperf_record(number, sent, unit, per_s) for number, sent in enumerate(requests)]
    results, reading = read(json_lines(rows))
    assert [entry.answer.e2e_s for entry in answered(results) if entry.answer] == pytest.approx(
        [3.0] * 3
    )
    assert f"times in {unit}, as each says" in reading.line


@pytest.mark.parametrize("unit", ["", "fortnights"])
def test_a_unit_that_is_not_known_is_not_guessed(unit: str) -> None:
    with pytest.raises(
        ValueError, match=f"line 1: the unit of time_to_first_token must be one of .*, not '{unit}'"
    ):
        read(json_lines([aiperf_record(0, evenly(1, 0.5)[0], unit)]))


def test_aiperf_s_requests_without_a_time_are_counted_and_left_out() -> None:
    rows = [aiperf_record(number, sent) for number, sent in enumerate(evenly(8, 0.5))]
    rows[0]["metadata"]["benchmark_phase"] = "warmup"
    rows[1]["metadata"]["was_cancelled"] = True
    rows[2]["error"] = {"code": 499, "type": "RequestCancellationError", "message": "cancelled"}
    del rows[3]["metrics"]["time_to_first_token"]
    rows[4]["error"] = {"code": 500, "type": "ServerError", "message": "lost"}
    results, reading = read(json_lines(rows))
    assert reading.line.endswith(
        "3 requests; left out: 1 of the warm-up, 2 cancelled, 1 without times, 1 failed."
    )
    assert [entry.error for load in results.loads for entry in load.answers if entry.error] == [
        "lost"
    ]
    for row in rows:
        row["metrics"].pop("time_to_first_token", None)
    with pytest.raises(ValueError, match="run AIPerf with --streaming"):
        read(json_lines(rows[3:4] + rows[5:]))


def test_requests_without_a_partner_count_for_nothing_and_are_told(tmp_path: Path) -> None:
    """The 10 last of 40 are slow: neither ratios nor the server's own figures are over them."""
    first = [
        *evenly(30, 0.2),
        *[sent._replace(at_s=300.0 + 9 * sent.at_s) for sent in evenly(10, 0.9)],
    ]
    done = compare(tmp_path, vllm_newest(first), vllm_newest(evenly(30, 0.1)))
    assert done.returncode == 0, done.stderr
    line = "UNPAIRED: 10 of 40 requests of plain have no partner in spec and count for nothing."
    assert line in " ".join(done.stdout.split())
    summary = summary_of(tmp_path)
    assert line in next((tmp_path / "out").glob("*/report.md")).read_text()
    assert "requests of spec have no partner" not in done.stdout
    (load,) = summary["loads"]
    plain = load["servers"]["plain"]
    assert (plain["finished"], load["servers"]["spec"]["finished"]) == (30, 30)
    assert plain["throughput"] == pytest.approx(5 / 1.2), "five tokens in 6 steps of .2 s"
    assert plain["e2e"]["p99"] == pytest.approx(1.2)
    assert "although they were in flight" not in done.stdout


def test_unpaired_requests_beside_others_and_loads_of_one_side_are_told(tmp_path: Path) -> None:
    """A request takes 1.2 s, and the next one is sent after 0.5 s."""
    loads = [
        vllm_newest(evenly(count, 0.2, apart_s=0.5), request_rate=rate)
        for count, rate in ((9, 2.0), (8, 4.0))
    ]
    others = [
        vllm_newest(evenly(8, 0.2, apart_s=0.5), request_rate=rate) for rate in (2.0, 4.0, 8.0)
    ]
    done = compare(tmp_path, "\n".join(loads), "\n".join(others))
    assert done.returncode == 0, done.stderr
    cautions = summary_of(tmp_path)["cautions"]
    assert [line for line in cautions if line.startswith("UNPAIRED")] == [
        "UNPAIRED: 1 of 9 requests of plain at rate 2, concurrency 1 have no partner in spec and count for nothing. "
        "The throughput of plain is without their tokens, although they were in flight beside others. Give both runs "
        "the same prompts, and equally many.",
        "UNPAIRED: plain has no load rate 8, concurrency 1, and what spec did there is left out.",
    ]


def test_a_result_that_is_compared_with_itself_is_told(tmp_path: Path) -> None:
    done = compare(tmp_path, vllm_bench(0.2), vllm_bench(0.2))
    assert done.returncode == 0, done.stderr
    assert "SAME FILE: plain and spec were given one content" in " ".join(done.stdout.split())
    summary_of(tmp_path)
    assert "SAME FILE" in next((tmp_path / "out").glob("*/report.md")).read_text()
    other = tmp_path / "other"
    other.mkdir()
    done = compare(other, vllm_bench(0.2), vllm_bench(0.1))
    assert "SAME FILE" not in done.stdout
    assert "UNPAIRED" not in done.stdout

"""Result files of load generators in their oldest and newest published forms, made of the same requests."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Body = dict[str, Any]
ZERO_S = 1_760_000_000.0
"""The clock's seconds at the beginning of a load."""


class Sent(NamedTuple):
    """One request: when it was sent, when each chunk arrived after that, and its lengths in tokens."""

    at_s: float
    moments_s: tuple[float, ...]
    prompt: int
    tokens: int


def evenly(count: int, step_s: float, tokens: int = 5, apart_s: float = 10.0) -> list[Sent]:
    """Requests one after the other, a token every `step_s` from twice that on."""
    moments_s = tuple(step_s * (2 + number) for number in range(tokens))
    return [Sent(apart_s * number, moments_s, 20 + number, tokens) for number in range(count)]


def _lists(requests: Sequence[Sent]) -> Body:
    return {
        "ttfts": [request.moments_s[0] for request in requests],
        "itls": [
            [after - before for before, after in pairwise(request.moments_s)]
            for request in requests
        ],
        "input_lens": [request.prompt for request in requests],
        "output_lens": [request.tokens for request in requests],
        "generated_texts": [f"answer {number}" for number in range(len(requests))],
        "errors": [""] * len(requests),
    }


def vllm_oldest(requests: Sequence[Sent]) -> str:
    """`benchmark_serving.py --save-result` of 2024: no moments of sending."""
    head = {
        "date": "20240601-101112",
        "backend": "vllm",
        "model_id": "m",
        "request_rate": "inf",
        "max_concurrency": 1,
    }
    return json.dumps(head | _lists(requests))


def vllm_newest(requests: Sequence[Sent], /, **fields: object) -> str:
    """`vllm bench serve --save-result --save-detailed` of today."""
    head = {
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "request_rate": "inf",
        "max_concurrency": 1,
    }
    starts = {"start_times": [500.0 + request.at_s for request in requests]}
    return json.dumps(head | _lists(requests) | starts | fields)


def sglang_oldest(requests: Sequence[Sent]) -> str:
    """`bench_serving --output-details`, a line per run, with Infinity where a rate has no limit."""
    head = {
        "backend": "sglang",
        "request_rate": float("inf"),
        "max_concurrency": 1,
        "accept_length": None,
    }
    return json.dumps(head | _lists(requests) | {"errors": [None] * len(requests)}) + "\n"


def sglang_newest(requests: Sequence[Sent]) -> str:
    head = {
        "tag": None,
        "backend": "sglang-oai-chat",
        "request_rate": float("inf"),
        "max_concurrency": 1,
    }
    starts = {"start_times": [500.0 + request.at_s for request in requests]}
    return json.dumps(head | _lists(requests) | starts | {"errors": [None] * len(requests)}) + "\n"


def guidellm_oldest(requests: Sequence[Sent]) -> str:
    """GuideLLM 0.2: moments beside the other fields, the load in `args`."""
    rows = [
        {
            "type_": "generative_text_response",
            "prompt": f"prompt {number}",
            "output": f"answer {number}",
            "prompt_tokens": request.prompt,
            "output_tokens": request.tokens,
            "start_time": ZERO_S + request.at_s,
            "first_token_time": ZERO_S + request.at_s + request.moments_s[0],
            "last_token_time": ZERO_S + request.at_s + request.moments_s[-1],
        }
        for number, request in enumerate(requests)
    ]
    status = {"successful": rows, "incomplete": [], "errored": [], "total": None}
    args = {"strategy": {"type_": "concurrent", "streams": 1}}
    return json.dumps(
        {"benchmarks": [{"type_": "generative_benchmark", "args": args, "requests": status}]}
    )


def guide_row(number: int, request: Sent) -> Body:
    """A successful request of today's GuideLLM, with the fields that it computes."""
    sent_s = ZERO_S + request.at_s
    timings = {
        "targeted_start": sent_s - 0.1,
        "resolve_start": sent_s - 0.01,
        "request_start": sent_s,
        "first_token_iteration": sent_s + request.moments_s[0],
        "last_token_iteration": sent_s + request.moments_s[-1],
        "token_iterations": len(request.moments_s),
        "request_end": sent_s + request.moments_s[-1],
    }
    return {
        "type_": "generative_request_stats",
        "request_id": f"random {number}",
        "request_args": f'{{"prompt": "prompt {number}"}}',
        "output": f"answer {number}",
        "info": {"status": "completed", "timings": timings, "error": None},
        "request_start_time": sent_s,
        "prompt_tokens": request.prompt,
        "output_tokens": request.tokens,
    }


def guidellm_newest(requests: Sequence[Sent], /, **fields: object) -> str:
    """GuideLLM 0.7: moments in `info.timings`, the load in `config`, the measured window in `scheduler_metrics`."""
    rows = [guide_row(number, request) for number, request in enumerate(requests)]
    benchmark = {
        "type_": "generative_benchmark",
        "config": {"strategy": {"type_": "concurrent", "streams": 1}},
        "scheduler_metrics": {"measure_start_time": ZERO_S, "measure_end_time": ZERO_S + 1e4},
        "requests": {"successful": rows, "incomplete": [], "errored": [], "total": None},
    }
    return json.dumps(
        {"metadata": {"version": 2}, "config": {}, "benchmarks": [benchmark | fields]}
    )


def aiperf_record(number: int, request: Sent, unit: str = "ms", per_s: float = 1e3) -> Body:
    """A record of AIPerf whose times are in any of its units."""
    gaps_s = [after - before for before, after in pairwise(request.moments_s)]
    return {
        "metadata": {
            "session_num": number,
            "x_request_id": f"random {number}",
            "conversation_id": f"c{number}",
            "turn_index": 0,
            "request_start_ns": round(1e9 * (ZERO_S + request.at_s)),
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            "time_to_first_token": {"value": per_s * request.moments_s[0], "unit": unit},
            "request_latency": {"value": per_s * request.moments_s[-1], "unit": unit},
            "inter_chunk_latency": {"value": [per_s * gap_s for gap_s in gaps_s], "unit": unit},
            "output_sequence_length": {"value": request.tokens, "unit": "tokens"},
            "input_sequence_length": {"value": request.prompt, "unit": "tokens"},
        },
        "error": None,
    }


def json_lines(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def aiperf_oldest(requests: Sequence[Sent]) -> str:
    """The first records: `ttft`, no gaps between chunks, no phase."""
    rows = []
    for number, request in enumerate(requests):
        record = aiperf_record(number, request)
        metrics = record["metrics"]
        metrics["ttft"] = metrics.pop("time_to_first_token")
        del (
            metrics["inter_chunk_latency"],
            record["metadata"]["benchmark_phase"],
            record["metadata"]["was_cancelled"],
        )
        rows.append(record)
    return json_lines(rows)


def aiperf_newest(requests: Sequence[Sent]) -> str:
    return json_lines([aiperf_record(number, request) for number, request in enumerate(requests)])


def genai_perf(requests: Sequence[Sent]) -> str:
    """GenAI-Perf: the chunks themselves; the first names the role, and the last one is the stream's end."""

    def chunk(delta: Body) -> Body:
        return {"response": f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"}

    rows = []
    for number, request in enumerate(requests):
        sent_ns = round(1e9 * (ZERO_S + request.at_s))
        moments = [sent_ns + round(1e9 * moment_s) for moment_s in request.moments_s]
        usage = {"prompt_tokens": request.prompt, "completion_tokens": request.tokens}
        end = {
            "response": f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"
        }
        outputs = [chunk({"role": "assistant"}), *(chunk({"content": "a "}) for _ in moments), end]
        rows.append(
            {
                "timestamp": sent_ns,
                "request_inputs": {"payload": f"prompt {number}"},
                "response_timestamps": [moments[0] - 1000, *moments, moments[-1] + 1000],
                "response_outputs": outputs,
            }
        )
    load = {
        "experiment": {"mode": "concurrency", "value": 1},
        "requests": rows,
        "window_boundaries": [],
    }
    return json.dumps(
        {"service_kind": "openai", "endpoint": "v1/chat/completions", "experiments": [load]}
    )


Write = Callable[[Sequence[Sent]], str]
WITHOUT_STARTS: dict[str, Write] = {"vllm 2024": vllm_oldest, "sglang oldest": sglang_oldest}
"""Files that do not say when requests were sent."""
FORMS: dict[str, Write] = WITHOUT_STARTS | {
    "vllm newest": vllm_newest,
    "sglang newest": sglang_newest,
    "guidellm 0.2": guidellm_oldest,
    "guidellm 0.7": guidellm_newest,
    "aiperf oldest": aiperf_oldest,
    "aiperf newest": aiperf_newest,
    "genai-perf": genai_perf,
}
"""Every published form; GuideLLM and the oldest AIPerf keep only the first and the last moment of a request."""

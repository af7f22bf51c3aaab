"""Small inputs of every kind for the commands of `option_tables`, by the names that the tables use."""

import json
from collections.abc import Mapping
from pathlib import Path

from command_line import TinyPair, skit_here, write_rows
from report_builders import make_run
from run_builders import write_methods
from trace_builders import made_requests, write_trace


def write_inputs(folder: Path, tiny: TinyPair) -> Mapping[str, str]:
    """Write all inputs below a folder and return their paths by name."""
    inputs = {
        "trace": write_trace(folder / "made.parquet", made_requests(4)).path,
        "other_trace": write_trace(folder / "other.parquet", made_requests(3, length=20)).path,
        "prompts": _write_prompts(folder / "prompts.jsonl", 4),
        "other_prompts": _write_prompts(folder / "others.jsonl", 2, ask="Name"),
        "long_prompts": write_rows(
            folder / "long.jsonl", *({"id": str(n), "prompt": n * "long "} for n in (1, 200))
        ),
        "long_trace": write_trace(folder / "long.parquet", made_requests(12)).path,
        "short_trace": write_trace(folder / "short.parquet", made_requests(12, length=20)).path,
        "many_prompts": _write_prompts(folder / "many.jsonl", 60, ask="Count"),
        "slow_results": _write_results(folder / "slow.json", 0.02),
        "fast_results": _write_results(folder / "fast.json", 0.01),
        "failed_results": _write_results(folder / "failed.json", 0.01, failed=2),
        "tuned": _write_tuned(folder / "tuned.json"),
        "arrivals": _write_arrivals(folder / "azure.csv"),
        "link_trace": _write_links(folder / "links.csv"),
        "pings": _write_pings(folder / "pings.txt"),
        "log": _write_log(folder / "log.jsonl", 0.02),
        "slow_log": _write_log(folder / "slow-log.jsonl", 0.03),
        "answers": _write_answers(folder / "answers.jsonl", accepted=3),
        "plain_answers": _write_answers(folder / "plain.jsonl", accepted=1),
    }
    _write_gsm8k(folder / "gsm8k")
    runs = write_methods(folder / "runs", requests=6)
    config = make_run()["config"] | {"max_new_tokens": 12}
    (shorter,) = write_methods(
        folder / "shorter", 6, tokens=12, drafts={"wisp": (4, 0.8)}, config=config
    )
    folders = {
        "inputs": folder,
        "indexed": folder / "replayed",
        "other_folder": _write_other_folder(folder / "other"),
        "run": runs[0],
        "other_run": runs[2],
        "third_run": runs[3],
        "shorter_run": shorter,
        "decoded": _bench(
            folder / "decoded", "--dataset", inputs["prompts"], *tiny.options, "--max-new-tokens", 4
        ),
        **{
            name: _bench(folder / name, "--replay", inputs[trace], "--deployment", "wan")
            for name, trace in (("replayed", "trace"), ("other_replayed", "other_trace"))
        },
    }
    return {name: str(path) for name, path in (inputs | folders).items()}


def _bench(out: Path, *options: object) -> Path:
    """A run that was made by the command, which `skit rerun` repeats."""
    done = skit_here("bench", "--method", "fixed-k:k=3", *options, "--out", out)
    assert done.returncode == 0, done.stderr
    (run,) = out.iterdir()
    return run


def _write_prompts(path: Path, count: int, ask: str = "What is") -> Path:
    """Prompts with a right answer each."""
    rows = (
        {"id": f"q{n}", "prompt": f"{ask} {n} and {n * n}?", "answer": f"#### {n}"}
        for n in range(count)
    )
    return write_rows(path, *rows)


def _write_other_folder(folder: Path) -> Path:
    """A folder with another file of the name of the prompts."""
    folder.mkdir()
    _write_prompts(folder / "prompts.jsonl", 3, ask="Name")
    return folder


def _write_gsm8k(folder: Path) -> None:
    """A data folder with questions of one's own under the name of a dataset."""
    folder.mkdir()
    for split in ("test", "train"):
        rows = (
            {"question": f"How many are {n} {split} apples?", "answer": f"#### {n}"}
            for n in range(3)
        )
        write_rows(folder / f"{split}.jsonl", *rows)


def _write_tuned(path: Path) -> Path:
    """Options as `skit tune` writes them."""
    method = {"spec": "fixed-k:k=2", "tried": 2, "tokens_per_s": 9.0, "default_tokens_per_s": 8.0}
    tuned = {
        "schema": 1,
        "methods": {"fixed-k": method},
        "deployment": "wan",
        "batch_size": 1,
        "budget": 2,
        "run": {},
    }
    path.write_text(json.dumps(tuned), encoding="utf-8")
    return path


def _write_arrivals(path: Path) -> Path:
    """One request per second, as Azure's traces have it."""
    rows = "".join(f"{second},{40 + second},{10}\n" for second in range(30))
    path.write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}", encoding="utf-8")
    return path


def _write_links(path: Path) -> Path:
    """A link that is slow now and then."""
    path.write_text(
        "time_s,rtt_s,bytes_per_s\n0,0.02,1e6\n5,0.5,1e5\n10,0.02,1e6\n", encoding="utf-8"
    )
    return path


def _write_pings(path: Path) -> Path:
    """Round trips alone, one of which is long."""
    path.write_text("0.02\n0.5\n0.02\n", encoding="utf-8")
    return path


def _write_log(path: Path, step_s: float) -> Path:
    """The log of a server that takes so long for each of ten tokens."""
    rows = (
        {
            "queued_ts": 0.05 * number,
            "first_token_ts": 0.05 * number + 3 * step_s,
            "last_token_ts": 0.05 * number + 12 * step_s,
            "input_toks": 200 + number,
            "output_toks": 10,
        }
        for number in range(36)
    )
    return write_rows(path, *rows)


def _write_results(path: Path, step_s: float, failed: int = 0, count: int = 8) -> Path:
    """Results of `vllm bench serve`, whose requests have three tokens each; the last ones may have failed."""
    results = {
        "max_concurrency": 1,
        "request_rate": "inf",
        "ttfts": [2 * step_s] * count,
        "itls": [[step_s]] * count,
        "output_lens": [3] * count,
        "input_lens": [9 + number for number in range(count)],
        "start_times": [100.0 + number for number in range(count)],
        "generated_texts": [f"a b c {number}" for number in range(count)],
        "errors": [""] * (count - failed) + ["lost"] * failed,
    }
    path.write_text(json.dumps(results), encoding="utf-8")
    return path


def _write_answers(path: Path, accepted: int) -> Path:
    """Answers of Spec-Bench's form, whose rounds commit this many tokens."""
    turn = {
        "model_id": "fixed",
        "category": "qa",
        "choices": [
            {
                "index": 0,
                "turns": ["text"],
                "idxs": [4],
                "new_tokens": [4 * accepted],
                "decoding_steps": [4],
                "wall_time": [0.4],
                "accept_lengths": [accepted] * 4,
            }
        ],
    }
    path.write_text(
        "".join(json.dumps({"question_id": n, **turn}) + "\n" for n in range(2)), encoding="utf-8"
    )
    return path

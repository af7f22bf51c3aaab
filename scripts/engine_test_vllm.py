"""Run policies inside vLLM for real: python scripts/engine_test_vllm.py --target FOLDER --draft FOLDER --out FOLDER.

All drafters decode the same prompts in one process, prompt by prompt and in turns, so that a disturbance of the machine
meets all of them; then other prompts, all together. Every output is compared with that of vLLM without a drafter.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from msgspec.structs import replace
from vllm import LLM, SamplingParams

from specbench_kit.datasets.loading import load
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.session import Request
from specbench_kit.engines import vllm as face
from specbench_kit.engines.drafter import request_id
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.run_summary import RequestCounts, typed_summary
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.studies.bench.conclusion import (
    MARKDOWN_ONLY,
    Conclusion,
    RequestReader,
    write_report,
)
from specbench_kit.studies.bench.judges import ServedOutputJudge
from specbench_kit.studies.conversations import Conversation
from specbench_kit.studies.interchange.base import UNKNOWN

LONGEST_DRAFT = 8
OWN = {
    "plain": None,
    "ngram": {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix"},
}
"""vLLM's own drafters that need no model."""
MADE: list["Recorded"] = []


class Recorded(face.Drafts):
    """The proposer, with its calls written down."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self.calls: list[dict[str, Any]] | None = None
        MADE.append(self)

    def propose(
        self,
        sampled_token_ids: Any,
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        *others: Any,
        **named: Any,
    ) -> Any:
        drafts = super().propose(
            sampled_token_ids, num_tokens_no_spec, token_ids_cpu, *others, **named
        )
        if self.calls is not None:
            counts = [int(count) for count in num_tokens_no_spec[: len(drafts)]]
            rows = [token_ids_cpu[row, :count].tolist() for row, count in enumerate(counts)]
            new = [len(sampled) for sampled in sampled_token_ids]
            self.calls.append({"rows": rows, "new": new, "drafts": drafts})
        return drafts


@dataclass
class Subject:
    """One way to decode in vLLM, and what came of it."""

    name: str
    llm: LLM
    drafts: Recorded | None
    records: list[RequestRecord] = field(default_factory=list)
    batch_s: float = 0.0
    batch_outputs: list[list[int]] = field(default_factory=list)

    def decode(self, requests: Sequence[Request], most: int) -> list[RequestRecord]:
        """Decode requests together, step by step, and return a record of each with what is seen from outside."""
        engine, began_s = self.llm.llm_engine, perf_counter()
        records = {
            r.id: RequestRecord(request_id(list(r.prompt_ids)), r.category, list(r.prompt_ids))
            for r in requests
        }
        outputs: dict[str, list[int]] = {r.id: [] for r in requests}
        parameters = SamplingParams(temperature=0, max_tokens=most)
        for request in requests:
            engine.add_request(
                request.id, {"prompt_token_ids": list(request.prompt_ids)}, parameters
            )
        while engine.has_unfinished_requests():
            for output in engine.step():
                name, tokens = str(output.request_id), list(output.outputs[0].token_ids)
                new, outputs[name] = len(tokens) - len(outputs[name]), tokens
                if new:
                    end_s = perf_counter() - began_s
                    unknown: dict[str, Any] = UNKNOWN | {"end_s": end_s}
                    line = RoundRecord(**unknown, accepted=new - 1, committed=new)
                    records[name].rounds.append(line)
                if output.finished:
                    records[name].text = output.outputs[0].text
                    records[name].finish(
                        tokens, "length" if len(tokens) == most else "eos", perf_counter()
                    )
        return [records[request.id] for request in requests]

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Decode requests that do not count, together."""
        drafter = self.drafts.drafter if self.drafts else None
        out, records = (drafter.recorder.out, drafter.recorder) if drafter else (None, None)
        if records:
            records.out = None
        self.decode(requests, 16)
        if drafter and records:
            drafter.speculator.close()
            records.out = out


def make_subject(
    name: str, options: argparse.Namespace, speculative: dict[str, Any] | None, **limits: Any
) -> Subject:
    """Return vLLM with a drafter."""
    before = len(MADE)
    llm = LLM(
        options.target,
        dtype=options.dtype,
        block_size=32,
        max_model_len=options.context,
        enforce_eager=True,
        enable_prefix_caching=False,
        speculative_config=speculative and {**speculative, "num_speculative_tokens": LONGEST_DRAFT},
        **({"max_num_seqs": options.batch_size} | limits),
    )
    return Subject(name, llm, MADE[-1] if len(MADE) > before else None)


def make_policy(spec: str, options: argparse.Namespace, **limits: Any) -> Subject:
    """Return vLLM with a policy of the kit."""
    os.environ |= {
        "SKIT_METHOD": spec,
        "SKIT_DRAFT": options.draft,
        "SKIT_DATASET": options.dataset,
        "SKIT_OUT": str(options.out),
        "SKIT_MAX_NEW_TOKENS": str(options.max_new_tokens),
    }
    return make_subject(
        f"skit {spec}", options, {"method": "custom_class", "model": "__main__.Recorded"}, **limits
    )


def load_requests(options: argparse.Namespace, count: int) -> list[Request]:
    """Return the requests of the dataset, as the target's chat template makes them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.target)
    dataset = load(options.dataset, data_dir=None, allow_sample=True, limit=count, seed=0)
    requests = [
        Conversation(prompt, tokenizer, options.max_new_tokens).next_request()
        for prompt in dataset.prompts
    ]
    return [request for request in requests if request is not None]


def run(options: argparse.Namespace) -> list[Subject]:
    """Decode all prompts with all drafters, half of them one by one, after as many others that warm up both ways."""
    own = options.own.split(",")
    subjects = [
        make_subject(name, options, OWN[name]) for name in OWN if name in own and name != "ngram"
    ]
    subjects += [make_policy(spec, options) for spec in options.method]
    if (
        "ngram" in own
    ):  # the last one: once its numba is imported, vLLM fails to make another engine in this process
        subjects.append(make_subject("ngram", options, OWN["ngram"]))
    requests = load_requests(options, 3 * options.limit)
    others, requests = requests[: options.limit], requests[options.limit :]
    for subject in subjects:
        for request in others:
            subject.warm_up([request])
        subject.warm_up(others)
    for number, request in enumerate(requests[: options.limit]):
        turn = number % len(subjects)
        for subject in [*subjects[turn:], *subjects[:turn]]:
            subject.records += subject.decode([request], options.max_new_tokens)
    for subject in subjects:
        write_run(subject, subjects[0], options)
    for subject in subjects:
        began_s = perf_counter()
        records = subject.decode(requests[options.limit :], options.max_new_tokens)
        subject.batch_s, subject.batch_outputs = (
            perf_counter() - began_s,
            [record.output_ids for record in records],
        )
    return subjects


def write_run(subject: Subject, plain: Subject, options: argparse.Namespace) -> None:
    """Complete the run that a policy left with its baseline, or write that of vLLM's own drafter, as seen outside."""
    described = MADE[0].drafter.recorder.description
    config = {
        **described["config"],
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "batch_size": 1,
        "baseline": True,
    }
    method = parse_method("autoregressive")
    if subject.drafts:
        method = parse_method(subject.drafts.drafter.recorder.description["method"])
        folder = subject.drafts.drafter.close()
        assert folder is not None
        directory = RunDirectory.open(folder)
        directory.amend(config=config)
        outside = {record.request_id: record for record in subject.records}
        records = directory.records()
        for record in records:
            assert record.output_ids == outside[record.request_id].output_ids, (
                "the record has another output"
            )
            record.category, record.text = (
                outside[record.request_id].category,
                outside[record.request_id].text,
            )
        (directory.path / "requests.jsonl").unlink()
        subject.drafts.drafter.recorder.out = None
    else:
        known = {
            name: value for name, value in described.items() if name not in {"options", "uses"}
        }
        models = {"target": described["models"]["target"]}
        changes: Any = {
            "method": f"vllm-{subject.name}",
            "config": config,
            "models": models,
            "requests": options.limit,
        }
        directory, records = RunDirectory.create(options.out, known | changes), subject.records
    for record in in_turn(records):
        directory.append(record)
    for record in in_turn(plain.records):
        directory.append_baseline(record)
    requests = RequestReader()(directory)
    count = len(requests.records)
    judge = ServedOutputJudge(bitwise=False)
    verdicts = judge.judge(directory.document, method, requests.records, requests.baseline)
    summary = typed_summary(
        summarise_run(requests.group, requests.plain, None),
        method=str(directory.document.method),
        requests=RequestCounts(count, count, 0),
    )
    conclusion = Conclusion(directory, replace(summary, lossless=verdicts.lossless), requests)
    write_report(conclusion, MARKDOWN_ONLY)
    directory.write_summary(conclusion.summary)


def in_turn(records: Sequence[RequestRecord]) -> Iterator[RequestRecord]:
    """Yield the records as if no other drafter had decoded in between."""
    ends_s = accumulate(record.e2e_s or 0.0 for record in records)
    for record, end_s in zip(records, ends_s, strict=True):
        yield replace(record, finished_s=end_s)


def table(subjects: Sequence[Subject]) -> str:
    """Return what was measured, as Markdown."""
    lines = [
        "| drafter | identical | tokens/s | ratio to plain | tokens per step | together, tokens/s | ratio | in skit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    plain = subjects[0]
    for subject in subjects:
        pairs = list(zip(subject.records, plain.records, strict=True))
        same = sum(record.output_ids == other.output_ids for record, other in pairs)
        batch = zip(subject.batch_outputs, plain.batch_outputs, strict=True)
        same += sum(output == other for output, other in batch)
        tokens, seconds = (
            sum(len(r.output_ids) for r in subject.records),
            sum(r.e2e_s or 0.0 for r in subject.records),
        )
        steps, together = (
            sum(len(r.rounds) for r in subject.records),
            sum(map(len, subject.batch_outputs)),
        )
        ratio = median((other.e2e_s or 0.0) / (record.e2e_s or 1.0) for record, other in pairs)
        overhead = subject.drafts.drafter.speculator.overhead if subject.drafts else None
        share = (
            f"{overhead.total_s / (overhead.total_s + overhead.engine_s):.1%}" if overhead else ""
        )
        rates = f"{tokens / seconds:.1f} | {ratio:.2f} | {tokens / steps:.2f}"
        batched = f"{together / subject.batch_s:.1f} | {plain.batch_s / subject.batch_s:.2f}"
        lines.append(
            f"| {subject.name} | {same} of {2 * len(pairs)} | {rates} | {batched} | {share} |"
        )
    return "\n".join(lines) + "\n"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", default="bundled")
    parser.add_argument("--method", action="append", default=[])
    parser.add_argument("--own", default=",".join(OWN))
    parser.add_argument("--dataset", default="gsm8k")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("build/engine-test"))
    parser.add_argument("--context", type=int, default=1024)
    return parser


def main() -> None:
    """Decode, and print the table."""
    options = parser_of(__doc__).parse_args()
    print(text := table(run(options)))
    (options.out / "table.md").write_text(text)


if __name__ == "__main__":
    main()

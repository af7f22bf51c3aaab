"""Check that the bundled pair is fit for benchmarks: varied text, a useful draft model, small files."""

from pathlib import Path
from statistics import mean

from benchmarks.common import FIXED_K, Bound, Figure, Outcome, Setting
from specbench_kit.decoding.records import RequestRecord

BATCH_SIZE = 8
SAMPLES = 3


def run(setting: Setting) -> Outcome:
    """Measure greedy answers to GSM8K test problems, stopping at end-of-sequence and not."""
    runners = setting.runners(setting.executor_names[0], BATCH_SIZE)
    honoured, _ = setting.decode(runners, FIXED_K, setting.requests, BATCH_SIZE)
    ignored, _ = setting.decode(runners, FIXED_K, setting.requests, BATCH_SIZE, eos_ids=frozenset())
    figures = [
        *_variety("EOS honoured", honoured),
        *_variety("EOS ignored", ignored),
        Figure(
            "mean output length, EOS honoured", mean(len(r.output_ids) for r in honoured), "tokens"
        ),
        Figure(
            "answers that end by themselves",
            100 * mean(r.finish_reason == "eos" for r in honoured),
            "%",
        ),
        Figure(f"acceptance rate of {FIXED_K}", _acceptance(honoured), "", Bound(0.45, 0.75)),
        Figure("weights on disk", _weights_bytes(setting) / 1e6, "MB", Bound(most=24)),
    ]
    names = [loaded.source.label for loaded in (setting.pair.target, setting.pair.needed_draft)]
    title = f"Models {' and '.join(names)}: {len(honoured)} prompts, up to {setting.max_new_tokens} tokens"
    return Outcome(title, figures, _samples(setting, honoured))


def _variety(label: str, records: list[RequestRecord]) -> list[Figure]:
    ratios = [distinct_4_grams(record.output_ids) for record in records]
    varied = 100 * mean(ratio > 0.5 for ratio in ratios)
    return [
        Figure(
            f"distinct 4-grams, {label}: mean", mean(ratios), "", spread=(min(ratios), max(ratios))
        ),
        Figure(f"outputs with more than half distinct, {label}", varied, "%"),
    ]


def distinct_4_grams(tokens: list[int]) -> float:
    """Return the share of 4-grams that are distinct; 1 for an output too short to have any."""
    grams = list(zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def _acceptance(records: list[RequestRecord]) -> float:
    rounds = [r for record in records for r in record.rounds]
    return sum(r.accepted for r in rounds) / sum(r.submitted for r in rounds)


def _weights_bytes(setting: Setting) -> int:
    folders = [
        Path(loaded.source.location) for loaded in (setting.pair.target, setting.pair.needed_draft)
    ]
    return sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors"))


def _samples(setting: Setting, records: list[RequestRecord]) -> list[str]:
    shown = zip(setting.dataset.prompts[:SAMPLES], records, strict=False)
    return [
        f"Q: {p.turns[0]}\nA: {setting.pair.tokenizer.decode(r.output_ids)}\n" for p, r in shown
    ]

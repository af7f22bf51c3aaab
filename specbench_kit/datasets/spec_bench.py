"""Spec-Bench: six tasks, 80 prompts each."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets
from specbench_kit.datasets.mt_bench import CATEGORIES


@datasets.register("spec-bench")
class SpecBench(Dataset):
    """The prompts as published; fields `question_id`, `category`, `turns`.

    The eight MT-Bench categories are one task there, here `multi_turn`; its dialogues keep both turns.
    """

    summary = "480 prompts: multi-turn chat, translation, summarization, QA, math reasoning, RAG"
    paper = "Xia et al. 2024; AdaSpec and SpecEdge take their prompts from it"
    local = "spec_bench/question.jsonl"
    hub = Hub(
        "hemingkx/Spec-Bench",
        "train",
        url="https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
    )
    sample = "chat"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        category = "multi_turn" if row["category"] in CATEGORIES else row["category"]
        return Prompt(str(row["question_id"]), category, tuple(row["turns"]))

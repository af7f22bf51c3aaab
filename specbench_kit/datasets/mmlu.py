"""MMLU: multiple-choice questions in 57 subjects."""

from typing import Any

from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("mmlu")
class Mmlu(Dataset):
    """The question and its lettered choices; fields `question`, `subject`, `choices`, `answer`.

    The subject is the category. Asking for reasons makes an answer long enough to decode speculatively.
    """

    summary = "multiple-choice questions in 57 subjects, answered with reasons"
    paper = "Hendrycks et al. 2021"
    local = "mmlu/test.jsonl"
    hub = Hub("cais/mmlu", "test", "all")
    sample = "chat"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        choices = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True))
        request = f"{row['question']}\n\n{choices}\n\nWhich choice is right? Give your reasons, then the letter."
        gold = Gold("letter", ("ABCD"[row["answer"]],)) if row.get("answer") in range(4) else None
        return Prompt(f"mmlu-{index}", row["subject"], (request,), gold=gold)

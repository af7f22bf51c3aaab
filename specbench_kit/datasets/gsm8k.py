"""GSM8K: grade-school word problems."""

from typing import Any

from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import Dataset, Hub, Prompt, TrainSplit, datasets


@datasets.register("gsm8k")
class Gsm8k(Dataset):
    """The question as it stands; fields `question`, `answer`."""

    summary = "grade-school math word problems, to be solved step by step"
    paper = "Cobbe et al. 2021; the math_reasoning task of Spec-Bench (Xia et al. 2024)"
    local = "gsm8k/test.jsonl"
    hub = Hub("openai/gsm8k", "test", "main")
    train = TrainSplit("gsm8k/train.jsonl", Hub("openai/gsm8k", "train", "main"))
    sample = "gsm8k"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        gold = Gold("number", (row["answer"],)) if row.get("answer") else None
        return Prompt(f"gsm8k-{index}", "math_reasoning", (row["question"],), gold=gold)

"""DROP: questions that need arithmetic over a paragraph."""

from typing import Any

from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("drop")
class Drop(Dataset):
    """The passage, then the question; fields `passage`, `question`, `query_id`."""

    summary = "reading comprehension with counting, sorting and arithmetic"
    paper = "Dua et al. 2019"
    local = "drop/validation.jsonl"
    hub = Hub("ucinlp/drop", "validation")
    sample = "summarisation"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        request = f"Read the passage and answer the question, showing how you get there.\n\n{row['passage']}"
        spans = tuple((row.get("answers_spans") or {}).get("spans", ()))
        gold = Gold("phrase", spans) if spans else None
        return Prompt(f"drop-{index}", "reading", (f"{request}\n\nQuestion: {row['question']}",), gold=gold)

"""Natural Questions (open): short factual questions from search logs."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("natural-questions")
class NaturalQuestions(Dataset):
    """The question with its question mark restored; fields `question`, `answer`."""

    summary = "factual questions that people typed into a search engine"
    paper = "Kwiatkowski et al. 2019, Lee et al. 2019; the qa task of Spec-Bench"
    local = "natural-questions/validation.jsonl"
    hub = Hub("google-research-datasets/nq_open", "validation", "nq_open")
    sample = "chat"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        question = row["question"].rstrip(" ?") + "?"
        return Prompt(f"natural-questions-{index}", "qa", (question,))

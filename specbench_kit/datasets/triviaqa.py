"""TriviaQA: trivia questions without their documents."""

from typing import Any

from specbench_kit.datasets.answers import Gold
from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("triviaqa")
class TriviaQa(Dataset):
    """The question as it stands; fields `question`, `question_id`, `answer`."""

    summary = "trivia questions, answered from the model's own knowledge"
    paper = "Joshi et al. 2017"
    local = "triviaqa/validation.jsonl"
    hub = Hub("mandarjoshi/trivia_qa", "validation", "rc.wikipedia.nocontext")
    sample = "chat"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        known = row.get("answer") or {}
        names = tuple(filter(None, (known.get("value"), *known.get("aliases", ()))))
        return Prompt(f"triviaqa-{index}", "qa", (row["question"],), gold=Gold("phrase", names) if names else None)

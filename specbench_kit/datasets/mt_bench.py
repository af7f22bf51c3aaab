"""MT-Bench: two-turn dialogues."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets

CATEGORIES = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})


@datasets.register("mt-bench")
class MtBench(Dataset):
    """Both turns of each dialogue; fields `question_id`, `category`, `turns`.

    The local copy is Spec-Bench's file, which holds the same 80 dialogues among its other tasks.
    """

    summary = "80 two-turn dialogues in eight categories"
    paper = "Zheng et al. 2023; the multi-turn task of Spec-Bench; SpecExec and SpecEdge"
    local = "spec_bench/question.jsonl"
    hub = Hub("lighteval/mt-bench", "train")
    sample = "chat"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt | None:
        if row["category"] not in CATEGORIES:
            return None
        return Prompt(str(row["question_id"]), row["category"], tuple(row["turns"]))

"""HumanEval: Python functions to complete."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("humaneval")
class HumanEval(Dataset):
    """The signature and docstring, continued as plain text; fields `task_id`, `prompt`."""

    summary = "164 Python functions to complete from signature and docstring"
    paper = "Chen et al. 2021; SpecPipe reports its HumanEval-X extension"
    local = "humaneval/HumanEval.jsonl"
    hub = Hub("openai/openai_humaneval", "test")
    sample = "code"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        return Prompt(row["task_id"], "code", (row["prompt"],), chat=False)

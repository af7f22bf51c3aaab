"""C4: web pages to continue."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets
from specbench_kit.datasets.excerpt import opening

PROMPT_WORDS = 128


@datasets.register("c4")
class C4(Dataset):
    """The first 128 words of each page that has them; fields `text`, `timestamp`, `url`.

    The first 2,000 pages of the validation split stand for it (the whole split has 364,608).
    """

    summary = "openings of web pages, continued as plain text"
    paper = "Raffel et al. 2020; SpecExec and SpecEdge"
    local = "c4/validation.jsonl"
    hub = Hub("allenai/c4", "validation", "en", stream=2_000)
    sample = "summarisation"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt | None:
        text = opening(row["text"], PROMPT_WORDS)
        return Prompt(f"c4-{index}", "continuation", (text,), chat=False) if text else None

"""WikiText-2: encyclopaedia paragraphs to continue."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets
from specbench_kit.datasets.excerpt import opening

PROMPT_WORDS = 128


@datasets.register("wikitext-2")
class WikiText2(Dataset):
    """The first 128 words of each paragraph that has them; field `text`, one line of an article.

    Empty lines, headings and short paragraphs are left out.
    """

    summary = "openings of Wikipedia paragraphs, continued as plain text"
    paper = "Merity et al. 2017; SpecExec and SpecEdge"
    local = "text/wikitext2_test.txt"
    hub = Hub("Salesforce/wikitext", "test", "wikitext-2-raw-v1")
    sample = "summarisation"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt | None:
        text = opening(row["text"], PROMPT_WORDS)
        return Prompt(f"wikitext-2-{index}", "continuation", (text,), chat=False) if text else None

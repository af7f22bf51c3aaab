"""CNN/Daily Mail: news articles to summarise."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("cnn-dailymail")
class CnnDailyMail(Dataset):
    """An instruction and the article; fields `article`, `highlights`, `id`."""

    summary = "news articles to summarise"
    paper = "Nallapati et al. 2016; the summarization task of Spec-Bench"
    local = "cnn-dailymail/test.jsonl"
    hub = Hub("abisee/cnn_dailymail", "test", "3.0.0", stream=11_490)
    sample = "summarisation"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        request = f"Summarize this news article in a few sentences.\n\n{row['article']}"
        return Prompt(f"cnn-dailymail-{index}", "summarization", (request,))

"""OpenAssistant Conversations: first messages of people to an assistant."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("oasst")
class Oasst(Dataset):
    """Each English conversation's first message; fields `message_id`, `parent_id`, `role`, `lang`, `text`, `deleted`.

    Replies, other languages and deleted messages are left out.
    """

    summary = "opening messages of people to an assistant"
    paper = "Köpf et al. 2023; SpecExec and SpecEdge"
    local = "oasst/validation.jsonl"
    hub = Hub("OpenAssistant/oasst1", "validation")
    sample = "chat"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt | None:
        if row["parent_id"] is not None or row["lang"] != "en" or row["deleted"]:
            return None
        return Prompt(row["message_id"], "chat", (row["text"],))

"""WMT14: German sentences to translate into English."""

from typing import Any

from specbench_kit.datasets.base import Dataset, Hub, Prompt, datasets


@datasets.register("wmt14-de-en")
class Wmt14DeEn(Dataset):
    """An instruction and the German sentence; field `translation` with `de` and `en`."""

    summary = "German news sentences to translate into English"
    paper = "Bojar et al. 2014; the translation task of Spec-Bench; Leviathan et al. 2023 (English to German)"
    local = "wmt14-de-en/test.jsonl"
    hub = Hub("wmt/wmt14", "test", "de-en", stream=3_003)
    sample = "translation"

    def prompt(self, row: dict[str, Any], index: int) -> Prompt:
        request = f"Translate this German text into English.\n\n{row['translation']['de']}"
        return Prompt(f"wmt14-de-en-{index}", "translation", (request,))

"""A policy of the kit as the draft model of llama-cpp-python: `Llama(...,
draft_model=Drafts(...))`.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from specbench_kit.engines.drafter import EngineDrafter
from specbench_kit.engines.options import EngineFacts, EngineOptions
from specbench_kit.engines.rows import EngineRow, Tokens
from specbench_kit.models.catalogue import locate, read_config


class Drafts:
    """A draft model as `llama_cpp.Llama` calls it: with the whole text after every step, one
    request at a time.

    `target` is the model that `Llama` runs: its GGUF file, or a folder or hub id with the same tokenizer. `context` is
    its `n_ctx`. Options come from the environment unless they are given.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        context: int = 512,
        longest_draft: int = 8,
        options: EngineOptions | None = None,
    ) -> None:
        config = read_config(locate(str(target), "target")).get_text_config()
        eos = config.eos_token_id
        facts = EngineFacts(
            engine="llama-cpp-python",
            version=_version(),
            target=str(target),
            dtype=Path(target).stem if Path(target).suffix == ".gguf" else "",
            device="cpu",
            vocabulary=int(config.vocab_size),
            context=context,
            batch_size=1,
            longest_draft=longest_draft,
            eos_ids=frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        )
        self.drafter = EngineDrafter(facts, options or EngineOptions.from_environment(os.environ))
        self._text = np.empty(0, dtype=np.int32)
        self._drafted = 0

    def __call__(self, input_ids: Tokens, /, **_: object) -> Tokens:
        """Return the draft tokens after a text, whose last token was sampled by the target."""
        text = np.array(input_ids, dtype=np.int32)
        grown = len(text) - len(self._text)
        goes_on = 0 < grown <= self._drafted + 1 and np.array_equal(
            text[: len(self._text)], self._text
        )
        (draft,) = self.drafter.speculator.propose([EngineRow(text, grown if goes_on else 1)])
        self._text = text
        self._drafted = len(draft)
        return np.array(draft, dtype=np.intc)


def _version() -> str:
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return "unknown"

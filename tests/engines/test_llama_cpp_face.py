"""The draft model of llama-cpp-python, called as `Llama.generate` calls it: with the whole text after every step."""

from pathlib import Path

import numpy as np
import torch
from command_line import TinyPair
from tiny_models import plain_greedy, random_prompts

from specbench_kit.engines.llama_cpp import Drafts
from specbench_kit.engines.options import EngineOptions
from specbench_kit.models.catalogue import locate
from specbench_kit.models.pair import load_model
from specbench_kit.runs.directory import RunDirectory

TOKENS = 20


def test_two_answers_one_after_the_other(tiny: TinyPair, tmp_path: Path) -> None:
    """The second prompt goes on where the first answer ended, as the next turn of a dialogue does."""
    options = EngineOptions(
        method="fixed-k:k=3",
        draft=str(tiny.draft),
        out=tmp_path,
        device="cpu",
        max_new_tokens=TOKENS,
    )
    drafts = Drafts(tiny.target, context=128, options=options)
    model = load_model(locate(str(tiny.target), "target")).model
    (first,) = random_prompts([9], 256, 1)
    answers = []
    for turn in range(2):
        prompt = first if not turn else [*first, *answers[0], 40, 41, 42, 43, 44, 45]
        with torch.inference_mode():
            answer, _ = plain_greedy(model, prompt, TOKENS + 4)
        answers.append(answer[:TOKENS])
        text = [*prompt, answer[0]]
        while len(text) - len(prompt) < TOKENS:
            draft = drafts(np.array(text, dtype=np.intc)).tolist()
            assert len(draft) <= 3
            remaining = answer[len(text) - len(prompt) :]
            accepted = next(
                (i for i, (d, t) in enumerate(zip(draft, remaining, strict=False)) if d != t),
                len(draft),
            )
            text += remaining[: accepted + 1]
        drafts(np.array(text, dtype=np.intc))
    folder = drafts.drafter.close()
    assert folder is not None
    records = RunDirectory.open(folder).records()
    assert [record.output_ids for record in records] == answers
    assert RunDirectory.open(folder).run["engine"]["name"] == "llama-cpp-python"
    assert sum(line.accepted for record in records for line in record.rounds) > 0

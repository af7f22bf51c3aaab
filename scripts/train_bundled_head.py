"""Train the bundled target's feature head for some minutes, on text that it has not memorised.

    python scripts/train_bundled_head.py --data-dir DATA --out HEAD --minutes 60
    python scripts/train_bundled_head.py --data-dir DATA --out HEAD --minutes 15 --resume --answers WORK

HEAD is specbench_kit/models/bundled/head, DATA the data of train_bundled_pair.py. The texts are GSM8K's training
problems and answers with other digits, at whose tokens the target's distribution is learned; WORK may hold shards (.npz
with lengths, starts and tokens) of texts that the target has written itself from `starts` on. For any other target, use
`skit train-head`.
"""

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from train_bundled_pair import HELD_OUT, load, math_documents
from transformers import AutoTokenizer

from specbench_kit.datasets.base import Prompt
from specbench_kit.models.draft_library import RECORD
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.heads.files import load_head, save_head
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Runner
from specbench_kit.studies.training.distillation.answers import teach
from specbench_kit.studies.training.distillation.batches import batches
from specbench_kit.studies.training.distillation.options import HeadRecipe
from specbench_kit.studies.training.distillation.vocabulary import choose_tokens
from specbench_kit.studies.training.head_training import HeadLoss, HeadOptimizer, new_head

LAYERS = (2, 6, 10)
VOCABULARY = 2048
LONGEST = 320
ROUND = 280  # texts that are drawn at a time


class TrainingText(NamedTuple):
    """A prompt and the answer to learn, as token ids."""

    prompt: list[int]
    answer: list[int]


def with_other_digits(document: str, rng: random.Random) -> str:
    """Replace every number by another one, consistently."""
    other: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return other.setdefault(match[0], "".join(str(rng.randint(1, 9)) for _ in match[0]))

    return re.sub(r"\d+", number, document)


def as_text(tokenizer: Any, document: str) -> TrainingText:
    """Return the text of a problem with its answer."""
    question, answer = document.split("\nAnswer:", 1)
    prompt, said = tokenizer([f"{question}\nAnswer:", answer], add_special_tokens=False)[
        "input_ids"
    ]
    return TrainingText(prompt, said)


def answered(folder: Path) -> Iterator[TrainingText]:
    """Yield the texts of all shards in a folder."""
    for path in sorted(folder.glob("*.npz")):
        arrays = dict(np.load(path))
        parts = np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
        for tokens, start in zip(parts, arrays["starts"].tolist(), strict=True):
            yield TrainingText(tokens[:start].tolist(), tokens[start:].tolist())


def draw(
    documents: list[str], said: list[TrainingText], tokenizer: Any, rng: random.Random
) -> list[TrainingText]:
    """Return the texts of one round, most of them the target's own if there are any."""
    fresh = ROUND // 5 if said else ROUND
    chosen = [
        as_text(tokenizer, with_other_digits(problem, rng))
        for problem in rng.sample(documents, fresh)
    ]
    chosen += rng.sample(said, min(len(said), ROUND - fresh))
    return [
        text
        for text in chosen
        if text.answer[2:] and len(text.prompt) + len(text.answer) <= LONGEST
    ]


def remember(folder: Path, documents: list[str]) -> None:
    """Store the hashes of the problems behind the texts, so that benchmarks can leave them out."""
    questions = (
        document.split("Question: ", 1)[1].split("\nAnswer:", 1)[0] for document in documents
    )
    prompts = [Prompt("", "", (question,)).fingerprint for question in questions]
    record = {
        "dataset": {"name": "gsm8k", "part": "train", "count": len(prompts)},
        "prompts": prompts,
    }
    (folder / RECORD).write_text(json.dumps(record) + "\n")


def fit_for(
    minutes: float,
    head: HeadModel,
    target: Any,
    rounds: Iterator[list[TrainingText]],
    recipe: HeadRecipe,
    lr: float,
) -> None:
    """Train until the time is up, with a learning rate that falls to zero."""
    optimizer, rng, started_s = HeadOptimizer(head, lr), random.Random(0), time.monotonic()
    loss, runner = (
        HeadLoss(head, recipe, target.config.vocab_size),
        Runner(make_executor(target, 1, LONGEST, None)),
    )
    head.train()
    for number, batch in enumerate(
        batch
        for texts in rounds
        for batch in batches(
            [
                teach(runner, index, text.prompt, text.answer, LAYERS)
                for index, text in enumerate(texts)
            ],
            recipe.tokens_per_batch,
            rng,
        )
    ):
        spent = (time.monotonic() - started_s) / 60 / minutes
        if spent >= 1:
            break
        report = loss(batch)
        report.loss.backward()
        optimizer.step(min(1.0, (number + 1) / 12, max(0.02, 1 - spent)))
        if number % 20 == 0:
            print(number, f"{spent:.3f}", *(f"{rate:.3f}" for rate in report.hit_rates), flush=True)
    head.eval()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--answers", type=Path, help="shards of the target's own answers")
    parser.add_argument("--resume", action="store_true", help="go on from the head in --out")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    folder = Path(__file__).parents[1] / "specbench_kit/models/bundled/target"
    tokenizer, target = (
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
        load(folder).eval(),
    )
    target.requires_grad_(False)
    documents = math_documents(args.data_dir)[:-HELD_OUT]
    said = list(answered(args.answers)) if args.answers else []
    if args.resume:
        head = load_head(args.out, target).requires_grad_(True)
        head.embed_tokens.requires_grad_(False)
    else:
        texts, total = (
            [as_text(tokenizer, document) for document in documents],
            target.config.vocab_size,
        )
        tokens = choose_tokens(
            Counter(token for text in texts for token in text.answer), VOCABULARY, total
        )
        head = new_head(target, tokens, args.seed, LAYERS, "bundled/target")
    rounds = (draw(documents, said, tokenizer, rng) for _ in iter(int, 1))
    fit_for(args.minutes, head, target, rounds, HeadRecipe(), args.lr)
    save_head(head, args.out)
    remember(args.out, documents)


if __name__ == "__main__":
    main()

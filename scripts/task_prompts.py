"""Draw the same number of prompts of every task for the reference reports, as a prompt file.

    python scripts/task_prompts.py --data-dir DATA --each 2 --out tasks.jsonl

The tasks are those of Spec-Bench (dialogues, translation, summaries, questions, mathematics, retrieval), and code from
HumanEval.
"""

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path

from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.loading import load as load_dataset

DATASETS = ("spec-bench", "humaneval")


def draw(prompts: list[Prompt], each: int, seed: int) -> list[Prompt]:
    """Return `each` prompts of every category, in the order of the categories' names."""
    by_category = defaultdict(list)
    for prompt in prompts:
        by_category[prompt.category].append(prompt)
    rng = random.Random(seed)
    return [
        prompt
        for category in sorted(by_category)
        for prompt in rng.sample(by_category[category], each)
    ]


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, help="folder with local datasets; the default is $SKIT_DATA_DIR"
    )
    parser.add_argument("--each", type=int, default=2, help="prompts of each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    prompts: list[Prompt] = []
    for name in DATASETS:
        loaded = load_dataset(
            name, data_dir=arguments.data_dir, allow_sample=False, limit=None, seed=0
        )
        prompts += loaded.prompts
    chosen = draw(prompts, arguments.each, arguments.seed)
    rows = [
        {"id": prompt.id, "category": prompt.category, "turns": list(prompt.turns)}
        for prompt in chosen
    ]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

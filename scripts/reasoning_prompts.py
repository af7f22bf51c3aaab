"""Write the prompts of the long trace: questions that want thinking, of six kinds, in turn.

    python scripts/reasoning_prompts.py --out build/pair/reasoning.jsonl

Each asks for a thinking part between <think> and </think>, since the pair's target has no such mode of its own, and
then for an answer.
"""

import argparse
import json
import tomllib
from pathlib import Path

HOW = (
    "Reply in two parts. The first part stands between <think> and </think>. In it you think aloud in ten "
    "numbered paragraphs of several sentences each: 1 the problem in your own words, 2 what is known, 3 what is "
    "asked, 4 a first way to solve it, 5 this way carried out in detail, 6 its result checked, 7 a second way, 8 "
    "the second way carried out in detail, 9 both results compared, 10 what could be wrong. After </think> comes "
    "the second part: the complete answer for a reader who has not seen the first part, in at least five "
    "paragraphs."
)
"""What is asked of every answer: of several ways to ask, the one after which the pair's target thinks most often."""


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines file to write")
    out: Path = arguments.parse_args().out
    questions: dict[str, list[str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    lines = [
        {"id": f"{kind}/{number}", "category": kind, "turns": [f"{question}\n\n{HOW}"]}
        for number, in_turn in enumerate(zip(*questions.values(), strict=True), 1)
        for kind, question in zip(questions, in_turn, strict=True)
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()

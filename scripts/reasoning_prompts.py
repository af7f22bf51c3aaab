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
    "Begin your reply with <think> and think there at length: restate the problem, list what is known, work "
    "through every case step by step with all arithmetic written out, try a second method, compare the two, look "
    "for mistakes and correct them. Only when you are sure, close that part with </think>. After it write the "
    "answer in full: at least 500 words that explain every step to someone who has not read your thoughts."
)
"""What is asked of every answer."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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

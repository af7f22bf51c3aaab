"""Write the prompts whose answers the head bundled for the known pair has learned from.

    python scripts/head_prompts.py chat --target qwen2.5-coder --out chat.jsonl
    python scripts/head_prompts.py all --data-dir DATA --code-alpaca new_codealpaca.json --mbpp mbpp.jsonl \
        --seed-tasks seed_tasks.jsonl --chat chat.jsonl --out prompts.jsonl
    skit train-head --target qwen2.5-coder --dataset prompts.jsonl --limit 7064

DATA holds GSM8K and Spec-Bench, HumanEval and WikiText-2's validation part; Code Alpaca, MBPP and the seed tasks of
Alpaca are files of their authors' repositories. Questions of people who chat are written by the target itself, given
what kind of person asks about what. Nothing of HumanEval, Spec-Bench, GSM8K's test part or the kit's own prompts is
taken.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

TASKS = """asks for advice;asks a factual question;asks for an explanation in simple words;asks for a short story
asks for an e-mail to be written;asks for a comparison of two things;asks for a list of ideas;asks for a plan
asks for the pros and cons of something;asks for a definition with an example;asks to play a role
asks for a recipe or instructions;asks for a poem;asks for an opinion with reasons;asks for facts to be put into a table
asks to pull data out of a short text given in the message as JSON;asks to classify a short text given in the message
asks a riddle or a question of logic;asks for a speech or an announcement
asks a follow-up question about something the assistant got wrong"""
TOPICS = """cooking;travel;gardening;history;physics;biology;chemistry;health;sports;music;films;books;painting
philosophy;economics;personal finance;law;schools;languages;family;work;job interviews;marketing;start-ups;city life
the sea;mountains;weather;space;animals;plants;cars;trains;bicycles;houses;clothes;computers;the internet;phones;games
mathematics;statistics;geography;politics;religion;festivals;friendship;sleep;exercise;food;tea and coffee;photography
architecture;inventions;energy;climate;farming;medicine;psychology;writing"""
MATHS = (
    """Solve step by step: ;Answer with a short calculation. ;;Explain how to solve this to a child. """
    + (";Write a Python function that computes the answer to this: ")
)
STYLES = ("", "In Python: ", "Write Python code with type hints and a docstring. ")
EDITS = """Add type hints and a docstring to this function:
Rename the variables of this code so that they say what they hold:
Rewrite this function so that it is shorter:;Find mistakes in this code and correct them:
Translate this code into JavaScript:;Translate this code into Java:;Write unit tests for this function:
Explain line by line what this code does:;Add error handling to this code:"""
SUMMARIES = """Summarise in one sentence:;Summarise the following text in two sentences.
Give a title and three bullet points for this text:;What is this text about? Answer briefly."""
REWRITINGS = """List all names and dates in this text as JSON:;Write three questions about this text, with answers:
Rewrite this text in simple words:;Correct grammar and style of this text, and return the whole text:
Rewrite this text as an e-mail to a friend:;Put the facts of this text into a Markdown table:
Rewrite this text in the present tense:"""
TRANSLATIONS = (
    "Translate into {}: ",
    "How do you say this in {}? ",
    "Please translate this sentence to {}.\n\n",
)
LANGUAGES = (
    *("German", "French", "Spanish", "Italian"),
    *("Chinese", "Portuguese", "Dutch", "Japanese"),
)
NONE = ("", "n/a", "none")
CHATS = 1200
CHAT_TOKENS = 56


def listed(text: str) -> list[str]:
    """Return the items of a text, divided by semicolons and line ends."""
    return re.split(r"[;\n]", text)


def lines_of(path: Path) -> list[dict[str, object]]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


class Prompts:
    """The prompts drawn so far, by kind."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.drawn: list[tuple[str, str]] = []

    def add(self, kind: str, text: str) -> None:
        """Add a prompt of a kind."""
        self.drawn.append((kind, text.strip()))

    def shuffled(self, items: list[str]) -> list[str]:
        """Return the items in an order of this seed."""
        self.random.shuffle(items)
        return items


def add_maths(prompts: Prompts, data: Path) -> None:
    """Add training problems of GSM8K, most of them as they are."""
    problems = prompts.shuffled(
        [str(line["question"]) for line in lines_of(data / "gsm8k/train.jsonl")]
    )
    for problem in problems[:900]:
        prompts.add("maths", problem)
    wordings = MATHS.split(";")
    for problem in problems[900:1500]:
        prompts.add("maths", prompts.random.choice(wordings) + problem)


def add_code(prompts: Prompts, code_alpaca: Path, mbpp: Path) -> None:
    """Add instructions of Code Alpaca, tasks of MBPP, and edits of MBPP's solutions."""
    instructions = json.loads(code_alpaca.read_text())
    prompts.random.shuffle(instructions)
    taken = 0
    for entry in instructions:
        given = str(entry.get("input") or "").strip()
        text = entry["instruction"].strip() + ("\n\n" + given if given.lower() not in NONE else "")
        if taken < 1700 and 20 < len(text) < 900:
            prompts.add("code", text)
            taken += 1
    tasks = lines_of(mbpp)
    prompts.random.shuffle(tasks)
    for task in tasks[:500]:
        tests: Sequence[str] = task["test_list"]  # type: ignore[assignment]
        text = f"{prompts.random.choice(STYLES)}{task['text']}"
        checks = ["", *(f" Your code should pass this test: {test}" for test in tests[:1])]
        text += prompts.random.choice(checks)
        prompts.add("code", text)
    for task in tasks[500:] + prompts.random.sample(tasks[:500], 250):
        code = str(task["code"]).replace("\r\n", "\n").replace("\t", "    ")
        if len(code) < 900:
            ask = prompts.random.choice(listed(EDITS))
            prompts.add("editing", f"{ask}\n\n```python\n{code.strip()}\n```")


def paragraphs(text: Path) -> list[str]:
    """Return WikiText-2's paragraphs as people write them; unknown words become a name."""
    whole: list[str] = []
    named: list[str] = []
    for line in text.read_text().splitlines():
        clean = readable(line)
        if clean and not clean.startswith("="):
            (named if "<unk>" in clean else whole).append(clean)
    return [*whole, *(line.replace("<unk>", "Marlow") for line in named)]


def readable(line: str) -> str:
    """Return a line without the spaces that WikiText-2 puts around punctuation."""
    for spaced, plain in (
        *((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), (" 's", "'s")),
        *(("( ", "("), (" )", ")"), (" n't", "n't")),
    ):
        line = line.replace(spaced, plain)
    line = re.sub(r" ([,.;:?!])", r"\1", line)
    return re.sub(r'" ([^"]*?) "', r'"\1"', line).strip()


def add_texts(prompts: Prompts, data: Path) -> None:
    """Add summaries, rewritings and translations of pieces of WikiText-2."""
    pieces: list[str] = []
    sentences: list[str] = []
    for paragraph in paragraphs(data / "text/wikitext2_valid.txt"):
        parts = re.split(r"(?<=[.?!]) (?=[A-Z\"])", paragraph)
        sentences += [part for part in parts if 40 < len(part) < 220]
        joined = [" ".join(parts[first : first + 5]) for first in range(0, len(parts), 5)]
        pieces += [piece for piece in joined if 250 < len(piece) < 900]
    prompts.shuffled(pieces)
    prompts.shuffled(sentences)
    for piece in pieces[:450]:
        prompts.add("summary", f"{prompts.random.choice(listed(SUMMARIES))}\n\n{piece}")
    for piece in pieces[450:950]:
        prompts.add("rewriting", f"{prompts.random.choice(listed(REWRITINGS))}\n\n{piece}")
    for sentence in sentences[:500]:
        ask = prompts.random.choice(TRANSLATIONS).format(prompts.random.choice(LANGUAGES))
        more = prompts.random.choice([1, 1, 2]) - 1
        others = [prompts.random.choice(sentences) for _ in range(more)]
        prompts.add("translation", ask + " ".join([sentence, *others]))


def add_chat(prompts: Prompts, seed_tasks: Path, chat: Path) -> None:
    """Add Alpaca's seed tasks and the questions that the target wrote."""
    for task in lines_of(seed_tasks):
        given = str(task["instances"][0]["input"])  # type: ignore[index]
        if len(given) < 800:
            prompts.add("chat", f"{task['instruction']}" + (f"\n\n{given}" if given else ""))
    for line in lines_of(chat):
        prompts.add("chat", str(line["text"]))


def evaluated(data: Path) -> set[str]:
    """Return the prompts of evaluation sets, of which nothing is kept."""
    turns = {
        str(turn).strip()
        for line in lines_of(data / "spec_bench/question.jsonl")
        for turn in line["turns"]  # type: ignore[attr-defined]
    }
    tests = {str(line["question"]).strip() for line in lines_of(data / "gsm8k/test.jsonl")}
    code = {str(line["prompt"]).strip() for line in lines_of(data / "humaneval/HumanEval.jsonl")}
    return turns | tests | code


def kept(drawn: Sequence[tuple[str, str]], foreign: set[str]) -> list[tuple[str, str]]:
    """Return each prompt once, without those that hold one of an evaluation set or its beginning."""
    beginnings = [text[:60] for text in foreign if len(text) > 60]
    seen: set[str] = set()
    fresh: list[tuple[str, str]] = []
    for kind, text in drawn:
        if text not in seen | foreign and not any(start in text for start in beginnings):
            seen.add(text)
            fresh.append((kind, text))
    return fresh


def write_all(args: argparse.Namespace) -> None:
    """Draw all prompts and write them in random order."""
    prompts = Prompts(3)
    add_maths(prompts, args.data_dir)
    add_code(prompts, args.code_alpaca, args.mbpp)
    add_texts(prompts, args.data_dir)
    add_chat(prompts, args.seed_tasks, args.chat)
    chosen = kept(prompts.drawn, evaluated(args.data_dir))
    prompts.random.shuffle(chosen)
    with args.out.open("w") as file:
        for number, (kind, text) in enumerate(chosen):
            line = {"id": f"{kind}-{number}", "category": kind, "prompt": text}
            file.write(json.dumps(line) + "\n")
    print(f"{args.out}: {len(chosen):,} prompts; {dict(Counter(kind for kind, _ in chosen))}")


def write_chat(args: argparse.Namespace) -> None:
    """Let the target write what people ask it."""
    from specbench_kit.datasets.base import Prompt
    from specbench_kit.models.executors.base import make_executor
    from specbench_kit.models.pair import load_pair
    from specbench_kit.models.runner import Runner
    from specbench_kit.studies.conversations import Conversation
    from specbench_kit.studies.training.distillation.answers import AnswerGenerator

    choose = random.Random(7)
    pair = load_pair(args.target, None)
    asks = [
        f"<|im_start|>system\nA person {choose.choice(listed(TASKS))}; the subject is "
        f"{choose.choice(listed(TOPICS))}.<|im_end|>\n<|im_start|>user\n"
        for _ in range(CHATS)
    ]
    talks = [
        Conversation(
            Prompt(id=str(number), category="chat", chat=False, turns=(ask,)),
            pair.tokenizer,
            CHAT_TOKENS,
        )
        for number, ask in enumerate(asks)
    ]
    runner = Runner(make_executor(pair.target.shell, 32, 200, pair.vocabulary))
    decode: Callable[[Sequence[int]], str] = pair.tokenizer.decode
    generator = AnswerGenerator(runner, (), pair.eos_ids, decode, 1.0, 11)
    with args.out.open("w") as file:
        for answer in generator.answer(enumerate(talks), float("inf")):
            text = pair.tokenizer.decode(answer.output, skip_special_tokens=True).strip()
            if answer.output[-1] not in pair.eos_ids:  # it was cut: whole sentences are kept
                text = text[: max(text.rfind(end) for end in ".?!") + 1]
            if len(text) > 15:
                file.write(json.dumps({"text": text}) + "\n")


def main() -> None:
    """Read the command line and write one of the two files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    chat = commands.add_parser("chat", help="questions that the target writes")
    chat.add_argument("--target", default="qwen2.5-coder")
    chat.add_argument("--out", type=Path, required=True)
    chat.set_defaults(run=write_chat)
    everything = commands.add_parser("all", help="the prompts of all kinds")
    for name in ("data-dir", "code-alpaca", "mbpp", "seed-tasks", "chat", "out"):
        everything.add_argument(f"--{name}", type=Path, required=True)
    everything.set_defaults(run=write_all)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

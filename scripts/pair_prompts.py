"""Draw the prompts on which a named pair's trace is recorded: eight tasks, one half to tune on and one to report on.

    python scripts/pair_prompts.py --data-dir DATA --each 15 --out build/pair

DATA holds spec_bench/question.jsonl, gsm8k/test.jsonl, humaneval/HumanEval.jsonl and WikiText-2 in text/. Chat of two
turns, summaries, questions about passages and translations are Spec-Bench's, mathematics is GSM8K's, code HumanEval's.
Edits are made of other HumanEval solutions and of paragraphs of WikiText-2; structured output is asked for by the
requests and tools below. `eight-tasks-tune.jsonl` and `eight-tasks-report.jsonl` share no prompt, and every task comes
in turn, so that the beginning of either file holds all tasks in equal shares.
"""

import argparse
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.loading import load as load_dataset

SHORT = 3500
"""The most characters of a prompt: an article of 6,000 takes a CPU longer to read than its summary to write."""
CHAT = "chat of two turns"
SUMMARY = "summary"
PASSAGES = "questions about passages"
MATHS = "mathematics"
CODE = "code"
TRANSLATION = "translation"
EDITING = "editing"
STRUCTURED = "structured output"
SPEC_BENCH = {
    "multi_turn": CHAT,
    "summarization": SUMMARY,
    "rag": PASSAGES,
    "translation": TRANSLATION,
}
CODE_EDITS = (
    "Rename the function {name} to solve and return the whole program.",
    "Add a comment above every statement and return the whole function.",
    "Add type hints to all local variables and return the whole function.",
    "Move the body of the function into a class named Solver with a method run, and return the whole class.",
    "Make the function raise ValueError if its first argument is None, and return the whole function.",
)
TEXT_EDITS = (
    "Correct the mistakes in this text and change nothing else:",
    "Put this text into the present tense and change nothing else:",
    "Replace every number in this text by words and change nothing else:",
    "Split the long sentences of this text, and keep its words:",
    "Make this text British in its spelling, and keep everything else:",
)
TOOLS = (
    ("get_weather", "city: string, date: string, unit: celsius or fahrenheit"),
    (
        "search_flights",
        "origin: string, destination: string, date: string, passengers: integer, cabin: string",
    ),
    (
        "create_event",
        "title: string, start: string, end: string, attendees: list of strings, location: string",
    ),
    ("send_email", "to: list of strings, subject: string, body: string"),
    (
        "query_database",
        "table: string, columns: list of strings, filters: list of {column, operator, value}",
    ),
    ("convert_currency", "amount: number, source: string, target: string"),
    ("set_reminder", "text: string, time: string, repeat: none, daily or weekly"),
    ("play_music", "artist: string, album: string, shuffle: boolean"),
)
REQUESTS = """What will the weather be in Oslo and in Bergen tomorrow, in celsius?
Find me a flight from Berlin to Lisbon on 3 May for two people, economy.
Plan a meeting with ana@example.org and li@example.org on Monday from 10 to 11 in room 4 about the budget.
Tell sam@example.org by email that the report will be two days late, and say sorry.
Which customers in Spain have spent more than 500 euros since January?
How much are 250 US dollars in yen, and how much are 80 pounds in euros?
Remind me every day at 7 in the morning to water the plants.
Play the album Kind of Blue by Miles Davis, in its order.
If it rains in Paris on Saturday, remind me on Friday evening to take an umbrella.
I fly from Rome to Oslo on 12 June and come back on the 20th. Find both flights for one person, business.
Book two hours with the design team, tom@example.org and eve@example.org, on Friday after lunch.
List the names and prices of all products that are out of stock.
Write to the whole team, team@example.org, that the office is closed on 1 May.
What do 1,200 Swiss francs come to in Canadian dollars?
Shuffle songs by Nina Simone, and remind me in an hour to stop."""
EXTRACTIONS = (
    'Return the people, places and dates of this text as JSON with the keys "people", "places" and "dates".',
    'Return a JSON object with the keys "title", "summary" and "keywords" (a list of five) for this text.',
    "Return a JSON list with one object for each sentence of this text, with the keys subject, verb and object.",
)
Row = dict[str, object]


def _row(task: str, identity: str, turns: Iterable[str | Sequence[Mapping[str, str]]]) -> Row:
    return {"id": f"{task}/{identity}", "category": task, "turns": list(turns)}


def _of_datasets(folder: Path) -> dict[str, list[Row]]:
    """Return the prompts of the tasks that public datasets hold."""
    rows: dict[str, list[Row]] = {task: [] for task in (*SPEC_BENCH.values(), MATHS, CODE)}
    tasks: dict[str, Mapping[str, str] | str] = {
        "spec-bench": SPEC_BENCH,
        "gsm8k": MATHS,
        "humaneval": CODE,
    }
    for name, named in tasks.items():
        for prompt in load_dataset(
            name, data_dir=folder, allow_sample=False, limit=None, seed=0
        ).prompts:
            task = named if isinstance(named, str) else named.get(prompt.category)
            if task is not None and _characters(prompt) <= SHORT:
                rows[task].append(_row(task, prompt.id, prompt.turns))
    return rows


def _characters(prompt: Prompt) -> int:
    return sum(len(turn) if isinstance(turn, str) else len(str(turn)) for turn in prompt.turns)


def _edits(folder: Path, paragraphs: list[str], rng: random.Random) -> list[Row]:
    """Return requests to change a program or a text and to return the whole of it."""
    lines = (folder / "humaneval/HumanEval.jsonl").read_text().splitlines()
    programs = [json.loads(line) for line in lines]
    rows = list[Row]()
    for number, (program, paragraph) in enumerate(
        zip(rng.sample(programs, 40), paragraphs, strict=False)
    ):
        edit = CODE_EDITS[number % len(CODE_EDITS)].format(name=program["entry_point"])
        code = f"{program['prompt'].strip()}\n{program['canonical_solution'].rstrip()}"
        rows.append(_row(EDITING, program["task_id"], [f"{edit}\n\n```python\n{code}\n```"]))
        rows.append(
            _row(
                EDITING,
                f"text-{number}",
                [f"{TEXT_EDITS[number % len(TEXT_EDITS)]}\n\n{paragraph}"],
            )
        )
    return rows


def _structured(paragraphs: list[str]) -> list[Row]:
    """Return requests that are to be answered by JSON: calls of tools, and what a text says."""
    tools = "\n".join(f"- {name}({fields})" for name, fields in TOOLS)
    calls = [
        f"You can call these tools:\n{tools}\n\nAnswer only with a JSON list of calls, each with the keys "
        f'"tool" and "arguments".\n\nRequest: {request}'
        for request in REQUESTS.splitlines()
    ]
    texts = [
        f"{EXTRACTIONS[number % len(EXTRACTIONS)]}\n\n{text}"
        for number, text in enumerate(paragraphs)
    ]
    return [
        *(_row(STRUCTURED, f"call-{number}", [text]) for number, text in enumerate(calls)),
        *(_row(STRUCTURED, f"text-{number}", [text]) for number, text in enumerate(texts)),
    ]


def _paragraphs(folder: Path) -> list[str]:
    """Return paragraphs of WikiText-2, without its marks for tokens."""
    paragraphs = list[str]()
    lines = chain.from_iterable(
        (folder / f"text/wikitext2_{name}.txt").read_text().splitlines()
        for name in ("valid", "test")
    )
    for line in lines:
        text = line.strip()
        for mark, plain in (
            (" @-@ ", "-"),
            (" @,@ ", ","),
            (" @.@ ", "."),
            (" ,", ","),
            (" .", "."),
            (" 's", "'s"),
        ):
            text = text.replace(mark, plain)
        if 300 <= len(text) <= 900 and "<unk>" not in text and not text.startswith("="):
            paragraphs.append(text)
    return paragraphs


def main() -> None:
    """Read the command line and write the two files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data-dir", type=Path, required=True, help="folder with the data named above"
    )
    parser.add_argument("--each", type=int, default=15, help="prompts of each task in either file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for the two files")
    arguments = parser.parse_args()
    rng, paragraphs = random.Random(arguments.seed), _paragraphs(arguments.data_dir)
    rng.shuffle(paragraphs)
    rows = _of_datasets(arguments.data_dir)
    rows[STRUCTURED] = _structured(paragraphs[-25:])
    rows[EDITING] = _edits(arguments.data_dir, paragraphs[:-25], rng)
    edited = {str(row["id"]).removeprefix(EDITING) for row in rows[EDITING]}
    rows[CODE] = [row for row in rows[CODE] if str(row["id"]).removeprefix(CODE) not in edited]
    each = arguments.each
    drawn = {task: rng.sample(rows[task], 2 * each) for task in sorted(rows)}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, part in (("report", slice(each)), ("tune", slice(each, None))):
        lines = [
            json.dumps(row) + "\n"
            for row in chain(*zip(*(drawn[task][part] for task in drawn), strict=True))
        ]
        (arguments.out / f"eight-tasks-{name}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main()

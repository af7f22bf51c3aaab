"""Write training prompts of many kinds for a chat model: the prompts behind the drafts that are bundled for SmolLM2.

    python scripts/mixed_prompts.py --data-dir DATA --count 24000 --out prompts.jsonl
    skit train-head --target smollm2 --dataset prompts.jsonl --minutes 60

DATA holds gsm8k/train.jsonl and text/wikitext2_valid.txt and _test.txt. Nothing is taken from an evaluation set. The
prompts are drawn from templates below, from GSM8K's training problems and from paragraphs of WikiText-2.
"""

import argparse
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TOPICS = """coffee;gardening;climate change;the stock market;cooking pasta;remote work;machine learning;bicycles
the moon;black holes;photosynthesis;DNA;inflation;a balanced diet;sleep;public speaking;leadership
the French Revolution;Rome;democracy;vaccines;volcanoes;dogs;cats;chess;football;jazz;painting;poetry;electric cars
solar power;nuclear energy;the internet;privacy;social media;job interviews;time management;stress;yoga
a trip to Japan;a trip to Italy;New York;the Amazon rainforest;the ocean;earthquakes;evolution;gravity
quantum mechanics;the speed of light;atoms;antibiotics;the human heart;the brain;blockchain;databases
sorting algorithms;recursion;Python;linked lists;operating systems;web servers;supply and demand;start-ups
a household budget;taxes;insurance;education;homework;friendship;honesty;courage;winter;a lighthouse keeper
a detective in a small town;a robot that learns to paint;a dragon who is afraid of fire;baking bread;camping
photography;learning a language;saving money;recycling;space travel;bees;rivers;the printing press
the Great Wall of China;the Olympic Games;healthy breakfasts;running a marathon;a birthday party;moving to a new city
teamwork;negotiation;customer service;a product launch;a new phone;running shoes;a mystery novel
a film about time travel;the water cycle;magnets;electricity;probability;prime numbers;triangles;fractions
the periodic table;acids;bacteria
"""
ASKS = """Tell me about {}.;What is the most important thing to know about {}?;Write a short story about {}.
Explain {} to a child.;Give me five ideas about {}.;What are the advantages and disadvantages of {}?
Write an email to a colleague about {}.;How do I get started with {}?;Write a poem about {}.;Why does {} matter?
Write a short blog post about {}.;What do people often get wrong about {}?;List ten facts about {}.
You are an expert on {}. What would you tell a beginner?;Describe the history of {}.
Draft an outline for a talk on {}.;Write a dialogue between two friends about {}.
Write a persuasive paragraph about {}.;Give me a quiz about {}.;Act as a travel guide and talk about {}.
Make a table of pros and cons of {}.;How would you teach {} in one lesson?
Pretend that you are a character who loves {}. Introduce yourself.;Write a review of a book about {}.
What questions should I ask about {}?;Compare {} with {}.;How are {} and {} connected?;Write a headline about {}.
"""
FOLLOW_UPS = r"""Make it shorter.;Can you give an example?;Rewrite it for a ten-year-old.;Now write it as a list.
What is the weakest point of your answer?;Add a title and a conclusion.;Explain the second point in more detail.
Say the same in a formal tone.;How would you check this?;Now answer as a pirate would.;Why?;What should I do next?
"""
TASKS = """reverses a string;computes the n-th Fibonacci number;finds the largest number in a list
checks if a word is a palindrome;counts the words in a text file;checks whether a number is prime
sorts a list with quicksort;merges two sorted lists;removes duplicates from a list
reads a CSV file and prints the mean of a column;validates an email address;finds the longest common substring
computes a factorial;finds the median of two lists;rotates a matrix;converts Celsius to Fahrenheit
generates all permutations;implements a stack;implements a binary search tree;counts the vowels in a string
computes the greatest common divisor;reads JSON and prints it;finds the k most frequent words;flattens a nested list
checks balanced brackets;sums the even numbers;draws a triangle of stars;simulates a dice game;downloads a web page
finds all anagrams of a word;converts Roman numerals;multiplies two matrices;counts lines of code
stores contacts in a dictionary;groups words by their first letter;computes compound interest
plays rock, paper, scissors
"""
CODE_ASKS = r"""Write a {language} function that {task}.
Write a {language} program that {task} and explain how it works.;How can I write {language} code that {task}?
Complete this {language} function.\n\n{stub};Write tests for code that {task}.
Is there a faster way in {language} to write code that {task}?
"""
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "C++", "Java")
QUESTIONS = """who wrote {}?;when was {} founded?;where is {} located?;who is {}?;what does {} mean?
when did {} start?;who plays {} in the film?;how many people live in {}?;what is {} known for?
what is the difference between {} and {}?;what year did {} end?;who invented {}?;is {} still important today?
what is the capital of {}?
"""
SUMMARY_ASKS = r"""Summarize the following text.\n\n{};Summarise this article in two sentences:\n{};{}\n\nTL;DR:
Summarize: {};Give this text a title and a short summary.\n\n{};List the main points of this text:\n\n{}
"""
TEXT_ASKS = r"""{text}\n\nQuestion: what does the text say about {word}?
Read the passage and answer. {text}\n\nWho or what is {word}?
Answer with the help of these passages.\n\n[1] {text}\n\n[2] {other}\n\nQuestion: what is known about {word}?
Extract all names, places and dates from this text.\n\n{text};Correct the mistakes in this text:\n{text}
Rewrite this text in simpler words.\n\n{text};What is this text about, and who would read it?\n\n{text}
"""
SUBJECTS = """Der Hund;Die Regierung;Das Unternehmen;Eine junge Frau;Mein Bruder;Die Polizei;Der Verein;Die Schule
Ein Sprecher;Die Stadt;Das Museum;Der Minister;Viele Menschen;Die Ärztin;Unser Nachbar;Die Mannschaft;Ein Zeuge
Der Präsident
"""
PREDICATES = """hat am Montag einen neuen Plan vorgestellt;wird im nächsten Jahr nach Berlin ziehen
konnte die Frage nicht beantworten;will mehr Geld für Schulen ausgeben;hat gestern ein altes Haus gekauft
sucht seit drei Wochen nach einer Lösung;sagte, dass die Zahl der Unfälle gesunken ist;wartet noch auf eine Antwort
muss sich an die neuen Regeln halten;hat in den letzten Jahren viel gelernt;arbeitet mit Partnern aus Europa zusammen
wurde bei einem Unfall leicht verletzt;freut sich über den Erfolg;hat das Spiel in der letzten Minute verloren
"""
ENDINGS = """und das ist gut so;aber niemand weiß, warum;weil es zu teuer war;obwohl es stark geregnet hat
was viele überrascht hat;bevor der Winter kommt;wie die Zeitung berichtet;und die Kosten steigen weiter
"""


def phrases(text: str) -> list[str]:
    """Return the phrases of a table above, which are separated by semicolons (but for that of TL;DR) and line ends."""
    return [phrase.replace("\\n", "\n") for phrase in re.split(r";(?!DR)|\n", text) if phrase]


@dataclass(frozen=True)
class Sources:
    """The texts that prompts are made of."""

    problems: list[str]
    paragraphs: list[str]
    names: list[str]

    @classmethod
    def read(cls, folder: Path) -> "Sources":
        problems = [
            json.loads(line)["question"]
            for line in (folder / "gsm8k/train.jsonl").read_text().splitlines()
        ]
        lines = [
            _plain(line)
            for name in ("valid", "test")
            for line in (folder / f"text/wikitext2_{name}.txt").read_text().splitlines()
        ]
        paragraphs = [line for line in lines if len(line) > 300]
        names = {
            word.strip(".,'")
            for text in paragraphs
            for word in text.split()[1:]
            if word.istitle() and len(word) > 4
        }
        return cls(problems, paragraphs, sorted(names))


def _plain(line: str) -> str:
    """Return a line of WikiText without its marks for tokens, and with unknown words as `it`."""
    for mark, text in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), ("<unk>", "it")):
        line = line.replace(mark, text)
    return re.sub(r" ([,.;:!?)'])", r"\1", line).replace("( ", "(").strip()


def turns(sources: Sources, rng: random.Random) -> tuple[str, tuple[str, ...]]:
    """Return the kind and the turns of one prompt."""

    def pick(table: str) -> str:
        return rng.choice(phrases(table))

    def subject() -> str:
        return rng.choice(sources.names) if rng.random() < 0.4 else pick(TOPICS)

    def fill(template: str) -> str:
        return template.format(*(subject() for _ in range(template.count("{}"))))

    def paragraph(shortest: int, longest: int) -> str:
        text = rng.choice(sources.paragraphs)
        return text[: rng.randint(shortest, longest)].rsplit(" ", 1)[0]

    def about_a_text() -> str:
        text = paragraph(300, 1000)
        word = rng.choice([word.strip(",.") for word in text.split() if len(word) > 3])
        return pick(TEXT_ASKS).format(text=text, word=word, other=paragraph(200, 600))

    def code() -> str:
        task, language = pick(TASKS), rng.choice(LANGUAGES)
        stub = (
            f'def {"_".join(task.split()[:3])}(values):\n    """Return what {task}."""\n'.replace(
                ",", ""
            )
        )
        return pick(CODE_ASKS).format(language=language, task=task, stub=stub)

    def translation() -> str:
        if rng.random() < 0.6:
            sentence = f"{pick(SUBJECTS)} {pick(PREDICATES)}" + (
                f", {pick(ENDINGS)}" if rng.random() < 0.7 else ""
            )
            return (
                rng.choice(("Translate German to English: ", "Translate into English: "))
                + sentence
                + "."
            )
        sentences = [s for s in paragraph(300, 1000).split(". ") if 40 < len(s) < 200] or [
            "The river is very long"
        ]
        return (
            f"Translate to {rng.choice(('German', 'French', 'Spanish'))}: {rng.choice(sentences)}."
        )

    kinds: dict[str, tuple[float, Callable[[], str]]] = {
        "maths": (0.17, lambda: rng.choice(sources.problems)),
        "summary": (0.13, lambda: pick(SUMMARY_ASKS).format(paragraph(300, 1400))),
        "text": (0.14, about_a_text),
        "translation": (0.10, translation),
        "question": (0.11, lambda: fill(pick(QUESTIONS))),
        "code": (0.11, code),
        "chat": (0.24, lambda: fill(pick(ASKS))),
    }
    kind = rng.choices(list(kinds), [share for share, _ in kinds.values()])[0]
    first = kinds[kind][1]()
    if kind in ("chat", "code", "maths") and rng.random() < 0.2:
        return f"{kind}, two turns", (first, pick(FOLLOW_UPS))
    return kind, (first,)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    sources, rng = Sources.read(args.data_dir), random.Random(args.seed)
    prompts: dict[tuple[str, ...], str] = {}
    while len(prompts) < args.count:
        kind, said = turns(sources, rng)
        prompts.setdefault(said, kind)
    with args.out.open("w") as file:
        for number, (said, kind) in enumerate(prompts.items()):
            file.write(
                json.dumps({"id": f"mixed-{number}", "category": kind, "turns": said}) + "\n"
            )


if __name__ == "__main__":
    main()

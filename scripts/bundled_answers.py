"""Write the texts on which the bundled draft is distilled: the target's greedy answers with its probabilities.

    python scripts/bundled_answers.py --data-dir DATA --work WORK --documents 20000

DATA is the data of train_bundled_pair.py; shards of documents go to WORK, where distil_bundled_draft.py reads them.
The draft model needs unseen text: a document is a training problem with other digits and names, a problem that the
target made up, or some prose, each with the target's continuation.
"""

import argparse
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from train_bundled_pair import BOS, HELD_OUT, load, math_documents, prose_documents
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from specbench_kit.models.executors.base import Executor, Row, make_executor

EOS_ID = 1
TOP = 24
SHARD = 256
ANSWER_TOKENS, PROBLEM_TOKENS = 136, 160
MADE_UP, PROSE = 0.2, 0.08  # shares of the documents
NAMES = re.findall(
    r"\w+",
    """
Aaron Adam Alan Alex Alice Amanda Amy Andrew Andy Angela Anna Annie Barbara Barry Ben Beth Betty Bill Billy Bob Bobby
Brad Brenda Brian Caleb Carl Carla Carlos Carrie Casey Charlie Chris Cindy Connor Dave David Diego Donna Emily Emma
Frank Fred Gary George Gerald Gina Grace Greg Hannah Harry Henry Jack Jackson Jacob Jake James Jane Janet Janice Jason
Jeff Jenna Jenny Jeremy Jerry Jessica Jill Jim Jimmy Joe Joey John Johnny Jose Joseph Josh Julia Karen Kate Katie
Kayla Kelly Ken Kendra Kevin Kim Kyle Kylie Leo Lily Lisa Lucy Mandy Manny Marcus Maria Martha Mary Matt Max Megan
Michael Mike Monica Nancy Nathan Nina Oliver Patrick Paul Pete Peter Rachel Randy Rick Robert Roger Ryan Sally Sam
Samantha Samuel Sandra Sara Sarah Simon Sophia Stacy Stephanie Steve Steven Sue Susan Taylor Thomas Tim Tina Tom Tommy
Tony Tyler William
""",
)


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens, of which those from `start` on are to be learned, with the target's distribution at each of them.

    `likely` [learned, TOP] are its most probable tokens, `probability` their probabilities, which sum to one.
    """

    tokens: NDArray[np.uint16]
    start: int
    likely: NDArray[np.uint16]
    probability: NDArray[np.float16]


def changed(question: str, rng: random.Random) -> str:
    """Return the problem with other digits and other names, the same name for each old one throughout."""
    names = sorted(set(re.findall(r"\b[A-Z][a-z]+\b", question)) & set(NAMES))
    replacements = dict(zip(names, rng.sample(NAMES, len(names)), strict=True))
    renamed = re.sub(
        r"\b[A-Z][a-z]+\b", lambda match: replacements.get(match[0], match[0]), question
    )
    return re.sub(r"\d", lambda _: str(rng.randint(1, 9)), renamed)


def asked(document: str) -> str:
    """Return the beginning of a document, which the target continues."""
    return document[: document.index("\nAnswer:") + len("\nAnswer:")]


@dataclass(slots=True)
class Line:
    """A document that the target is writing; `start` is set once the problem has ended."""

    slot: int
    tokens: list[int]
    start: int | None
    held: int = 0
    likely: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)

    def row(self) -> Row:
        new, held = self.tokens[self.held :], self.held
        self.held = len(self.tokens)
        return Row(self.slot, new, held, held)

    def take(self, likely: Tensor, logits: Tensor, mark: list[int]) -> None:
        """Append one token: the most probable one in an answer, a sampled one in a problem."""
        if self.start is None:
            self.tokens.append(int(likely[logits.softmax(-1).multinomial(1)]))
            if self.tokens[-len(mark) :] == mark:
                self.start = len(self.tokens)
            return
        self.tokens.append(int(likely[0]))
        self.likely.append(likely)
        self.logits.append(logits)

    @property
    def ended(self) -> bool:
        if self.start is None:
            return len(self.tokens) > PROBLEM_TOKENS or EOS_ID in self.tokens
        return self.tokens[-1] == EOS_ID or len(self.likely) == ANSWER_TOKENS

    def document(self) -> Document:
        assert self.start is not None
        likely = torch.stack(self.likely).numpy().astype(np.uint16)
        probability = torch.stack(self.logits).softmax(-1).numpy().astype(np.float16)
        return Document(np.array(self.tokens, np.uint16), self.start, likely, probability)


def written(
    executor: Executor, prompts: Iterator[tuple[list[int], bool]], mark: list[int], count: int
) -> Iterator[Document]:
    """Yield the target's documents in the order in which they are finished; it also completes partial problems.

    `mark` are the tokens that end a problem; a problem that does not end is left out.
    """
    lines: list[Line] = []
    free = list(range(executor.slots))
    while count:
        while free:
            prompt, complete = next(prompts)
            lines.append(Line(free.pop(), list(prompt), len(prompt) if complete else None))
        top = executor.forward([line.row() for line in lines]).logits.topk(TOP)
        for line, likely, logits in zip(lines, top.indices, top.values, strict=True):
            line.take(likely, logits, mark)
        ended = [line for line in lines if line.ended]
        lines = [line for line in lines if not line.ended]
        for line in ended:
            free.append(line.slot)
            if line.start is not None and count:
                count -= 1
                yield line.document()


def write_shard(path: Path, documents: Sequence[Document]) -> None:
    """Write all documents into one file of arrays, which gets its name only when it is complete."""
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        lengths=np.array([len(document.tokens) for document in documents]),
        starts=np.array([document.start for document in documents]),
        tokens=np.concatenate([document.tokens for document in documents]),
        likely=np.concatenate([document.likely for document in documents]),
        probability=np.concatenate([document.probability for document in documents]),
    )
    partial.rename(path)


def read_shard(path: Path) -> list[Document]:
    arrays = dict(np.load(path))
    ends = np.cumsum(arrays["lengths"])
    learned = np.cumsum(arrays["lengths"] - arrays["starts"])
    parts = zip(
        np.split(arrays["tokens"], ends[:-1]),
        arrays["starts"].tolist(),
        np.split(arrays["likely"], learned[:-1]),
        np.split(arrays["probability"], learned[:-1]),
        strict=True,
    )
    return [Document(*part) for part in parts]


def prompts(
    args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[list[int], bool]]:
    """Yield openings of documents without end, with True for complete ones: problems, prose, and "Question:"."""
    rng = random.Random(args.seed)
    math = [asked(document) for document in math_documents(args.data_dir)[:-HELD_OUT]]
    prose = prose_documents(args.data_dir)
    while True:
        for problem in rng.sample(math, len(math)):
            kind = rng.random()
            text = f"{BOS}Question:" if kind < MADE_UP else changed(problem, rng)
            if kind > 1 - PROSE:
                text = rng.choice(prose)[: rng.randint(100, 500)]
            yield tokenizer(text, add_special_tokens=False)["input_ids"], kind >= MADE_UP


def write_answers(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write shards until there are `documents` documents."""
    target = load(args.out / "target").eval()
    executor = make_executor(target, 64, 1024, None)
    mark = tokenizer("\nAnswer:", add_special_tokens=False)["input_ids"]
    answers = written(executor, prompts(args, tokenizer), mark, args.documents)
    for shard in range(args.documents // SHARD):
        started = time.time()
        documents = list(islice(answers, SHARD))
        write_shard(args.work / f"{args.seed}-{shard}.npz", documents)
        speed = sum(len(document.likely) for document in documents) / (time.time() - started)
        print(f"shard {shard}: {speed:.0f} answer tokens/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, default=Path("specbench_kit/models/bundled"), help="folder of the pair"
    )
    parser.add_argument("--documents", type=int, default=20000)
    parser.add_argument(
        "--seed", type=int, default=0, help="another one gives other documents, beside the first"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    write_answers(args, AutoTokenizer.from_pretrained(args.out / "target", trust_remote_code=False))


if __name__ == "__main__":
    main()

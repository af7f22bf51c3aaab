"""Answers of a target on disk, with its likeliest tokens and hidden states: what drafts learn from."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import decode

MANIFEST = "answers.json"
SHARD_TEXTS = 64
SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt and the target's answer to it.

    `top_tokens` and `top_logits` [answer tokens, kept] are the target's likeliest tokens where each token of the answer
    was chosen, best first. `states` [prompt and answer tokens - 1, layers x width] are the target's hidden states of
    all tokens but the last, or None if no layers were kept.
    """

    index: int
    prompt: Sequence[int]
    output: Sequence[int]
    top_tokens: Tensor
    top_logits: Tensor
    states: Tensor | None = None

    @property
    def tokens(self) -> list[int]:
        """Return prompt and answer."""
        return [*self.prompt, *self.output]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """What the answers in a folder depend on; `target` and `prompts` are hashes of the model and of the prompts."""

    target: str
    prompts: str
    max_new_tokens: int
    sampled_share: float
    seed: int
    layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return a folder name; it ends with the layers whose states are kept."""
        parts = json.dumps([self.target, self.prompts, self.max_new_tokens, self.sampled_share, self.seed])
        digest = hashlib.sha256(parts.encode()).hexdigest()[:12]
        return "-".join([digest, *map(str, self.layers)])


class AnswerStore:
    """A folder of shards, each with some finished answers; a shard that exists is complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, parent: Path, key: AnswerKey) -> "AnswerStore":
        """Return the store for a key below `parent`; without layers, one that keeps states will do as well."""
        exact = parent / key.name
        if not key.layers and not exact.is_dir():
            with_states = sorted(path.parent for path in parent.glob(f"{key.name}-*/{MANIFEST}"))
            exact = with_states[0] if with_states else exact
        exact.mkdir(parents=True, exist_ok=True)
        manifest = exact / MANIFEST
        if not manifest.exists():
            manifest.write_text(json.dumps(asdict(key), indent=2) + "\n")
        return cls(exact)

    @cached_property
    def key(self) -> AnswerKey:
        """Return what the answers depend on."""
        try:
            return decode(AnswerKey, (self.folder / MANIFEST).read_bytes())
        except (OSError, ValueError) as error:
            raise SkitError(f"the folder '{self.folder}' holds no answers ({error}): delete it") from error

    @property
    def shards(self) -> list[Path]:
        """Return the files with answers, in the order in which they were written."""
        return sorted(self.folder.glob(f"[0-9]*{SUFFIX}"))

    def answered(self) -> set[int]:
        """Return the indices of the prompts that have an answer."""
        indices: set[int] = set()
        for path in self.shards:
            with _opened(path) as shard:
                indices.update(shard.get_tensor("indices").tolist())
        return indices

    def append(self, answers: Sequence[Answer]) -> None:
        """Write finished answers as the next shard."""
        shards = self.shards
        number = int(shards[-1].stem) + 1 if shards else 0
        tensors = {
            "indices": torch.tensor([answer.index for answer in answers]),
            "lengths": torch.tensor([[len(answer.prompt), len(answer.output)] for answer in answers]),
            "tokens": torch.tensor([token for answer in answers for token in answer.tokens], dtype=torch.int32),
            "top_tokens": torch.cat([answer.top_tokens for answer in answers]).int(),
            "top_logits": torch.cat([answer.top_logits for answer in answers]).half(),
        }
        states = [answer.states for answer in answers if answer.states is not None]
        if states:
            tensors["states"] = torch.cat(states).bfloat16()
        partial = self.folder / f"{number:05}.{os.getpid()}.partial"
        save_file(tensors, partial)
        partial.replace(self.folder / f"{number:05}{SUFFIX}")

    def read(self, path: Path, states: bool = True) -> Iterator[Answer]:
        """Yield the answers of one shard, with their states if they were kept and are asked for."""
        with _opened(path) as shard:
            names = set(shard.keys()) - (set() if states else {"states"})
            tensors = {name: shard.get_tensor(name) for name in names}
        lengths: list[tuple[int, int]] = [(int(prompt), int(output)) for prompt, output in tensors["lengths"].tolist()]
        tokens = tensors["tokens"].tolist()
        text = 0
        answer = 0
        state = 0
        for index, (prompt, output) in zip(tensors["indices"].tolist(), lengths, strict=True):
            end = text + prompt + output
            yield Answer(
                index,
                tokens[text : text + prompt],
                tokens[text + prompt : end],
                tensors["top_tokens"][answer : answer + output],
                tensors["top_logits"][answer : answer + output],
                tensors["states"][state : state + prompt + output - 1] if "states" in tensors else None,
            )
            text = end
            answer = answer + output
            state = state + prompt + output - 1


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise SkitError(f"cannot read the answers in '{path}' ({error}): delete that file") from error

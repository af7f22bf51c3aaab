"""Answers of a target, given in batches or taken from a trace, on disk with what drafts learn from.

Kept are the target's likeliest tokens and its hidden states at every token.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import decode
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.models.runner import Append, Runner, refuse_nan
from specbench_kit.studies.conversations import Conversation

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
class TrainingAnswerKey:
    """What the answers in a folder depend on; `target` and `prompts` are hashes of the model and of
    the prompts.
    """

    target: str
    prompts: str
    max_new_tokens: int
    sampled_share: float
    seed: int
    layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return a folder name; it ends with the layers whose states are kept."""
        parts = json.dumps(
            [self.target, self.prompts, self.max_new_tokens, self.sampled_share, self.seed]
        )
        digest = hashlib.sha256(parts.encode()).hexdigest()[:12]
        return "-".join([digest, *map(str, self.layers)])


class TrainingAnswerStore:
    """A folder of shards, each with some finished answers; a shard that exists is complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, parent: Path, key: TrainingAnswerKey) -> "TrainingAnswerStore":
        """Return the store for a key below `parent`; without layers, one that keeps states will do
        as well.
        """
        exact = parent / key.name
        if not key.layers and not exact.is_dir():
            with_states = sorted(path.parent for path in parent.glob(f"{key.name}-*/{MANIFEST}"))
            exact = with_states[0] if with_states else exact
        exact.mkdir(parents=True, exist_ok=True)
        manifest = exact / MANIFEST
        if not manifest.exists():
            manifest.write_text(json.dumps(asdict(key), indent=2) + "\n", encoding="utf-8")
        return cls(exact)

    @cached_property
    def key(self) -> TrainingAnswerKey:
        """Return what the answers depend on."""
        try:
            return decode(TrainingAnswerKey, (self.folder / MANIFEST).read_bytes())
        except (OSError, ValueError) as error:
            raise SkitError(
                f"the folder '{self.folder}' holds no answers ({error}): delete it"
            ) from error

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
            "lengths": torch.tensor(
                [[len(answer.prompt), len(answer.output)] for answer in answers]
            ),
            "tokens": torch.tensor(
                [token for answer in answers for token in answer.tokens], dtype=torch.int32
            ),
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
        lengths: list[tuple[int, int]] = [
            (int(prompt), int(output)) for prompt, output in tensors["lengths"].tolist()
        ]
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
                tensors["states"][state : state + prompt + output - 1]
                if "states" in tensors
                else None,
            )
            text = end
            answer = answer + output
            state = state + prompt + output - 1


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise SkitError(
            f"cannot read the answers in '{path}' ({error}): delete that file"
        ) from error


TOP = 32
"""Likeliest tokens kept at each position: they hold nearly all of the target's probability."""
COLDEST = 0.7
HOTTEST = 1.0
"""Range of the temperatures of sampled answers."""


@dataclass(slots=True)
class _Text:
    """An answer in the making: the tokens to forward next, the answer so far, and what was kept of
    it.
    """

    index: int
    conversation: Conversation
    slot: int
    prompt: Sequence[int]
    temperature: float
    random: torch.Generator
    limit: int
    pending: Sequence[int] = ()
    output: list[int] = field(default_factory=list)
    tops: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def finished(self) -> Answer:
        """Return the answer."""
        return Answer(
            self.index,
            self.prompt,
            self.output,
            torch.stack([tokens for tokens, _ in self.tops]),
            torch.stack([logits for _, logits in self.tops]),
            torch.cat(self.states) if self.states else None,
        )


class AnswerGenerator:
    """Answers conversations on one runner, all its slots at a time; a dialogue gives one text, that
    of its last turn.

    A share of the conversations is sampled, at a temperature of its own each, and the others are
    answered greedily.
    """

    def __init__(
        self,
        runner: Runner,
        layers: Sequence[int],
        eos_ids: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        sampled_share: float,
        seed: int,
    ) -> None:
        self._runner = runner
        self._layers = layers
        self._eos_ids = eos_ids
        self._decode = decode
        self._sampled_share = sampled_share
        self._seed = seed

    def answer(
        self, conversations: Iterable[tuple[int, Conversation]], until_s: float
    ) -> Iterator[Answer]:
        """Yield answers as they finish, until all are answered or the monotonic clock shows
        `until_s`.

        Prompts that do not fit into a slot are left out.
        """
        waiting = iter(conversations)
        active = list[_Text]()
        while True:
            while len(active) < self._runner.executor.slots and monotonic_s() < until_s:
                entry = next(waiting, None)
                if entry is None:
                    break
                text = self._begin(*entry)
                if text is not None:
                    active.append(text)
            if not active or monotonic_s() >= until_s:
                break
            self._step(active)
            for text in [text for text in active if self._is_finished(text)]:
                self._runner.release(text.slot)
                active.remove(text)
                text.conversation.answer(self._decode(text.output))
                following = self._begin(text.index, text.conversation)
                if following is not None:
                    active.append(following)
                else:
                    yield text.finished()
        for text in active:
            self._runner.release(text.slot)

    def _begin(self, index: int, conversation: Conversation) -> _Text | None:
        """Return the text of the conversation's next turn; None after the last turn, or if it does
        not fit.
        """
        request = conversation.next_request()
        if request is None or not request.prompt_ids:
            return None
        if len(request.prompt_ids) + request.max_new_tokens > self._runner.capacity:
            return None
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        sampled, share = torch.rand(2, generator=random).tolist()
        temperature = (
            COLDEST + share * (HOTTEST - COLDEST) if sampled < self._sampled_share else 0.0
        )
        slot = self._runner.acquire()
        prompt = request.prompt_ids
        return _Text(
            index, conversation, slot, prompt, temperature, random, request.max_new_tokens, prompt
        )

    def _is_finished(self, text: _Text) -> bool:
        return len(text.output) == text.limit or text.output[-1] in self._eos_ids

    @torch.inference_mode()
    def _step(self, active: Sequence[_Text]) -> None:
        """Forward the pending tokens of all texts and choose the next token of each."""
        rows = [
            Append.with_states(self._runner, text.slot, text.pending)
            if self._layers
            else Append(text.slot, text.pending)
            for text in active
        ]
        forward = self._runner.forward(rows, self._layers)
        refuse_nan(forward)
        last = [kept - 1 for kept in accumulate(row.keep for row in rows)]
        # Without prompts every row is the last of its text, and 32 rows of a large vocabulary need
        # no copy.
        logits = (
            forward.logits if len(last) == len(forward.logits) else forward.logits[last]
        ).float()
        top_logits, top_tokens = logits.topk(min(TOP, logits.shape[-1]))
        best = top_tokens[:, 0].tolist()
        chosen = choose_tokens_of_rows(
            logits, best, [text.temperature for text in active], [text.random for text in active]
        )
        for row, text in enumerate(active):
            self._runner.commit(text.slot, range(len(text.pending)))
            if self._layers:
                text.states.append(forward.states(row, self._layers).bfloat16().cpu())
            text.tops.append((top_tokens[row].int().cpu(), top_logits[row].half().cpu()))
            text.output.append(chosen[row])
            text.pending = (chosen[row],)


def choose_tokens_of_rows(
    logits: Tensor,
    best: Sequence[int],
    temperatures: Sequence[float],
    random: Sequence[torch.Generator],
) -> list[int]:
    """Return the next token of every row: the best at a temperature of 0, else one drawn from the
    softmax.

    All rows are drawn together, each by one number of its own generator: `torch.multinomial` draws
    a number for every token of the vocabulary, which takes longer than a row of the forward.
    """
    tokens = list(best)
    sampled = [row for row, temperature in enumerate(temperatures) if temperature]
    if not sampled:
        return tokens
    divisors = torch.tensor([[temperatures[row]] for row in sampled], device=logits.device)
    sums = (logits[sampled] / divisors).softmax(-1).double().cumsum(-1)
    drawn = torch.cat(
        [torch.rand(1, 1, dtype=torch.float64, generator=random[row]) for row in sampled]
    )
    # The last sum is 1 up to rounding, and a number beyond it would be no token.
    found = torch.searchsorted(sums, drawn.to(sums.device) * sums[:, -1:], right=True)
    for row, token in zip(sampled, found[:, 0].tolist(), strict=True):
        tokens[row] = min(token, logits.shape[-1] - 1)
    return tokens


def fill(
    store: TrainingAnswerStore,
    generator: AnswerGenerator,
    conversations: Sequence[Conversation],
    until_s: float,
    report: ProgressCallback,
) -> None:
    """Answer the conversations that have no answer in the store, and write each shard as it
    fills.
    """
    answered = store.answered()
    waiting = (
        (index, conversation)
        for index, conversation in enumerate(conversations)
        if index not in answered
    )
    done = len(answered)
    buffer = list[Answer]()
    for answer in generator.answer(waiting, until_s):
        buffer.append(answer)
        done += 1
        report("answering", done, len(conversations))
        if len(buffer) == SHARD_TEXTS:
            store.append(buffer)
            buffer = []
    if buffer:
        store.append(buffer)


TOLERATED = 0.02
"""Largest difference between kept states and those of a fresh forward, as a share of their size.

States are kept in bf16, whose rounding alone gives 0.004, and were computed in batches of other
shapes.
"""


@torch.inference_mode()
def teach(
    runner: Runner, index: int, prompt: Sequence[int], output: Sequence[int], layers: Sequence[int]
) -> Answer:
    """Return an answer with the target's likeliest tokens and states at every position of the given
    text.
    """
    tokens = [*prompt, *output][:-1]
    slot = runner.acquire()
    answered = len(output)
    row = Append(slot, tokens, keep=answered)
    if layers:
        row = Append.with_states(runner, slot, tokens, keep=answered)
    forward = runner.forward([row], layers)
    refuse_nan(forward)
    logits = forward[0][-answered:].float()
    top_logits, top_tokens = logits.topk(min(TOP, logits.shape[-1]))
    states = forward.states(0, layers).bfloat16().cpu() if layers else None
    runner.release(slot)
    return Answer(index, prompt, output, top_tokens.int().cpu(), top_logits.half().cpu(), states)


def require_fresh(store: TrainingAnswerStore, runner: Runner, layers: Sequence[int]) -> None:
    """Raise SkitError if the states of a kept answer are not what the target computes now."""
    kept = next(store.read(store.shards[0]), None)
    if kept is None or kept.states is None or not layers:
        return
    fresh = teach(runner, kept.index, kept.prompt, kept.output, layers).states
    assert fresh is not None
    difference = (fresh.float() - kept.states.float()).norm() / fresh.float().norm()
    require(
        float(difference) <= TOLERATED,
        f"the states kept in '{store.folder}' differ from the target's by {float(difference):.1%}: they are "
        "another model's, or were computed in another number format; delete the folder",
    )

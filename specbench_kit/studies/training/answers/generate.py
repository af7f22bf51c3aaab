"""Let a target answer prompts in batches, and keep what a draft learns from at every token.

Also here: answers that exist already, such as those of a trace: forward them once and keep what a draft learns from.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench_kit.core.errors import require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.models.runner import Append, Runner, refuse_nan
from specbench_kit.studies.bench.conversations import Conversation
from specbench_kit.studies.training.answers.store import SHARD_TEXTS, Answer, AnswerStore

TOP = 32
"""Likeliest tokens kept at each position: they hold nearly all of the target's probability."""
COLDEST = 0.7
HOTTEST = 1.0
"""Range of the temperatures of sampled answers."""


@dataclass(slots=True)
class _Text:
    """An answer in the making: the tokens to forward next, the answer so far, and what was kept of it."""

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
    """Answers conversations on one runner, all its slots at a time; a dialogue gives one text, that of its last turn.

    A share of the conversations is sampled, at a temperature of its own each, and the others are answered greedily.
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

    def answer(self, conversations: Iterable[tuple[int, Conversation]], until_s: float) -> Iterator[Answer]:
        """Yield answers as they finish, until all are answered or the monotonic clock shows `until_s`.

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
        """Return the text of the conversation's next turn; None after the last turn, or if it does not fit."""
        request = conversation.next_request()
        if request is None or not request.prompt_ids:
            return None
        if len(request.prompt_ids) + request.max_new_tokens > self._runner.capacity:
            return None
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        sampled, share = torch.rand(2, generator=random).tolist()
        temperature = COLDEST + share * (HOTTEST - COLDEST) if sampled < self._sampled_share else 0.0
        slot = self._runner.acquire()
        prompt = request.prompt_ids
        return _Text(index, conversation, slot, prompt, temperature, random, request.max_new_tokens, prompt)

    def _is_finished(self, text: _Text) -> bool:
        return len(text.output) == text.limit or text.output[-1] in self._eos_ids

    @torch.inference_mode()
    def _step(self, active: Sequence[_Text]) -> None:
        """Forward the pending tokens of all texts and choose the next token of each."""
        # States are returned for kept tokens only, so that a prompt keeps all of its tokens where states are wanted.
        rows = [Append(text.slot, text.pending, keep=len(text.pending) if self._layers else 1) for text in active]
        forward = self._runner.forward(rows, self._layers)
        refuse_nan(forward)
        logits = torch.stack([forward[row][-1] for row in range(len(rows))]).float()
        top_logits, top_tokens = logits.topk(min(TOP, logits.shape[-1]))
        for row, text in enumerate(active):
            self._runner.commit(text.slot, range(len(text.pending)))
            if self._layers:
                text.states.append(forward.states(row, self._layers).bfloat16().cpu())
            text.tops.append((top_tokens[row].int().cpu(), top_logits[row].half().cpu()))
            if text.temperature:
                shares = (logits[row] / text.temperature).softmax(-1).cpu()
                token = int(torch.multinomial(shares, 1, generator=text.random))
            else:
                token = int(top_tokens[row, 0])
            text.output.append(token)
            text.pending = (token,)


def fill(
    store: AnswerStore,
    generator: AnswerGenerator,
    conversations: Sequence[Conversation],
    until_s: float,
    report: ProgressCallback,
) -> None:
    """Answer the conversations that have no answer in the store, and write each shard as it fills."""
    answered = store.answered()
    waiting = ((index, conversation) for index, conversation in enumerate(conversations) if index not in answered)
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

States are kept in bf16, whose rounding alone gives 0.004, and were computed in batches of other shapes.
"""


@torch.inference_mode()
def teach(runner: Runner, index: int, prompt: Sequence[int], output: Sequence[int], layers: Sequence[int]) -> Answer:
    """Return an answer with the target's likeliest tokens and states at every position of the given text."""
    tokens = [*prompt, *output][:-1]
    slot = runner.acquire()
    forward = runner.forward([Append(slot, tokens, keep=len(tokens))], layers)
    refuse_nan(forward)
    top_logits, top_tokens = forward[0][len(prompt) - 1 :].float().topk(min(TOP, forward[0].shape[-1]))
    states = forward.states(0, layers).bfloat16().cpu() if layers else None
    runner.release(slot)
    return Answer(index, prompt, output, top_tokens.int().cpu(), top_logits.half().cpu(), states)


def require_fresh(store: AnswerStore, runner: Runner, layers: Sequence[int]) -> None:
    """Raise SkitError if the states of a kept answer are not what the target computes now."""
    kept = next(store.read(store.shards[0]), None)
    if kept is None or kept.states is None or not layers:
        return
    fresh = teach(runner, kept.index, kept.prompt, kept.output, layers).states
    assert fresh is not None
    difference = (fresh.float() - kept.states.float()).norm() / fresh.float().norm()
    require(
        float(difference) <= TOLERATED,
        f"the states kept in '{store.folder}' differ from the target's by {100 * float(difference):.1f} %: they are "
        "another model's, or were computed in another number format; delete the folder",
    )

"""Distil the bundled draft further from the bundled target, on the shards that bundled_answers.py writes.

    python scripts/distil_bundled_draft.py --data-dir DATA --work WORK --minutes 45

Training starts from the draft in --out; the average of both goes to WORK/draft. The learning rate follows the clock, so
that it reaches zero in time even on a shared machine; bundled_answers.py may still be writing at the same time.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bundled_answers import EOS_ID, Document, asked, read_shard
from torch import Tensor
from train_bundled_pair import HELD_OUT, Optimizer, load, math_documents, save
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Runner

TOKENS_PER_STEP = 5120
SHARDS_AT_ONCE = 8
JUDGED = 100  # held-out problems that acceptance is measured on


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    batch = torch.ones((len(rows), max(map(len, rows))), dtype=torch.long)
    for place, row in zip(batch, rows, strict=True):
        place[: len(row)] = torch.tensor([int(token) for token in row])
    return batch


class TopDivergence(torch.autograd.Function):
    """Cross-entropy between the draft and the target's most probable tokens, summed over positions."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, likely: Tensor, probability: Tensor) -> Tensor:
        logits = logits.float()
        normalizer = logits.logsumexp(-1, keepdim=True)
        loss = (probability * (normalizer - logits.gather(-1, likely))).sum()
        gradient = logits.sub_(normalizer).exp_().scatter_add_(-1, likely, -probability)
        ctx.save_for_backward(gradient.to(torch.bfloat16))
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(torch.bfloat16), None, None


def batch_loss(draft: LlamaForCausalLM, batch: Sequence[Document]) -> Tensor:
    """Return the mean loss over the positions to be learned."""
    likely = torch.from_numpy(
        np.concatenate([document.likely for document in batch]).astype(np.int64)
    )
    probability = torch.from_numpy(
        np.concatenate([document.probability for document in batch]).astype(np.float32)
    )
    probability /= probability.sum(-1, keepdim=True)
    tokens = padded([document.tokens.tolist() for document in batch])
    learned = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, document in enumerate(batch):
        learned[row, document.start - 1 : len(document.tokens) - 1] = True
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = draft.model(input_ids=tokens, use_cache=False).last_hidden_state[learned]
        logits = draft.lm_head(states)
    loss: Tensor = TopDivergence.apply(logits, likely, probability)  # type: ignore[no-untyped-call]
    return loss / len(likely)


def batches(work: Path, most: int, rng: random.Random) -> Iterator[list[Document]]:
    """Yield documents of similar length from the least used shards; wait when all were used `most` times."""
    uses: Counter[Path] = Counter()
    while True:
        shards = [path for path in work.glob("*[0-9].npz") if uses[path] < most]
        if not shards:
            time.sleep(1)
            continue
        rng.shuffle(shards)
        chosen = sorted(shards, key=uses.__getitem__)[:SHARDS_AT_ONCE]
        uses.update(chosen)
        documents = [document for path in chosen for document in read_shard(path)]
        documents.sort(key=lambda document: len(document.tokens) + rng.random())
        groups: list[list[Document]] = [[]]
        for document in documents:
            if len(groups[-1]) * len(document.tokens) > TOKENS_PER_STEP:
                groups.append([])
            groups[-1].append(document)
        rng.shuffle(groups)
        yield from groups


def acceptance(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, prompts: Sequence[list[int]]
) -> float:
    """Return the acceptance rate of chains of four tokens, with weights rounded as they are stored."""
    rounded = LlamaForCausalLM(draft.config)
    rounded.load_state_dict(
        {name: weight.bfloat16().float() for name, weight in draft.state_dict().items()}
    )
    length = max(map(len, prompts)) + 128 + 8
    runners = [Runner(make_executor(model.eval(), 32, length, 4096)) for model in (target, rounded)]
    setup = DecodingSetup(eos_ids=frozenset({EOS_ID}), batch_size=32)
    loop = local_loop(parse_method("fixed-k:k=4"), *runners, setup=setup)
    for index, prompt in enumerate(prompts):
        loop.submit(Request(str(index), "held out", tuple(prompt), 128))
    rounds = []
    while not loop.idle:
        rounds += [round_ for record in loop.step() for round_ in record.rounds]
    return sum(round_.accepted for round_ in rounds) / sum(round_.submitted for round_ in rounds)


def average(one: LlamaForCausalLM, other: LlamaForCausalLM, share: float) -> None:
    """Average the first model's weights with a share of the other's, which smooths over single documents."""
    with torch.no_grad():
        for weight, others in zip(one.parameters(), other.parameters(), strict=True):
            weight.lerp_(others, share)


def distil(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> None:
    """Train for the given minutes; the learning rate follows the clock, because the machine may be shared."""
    target, draft = load(args.out / "target").eval(), load(args.out / "draft")
    draft.set_attn_implementation("eager")  # of short rows it is twice as fast
    held_out = [asked(document) for document in math_documents(args.data_dir)[-HELD_OUT:]]
    prompts = tokenizer(held_out, add_special_tokens=False)["input_ids"][:JUDGED]
    optimizer = Optimizer(draft, args.lr)
    started, judged, seen, learned, losses = time.time(), time.time(), 0, 0, []
    for step, batch in enumerate(batches(args.work, args.uses, random.Random(args.seed))):
        progress = (time.time() - started) / (60 * args.minutes)
        if progress >= 1:
            break
        loss = batch_loss(draft, batch)
        loss.backward()
        optimizer.step(progress)
        losses.append(loss.item())
        seen += sum(len(document.tokens) for document in batch)
        learned += sum(len(document.likely) for document in batch)
        if step % 10 == 9:
            mean, speed = sum(losses) / len(losses), seen / (time.time() - started)
            print(
                f"step {step} {progress:.3f} loss {mean:.4f} {learned} of {seen} tokens, {speed:.0f}/s",
                flush=True,
            )
            losses.clear()
        if time.time() - judged > 60 * args.judge_minutes:
            print(f"held-out acceptance {acceptance(target, draft, prompts):.4f}", flush=True)
            save(draft, args.work / "draft")
            judged = time.time()
    average(draft, load(args.out / "draft"), args.kept)
    print(f"held-out acceptance {acceptance(target, draft, prompts):.4f}", flush=True)
    save(draft, args.work / "draft")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, default=Path("specbench_kit/models/bundled"), help="folder of the pair"
    )
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument(
        "--judge-minutes", type=float, default=5, help="how often acceptance is measured"
    )
    parser.add_argument("--lr", type=float, default=1.6e-3)
    parser.add_argument("--uses", type=int, default=4, help="how often a document may be learned")
    parser.add_argument(
        "--kept", type=float, default=0.6, help="share of the weights that the old draft keeps"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    distil(args, AutoTokenizer.from_pretrained(args.out / "target", trust_remote_code=False))


if __name__ == "__main__":
    main()

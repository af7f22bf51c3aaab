"""Train the bundled pair from scratch: tokenizer, target, then a draft that learns the same texts.

    python scripts/train_bundled_pair.py tokenizer --data-dir DATA --out specbench_kit/models/bundled
    python scripts/train_bundled_pair.py target    --data-dir DATA --out specbench_kit/models/bundled
    python scripts/train_bundled_pair.py draft     --data-dir DATA --out specbench_kit/models/bundled

DATA holds gsm8k/train.jsonl, text/wikitext2_valid.txt and text/tiny_shakespeare.txt. Two CPU cores with
bf16 dot products need about an hour for the target and a quarter of an hour for the draft, which is then distilled
from the target by bundled_answers.py and distil_bundled_draft.py.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 4096
MAX_POSITIONS = 2048
TOKENS_PER_STEP = 12288
CONTEXTS = ((0.0, 256), (0.85, 1024))  # from this share of training on, this window length
WARM_UP = 0.03  # share of the training
HELD_OUT = 200  # last GSM8K training problems, never trained on
BOS, EOS = "<|begin|>", "<|end|>"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ 'Answer: ' + message['content'] + eos_token + '\n' }}"
    "{% else %}{{ 'Question: ' + message['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)
TARGET = {
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "intermediate_size": 640,
    "num_attention_heads": 4,
}
DRAFT = {
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "num_attention_heads": 3,
}


def math_documents(data_dir: Path) -> list[str]:
    """Return GSM8K training problems as dialogues, without the calculator annotations."""
    rows = [json.loads(line) for line in (data_dir / "gsm8k/train.jsonl").read_text().splitlines()]
    return [
        f"{BOS}Question: {row['question']}\nAnswer: {re.sub(r'<<.*?>>', '', row['answer'])}{EOS}"
        for row in rows
    ]


def prose_documents(data_dir: Path, chunk: int = 1500) -> list[str]:
    """Return general text, cut at line ends into documents of about `chunk` characters."""
    documents = []
    for name in ("wikitext2_valid", "tiny_shakespeare"):
        piece = ""
        for line in (data_dir / f"text/{name}.txt").read_text().splitlines(keepends=True):
            piece += line.replace("<unk>", "it")
            if len(piece) >= chunk:
                documents.append(f"{BOS}{piece.strip()}{EOS}")
                piece = ""
    return documents


def train_tokenizer(documents: list[str]) -> PreTrainedTokenizerFast:
    """Train byte-level BPE with single digits, so that any text round-trips and numbers stay aligned."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((d.replace(BOS, "").replace(EOS, "") for d in documents), trainer)
    tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def windows(
    math: list[list[int]], prose: list[list[int]], length: int, rng: random.Random
) -> Iterator[list[int]]:
    """Yield windows of `length` tokens without end: each epoch has all problems and a third of the prose, shuffled."""
    while True:
        epoch = math + rng.sample(prose, len(prose) // 3)
        rng.shuffle(epoch)
        stream = [token for document in epoch for token in document]
        for start in range(0, len(stream) - length, length):
            yield stream[start : start + length]


def build(shape: dict[str, int]) -> LlamaForCausalLM:
    """Return a Llama-architecture model with tied embeddings."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        **shape,
    )
    return LlamaForCausalLM(config)


class Optimizer:
    """Muon for the layers' matrices, AdamW for embeddings and norms; a short warm-up, then linear decay to zero."""

    def __init__(self, model: LlamaForCausalLM, lr: float) -> None:
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.parameters, self.lr = matrices + rest, lr

    def step(self, progress: float) -> None:
        """Take one step at `progress` of the training, from 0 to 1."""
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.lr * min(1.0, progress / WARM_UP, 1.0 - progress)
            part.step()
            part.zero_grad()


def context_at(progress: float) -> int:
    return next(length for start, length in reversed(CONTEXTS) if progress >= start)


def fit(model: LlamaForCausalLM, data: dict[str, Any], args: argparse.Namespace) -> None:
    """Train `model` to predict the next token."""
    rng = random.Random(args.seed)
    streams = {length: windows(data["math"], data["prose"], length, rng) for _, length in CONTEXTS}
    optimizer = Optimizer(model, args.lr)
    micro = 4096
    started = time.time()
    for step in range(args.steps):
        length = context_at(step / args.steps)
        total = 0.0
        for _ in range(TOKENS_PER_STEP // micro):
            batch = torch.tensor([next(streams[length]) for _ in range(micro // length)])
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = batch_loss(model, batch) * micro / TOKENS_PER_STEP
            loss.backward()
            total += loss.item()
        optimizer.step(step / args.steps)
        if step % 20 == 0 or step == args.steps - 1:
            speed = (step + 1) * TOKENS_PER_STEP / (time.time() - started)
            print(f"step {step} loss {total:.3f} {speed:.0f} tokens/s", flush=True)
        if step % 100 == 99 or step == args.steps - 1:
            print(
                f"step {step} held-out loss {held_out_loss(model, data['held_out']):.3f}",
                flush=True,
            )
            save(model, args.out / args.stage)


def batch_loss(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=batch, use_cache=False).logits[:, :-1].flatten(0, 1).float()
    return cross_entropy(logits, batch[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, documents: list[list[int]]) -> float:
    losses = [
        cross_entropy(model(input_ids=ids, use_cache=False).logits[0, :-1], ids[0, 1:]).item()
        for ids in (torch.tensor([document]) for document in documents)
    ]
    return sum(losses) / len(losses)


def load(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Store the weights as bf16; loading them as fp32 is exact."""
    state = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    copy = type(model)(model.config).to(torch.bfloat16)
    copy.load_state_dict(state)
    copy.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=["tokenizer", "target", "draft"])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1150)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    math, prose = math_documents(args.data_dir), prose_documents(args.data_dir)
    if args.stage == "tokenizer":
        train_tokenizer(math + prose).save_pretrained(args.out / "target")
        return
    tokenizer = AutoTokenizer.from_pretrained(args.out / "target", trust_remote_code=False)
    tokens = {
        name: tokenizer(texts, add_special_tokens=False)["input_ids"]
        for name, texts in (("math", math), ("prose", prose))
    }
    data = {
        "math": tokens["math"][:-HELD_OUT],
        "prose": tokens["prose"],
        "held_out": tokens["math"][-HELD_OUT:],
    }
    print({name: sum(map(len, documents)) for name, documents in data.items()}, flush=True)
    fit(build(TARGET if args.stage == "target" else DRAFT), data, args)
    tokenizer.save_pretrained(args.out / args.stage)


if __name__ == "__main__":
    main()

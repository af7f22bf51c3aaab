"""Heads whose matrices are kept in 4 bits: the numbers in the file, what is left to the target's, and products."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from gguf_files import quantised, rewrite
from native_models import rounded
from safetensors.torch import load_file, save_file
from tiny_heads import put_beside
from tiny_heads import random_head as random_weights_head
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    fill,
    make_requests,
    outputs,
    random_prompts,
    tiny_llama,
)
from torch import Tensor, nn
from transformers import AutoTokenizer

from benchmarks import gguf_file
from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import locate
from specbench_kit.models.executors.base import executors, make_executor
from specbench_kit.models.executors.library import byte_products
from specbench_kit.models.gguf import open_gguf
from specbench_kit.models.heads.files import (
    TargetEnds,
    load_head,
    load_head_for,
    read_embedding,
    read_output,
    save_head,
    sizes_of,
)
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.pair import LoadedModel, load_pair
from specbench_kit.models.runner import Append, Runner
from specbench_kit.models.weights.stored import with_weights

WIDTH = 64
DRAFTED = torch.arange(3, 103) * 2
"""The target's tokens that the head drafts."""
needs_bytes = pytest.mark.skipif(
    not byte_products(), reason="this processor's bytes are multiplied by portable code"
)


@pytest.fixture(scope="module")
def target_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file whose matrices, embedding and output among them, are in blocks of 4 bits."""
    folder = tmp_path_factory.mktemp("target")
    source = locate("bundled", "draft")
    tokenizer = AutoTokenizer.from_pretrained(source.location)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 96, "num_attention_heads": 4}
    model = fill(tiny_llama(vocab_size=len(tokenizer), **sizes, num_hidden_layers=2), 0, scale=0.1)
    gguf_file.write(LoadedModel(model, source), tokenizer, folder / "plain.gguf")
    return rewrite(folder / "plain.gguf", folder / "blocks.gguf", quantised("Q4_1"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))


def random_head(vocabulary: int, **options: Any) -> HeadModel:
    head = random_weights_head(WIDTH, vocabulary, DRAFTED, **options)
    head.owns_embedding = False
    return head


def numbers_of(path: Path, name: str) -> Tensor:
    tensor = next(tensor for tensor in open_gguf(path).tensors if tensor.name == name)
    return torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))


@pytest.mark.parametrize("of_target", [False, True])
def test_a_head_in_4_bits_holds_rounded_matrices_and_exact_vectors(
    of_target: bool, target_file: Path, tmp_path: Path
) -> None:
    target = load_pair(str(target_file), None).target.shell
    head = random_head(target.config.vocab_size, output_of_target=of_target)
    save_head(head, tmp_path / "plain")
    save_head(head, tmp_path / "packed", in_4_bits=True)
    plain, packed = (tmp_path / name / "model.safetensors" for name in ("plain", "packed"))
    names = load_file(packed).keys()
    assert "embed_tokens.weight" not in names
    # The format's other readers need the matrix of a head in full precision, whoever it is.
    assert ("lm_head.weight" in names, "lm_head.weight" in load_file(plain)) == (
        not of_target,
        True,
    )
    loaded = load_head(tmp_path / "packed", target)
    assert all(weight.is_meta for weight in loaded.parameters())
    assert torch.equal(loaded.tokens, DRAFTED)
    assert (loaded.config.output_of_target, loaded.owns_embedding) == (of_target, False)
    read = dict(with_weights(loaded).named_parameters())
    for name, weight in head.named_parameters():
        if name == "embed_tokens.weight" or (of_target and name == "lm_head.weight"):
            continue
        kind = gguf.GGMLQuantizationType.Q4_1
        rounded_weight = (
            torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
            if weight.dim() > 1
            else weight
        )
        assert torch.equal(read[name], rounded_weight), name
    embedding = target.get_input_embeddings().weight.stored.read().float()
    assert torch.equal(read["embed_tokens.weight"], embedding)
    if of_target:
        output = target.get_output_embeddings().weight.stored.read().float()
        assert torch.equal(read["lm_head.weight"], output[DRAFTED])


def test_a_head_without_its_target_reads_what_it_lacks_from_the_targets_files(
    target_file: Path, tmp_path: Path
) -> None:
    """As on a device whose target is on a server."""
    target = load_pair(str(target_file), None).target
    head = random_head(target.shell.config.vocab_size, output_of_target=True)
    save_head(head, tmp_path / "packed", in_4_bits=True)
    folder = target.source.folder
    ends = TargetEnds(lambda: read_embedding(folder), lambda: read_output(folder))
    alone = load_head_for(tmp_path / "packed", sizes_of(target.shell), ends, torch.float32)
    beside = load_head(tmp_path / "packed", target.shell)
    states = torch.randn((3, 3 * WIDTH), generator=torch.Generator().manual_seed(1))
    assert torch.equal(last_logits(alone, "head", states), last_logits(beside, "head", states))


def test_a_head_in_4_bits_is_stored_again_without_loss(target_file: Path, tmp_path: Path) -> None:
    """Training that goes on from such a head begins at exactly its numbers."""
    target = load_pair(str(target_file), None).target.shell
    save_head(random_head(target.config.vocab_size), tmp_path / "one", in_4_bits=True)
    dense = with_weights(load_head(tmp_path / "one", target))
    save_head(dense, tmp_path / "two", torch.float32)
    again = with_weights(load_head(tmp_path / "two", target))
    for (name, weight), (_, other) in zip(
        dense.named_parameters(), again.named_parameters(), strict=True
    ):
        assert torch.equal(weight, other), name


def last_logits(head: HeadModel, executor: str | None, states: Tensor) -> Tensor:
    runner = Runner(make_executor(head, 1, 100, None, executor))
    slot = runner.acquire()
    runner.executor.add_states(slot, states)  # type: ignore[attr-defined]
    return runner.forward([Append(slot, list(range(len(states))), keep=len(states))])[0].clone()


@needs_bytes
@pytest.mark.parametrize("of_target", [False, True])
def test_products_are_those_of_the_files_blocks_with_rounded_activations(
    of_target: bool, target_file: Path, tmp_path: Path
) -> None:
    target = load_pair(str(target_file), None).target.shell
    head = random_head(target.config.vocab_size, output_of_target=of_target)
    save_head(head, tmp_path / "packed", in_4_bits=True)
    loaded = load_head(tmp_path / "packed", target)
    assert type(make_executor(loaded, 1, 50, None)) is executors.get("native-blocks-head")
    dense = []
    for round_activations in (True, False):
        model = with_weights(load_head(tmp_path / "packed", target))
        # The folder that the file was converted to has these in bf16.
        model.embed_tokens.weight = nn.Parameter(numbers_of(target_file, "token_embd.weight"))
        if of_target:
            output = numbers_of(target_file, "output.weight")[DRAFTED]
            model.lm_head.weight = nn.Parameter(output)
        for module in model.modules():
            if round_activations and isinstance(module, nn.Linear):
                module.register_forward_pre_hook(lambda _, read: (rounded(read[0], 32),))
        dense.append(model.requires_grad_(False))
    shares = []
    for seed in range(5):
        states = torch.randn((3, 3 * WIDTH), generator=torch.Generator().manual_seed(seed))
        computed = last_logits(loaded, None, states)
        expected, exact = (last_logits(model, "head", states) for model in dense)
        shares.append(
            ((computed - expected).abs().median() / (computed - exact).abs().median()).item()
        )
        assert (computed - exact).abs().median() < 0.1 * exact.abs().median()
    # A sum in another order may round an activation to its neighbour, and the whole text differs: most have none.
    assert sorted(shares)[2] < 0.01


def test_a_head_in_4_bits_loses_nothing(target_file: Path, tmp_path: Path) -> None:
    pair = load_pair(str(target_file), None)
    head = random_head(pair.target.shell.config.vocab_size, output_of_target=True)
    save_head(head, tmp_path / "packed", in_4_bits=True)
    runners = pair.all_runners(3, 128)["target"], pair.all_runners(3, 128)["target"]
    put_beside(runners[0], load_head(tmp_path / "packed", pair.target.shell))
    requests = make_requests(random_prompts([5, 1, 30], 200), 20)
    plain = decode(AUTOREGRESSIVE, runners, requests)
    records = decode(parse_method("eagle:k=3"), runners, requests, batch_size=2)
    assert outputs(records) == outputs(plain)
    assert {step.drafted for record in records.values() for step in record.rounds[1:-2]} == {3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("no metadata", "its blocks are None, and only Q4_1 are known"),
        ("a matrix less", "fc.weight is missing or has another shape"),
        ("a shorter row", "fc.weight is missing or has another shape"),
        ("other offsets", "its d2t is damaged"),
    ],
)
def test_damaged_heads_are_refused_in_one_line(
    change: str, words: str, target_file: Path, tmp_path: Path
) -> None:
    target = load_pair(str(target_file), None).target.shell
    save_head(random_head(target.config.vocab_size), tmp_path, in_4_bits=True)
    weights = load_file(tmp_path / "model.safetensors")
    if change == "a matrix less":
        del weights["fc.weight"]
    if change == "a shorter row":
        weights["fc.weight"] = weights["fc.weight"][:, :-20].contiguous()
    if change == "other offsets":
        weights["d2t"] = weights["d2t"] + 1_000_000
    metadata = None if change == "no metadata" else {"blocks": "Q4_1"}
    save_file(weights, tmp_path / "model.safetensors", metadata)
    with pytest.raises(SkitError) as refused:
        load_head(tmp_path, target)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_head_without_output_is_whole_only_if_it_says_whose_it_reads(
    target_file: Path, tmp_path: Path
) -> None:
    target = load_pair(str(target_file), None).target.shell
    head = random_head(target.config.vocab_size, output_of_target=True)
    save_head(head, tmp_path, in_4_bits=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"output_rows_of_target": False}))
    with pytest.raises(SkitError, match=r"lm_head\.weight is missing"):
        load_head(tmp_path, target)


def test_a_head_whose_rows_are_no_whole_blocks_is_not_stored(
    target_file: Path, tmp_path: Path
) -> None:
    head = random_head(load_pair(str(target_file), None).target.shell.config.vocab_size)
    head.fc = nn.Linear(3 * WIDTH - 16, WIDTH, bias=False)
    with pytest.raises(SkitError, match=r"inputs of fc\.weight are no multiple of 32"):
        save_head(head, tmp_path, in_4_bits=True)

"""The native executors with products narrower than fp32: their rounding, and that nothing else changes a bit."""

from collections.abc import Callable, Iterator

import pytest
import torch
from native_models import MODELS, SIZES, in_a_tree, in_pieces, llama
from tiny_heads import put_beside, untrained
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    plain_logits,
    random_prompts,
)
from torch import Tensor
from torch.nn import Linear, Parameter
from torch.nn.functional import pad
from transformers import PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.drafts.reduced import ReducedOutput
from specbench_kit.models.executors import library
from specbench_kit.models.executors.base import executors, make_executor
from specbench_kit.models.pair import LoadedModel, load_pair, resolve_dtype
from specbench_kit.models.runner import Append

NARROW = library.load_narrow_library()
needs_narrow = pytest.mark.skipif(
    NARROW is None, reason="no processor with AVX512-BF16, or no C++ compiler"
)
VARIED = (
    "llama",
    "heads of 80",
    "bf16 weights",
    "fp16 weights",
    "qwen3, norms of queries and keys",
)
PRODUCTS = ("fp32 multiply-add", "AVX512-BF16")


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts back the products that this processor would choose."""
    assert NARROW is not None
    chosen = NARROW.products(None)
    yield
    NARROW.products(chosen)


def to_bf16(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def to_8_bits(
    values: Tensor, round_scale: Callable[[Tensor], Tensor] = lambda scale: scale
) -> Tensor:
    """Round to whole multiples of a scale per 64 neighbours, of which the largest becomes 127."""
    blocks = pad(values, (0, -values.shape[-1] % 64)).unflatten(-1, (-1, 64))
    scale = round_scale(blocks.abs().amax(-1, keepdim=True) / 127)
    codes = (blocks / scale.clamp_min(1e-30)).round().clamp(-127, 127)
    return (codes * scale).flatten(-2)[..., : values.shape[-1]]


WEIGHTS = {
    "native-bf16": to_bf16,
    "native-int8": lambda weight: to_8_bits(to_bf16(weight), to_bf16),
}
ACTIVATIONS = {"native-bf16": to_bf16, "native-int8": to_8_bits}
EXECUTORS = tuple(WEIGHTS)


def rounded(model: PreTrainedModel, executor: str) -> PreTrainedModel:
    """Return the model with weights rounded, and activations rounded before every matrix."""
    embedding = model.get_input_embeddings().weight
    embedding.data = to_bf16(embedding.data)
    for module in model.modules():
        if isinstance(module, Linear):
            module.weight = Parameter(WEIGHTS[executor](module.weight.data), requires_grad=False)
            module.register_forward_pre_hook(lambda _, read: (ACTIVATIONS[executor](read[0]),))
    return model


@needs_narrow
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", MODELS)
def test_weights_and_activations_are_rounded_and_nothing_else(name: str, executor: str) -> None:
    model = MODELS[name]()
    (text,) = random_prompts([60], model.config.vocab_size)
    runner = make_runner(model, 1, 120, executor)
    computed = runner.forward([Append(runner.acquire(), text, keep=60)])[0]
    exact = plain_logits(model, text)
    # A sum in another order may round an activation to its neighbour, which is why the median is compared.
    error = (computed - plain_logits(rounded(model, executor), text)).abs().median()
    assert error < 0.2 * (computed - exact).abs().median()


@needs_narrow
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", VARIED)
def test_logits_are_the_same_to_the_bit_alone_in_chunks_and_in_a_tree(
    name: str, executor: str
) -> None:
    assert NARROW is not None
    model = MODELS[name]()
    (text,) = random_prompts([112], model.config.vocab_size)
    wholes = []
    for products in PRODUCTS:
        assert NARROW.products(products) == products
        runner = make_runner(model, 3, 200, executor)
        wholes.append(in_pieces(runner, text, 112))
        for size in (1, 2, 5, 7, 13, 40):
            assert torch.equal(in_pieces(runner, text, size), wholes[-1]), size
        assert torch.equal(in_a_tree(runner, text, 100), wholes[-1][100:])
    assert torch.equal(*wholes)


@needs_narrow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_number_of_threads_changes_no_bit(executor: str) -> None:
    runner = make_runner(llama(hidden_size=128, intermediate_size=320), 3, 200, executor)
    (text,) = random_prompts([112], SIZES["vocab_size"])
    before, logits_by_threads = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            logits_by_threads.append(
                torch.cat((in_pieces(runner, text, 7), in_a_tree(runner, text, 100)))
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(logits, logits_by_threads[0]) for logits in logits_by_threads[1:])


@needs_narrow
def test_a_model_in_bf16_runs_on_native_bf16_and_one_in_fp32_does_not() -> None:
    assert type(make_executor(llama().to(torch.bfloat16), 1, 40, None)) is executors.get(
        "native-bf16"
    )
    assert type(make_executor(llama(), 1, 40, None)) is executors.get("native")
    fused = llama(hidden_act="gelu").to(torch.bfloat16)
    assert type(make_executor(fused, 1, 40, None)) is executors.get("transformers")


@needs_narrow
def test_a_model_loaded_in_bf16_gives_the_logits_of_one_that_is_rounded_later() -> None:
    loaded, named = (
        load_pair(dtype="bfloat16", device="cpu"),
        load_pair(executor="native-bf16", device="cpu"),
    )
    assert {model.model.dtype for pair in (loaded, named) for model in pair.loaded.values()} == {
        torch.bfloat16
    }
    wide = load_pair(device="cpu")
    (text,) = random_prompts([40], 4096)
    logits_of_loads = []
    for pair, executor in ((loaded, "auto"), (named, "auto"), (wide, "native-bf16")):
        runner, _ = pair.runners(1, 60, executor)
        assert type(runner.executor) is executors.get("native-bf16")
        logits_of_loads.append(runner.forward([Append(runner.acquire(), text, keep=40)])[0].clone())
    assert torch.equal(logits_of_loads[0], logits_of_loads[1])
    assert torch.equal(logits_of_loads[0], logits_of_loads[2])


@needs_narrow
def test_heads_and_reduced_drafts_in_bf16_have_executors_of_their_own() -> None:
    target = llama()
    runner = make_runner(target, 2, 120, "native-bf16")
    head = untrained(runner).to(torch.bfloat16)
    put_beside(runner, head)
    assert type(make_executor(head, 1, 40, None)) is executors.get("native-bf16-head")
    reduced = llama()
    reduced.lm_head = ReducedOutput(
        SIZES["hidden_size"], torch.arange(0, SIZES["vocab_size"], 2), SIZES["vocab_size"]
    )
    reduced.lm_head.weight.data = target.lm_head.weight.data[::2].clone()
    reduced = reduced.to(torch.bfloat16)
    draft = make_runner(reduced, 2, 120)
    assert type(draft.executor) is executors.get("native-bf16-draft")
    requests = make_requests(random_prompts([5, 30, 17], SIZES["vocab_size"]), 24)
    plain = outputs(decode(AUTOREGRESSIVE, (runner, draft), requests))
    for method in ("fixed-k:k=4", "fixed-k:drafter=head"):
        records = decode(parse_method(method), (runner, draft), requests, batch_size=2)
        assert outputs(records) == plain, method
        assert any(round.accepted for record in records.values() for round in record.rounds), method


@needs_narrow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_weight_that_is_not_a_number_is_noticed(executor: str) -> None:
    model = llama()
    model.model.layers[1].mlp.down_proj.weight.data[3, 5] = float("nan")
    runner = make_runner(model, 1, 40, executor)
    assert runner.forward([Append(runner.acquire(), [1, 2, 3])]).is_nan()


@needs_narrow
def test_weights_in_8_bits_are_described_as_another_model() -> None:
    plain, narrow, bytewise = (
        load_pair(executor=name, device="cpu").describe(lambda _: "0")["target"]
        for name in ("auto", "native-bf16", "native-int8")
    )
    assert plain == narrow
    assert (bytewise.name, bytewise.hash) == (f"{plain.name} in 8 bits", "0-8bit")


def test_an_executor_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SkitError, match=r"^unknown executor 'native-bf17' \(did you mean 'native-bf16'"
    ):
        resolve_dtype("auto", torch.device("cpu"), "native-bf17")
    with pytest.raises(
        SkitError, match=r"^executor 'native-bf16' holds weights in bfloat16: leave out --dtype"
    ):
        resolve_dtype("float32", torch.device("cpu"), "native-bf16")
    monkeypatch.setattr(
        "specbench_kit.models.executors.native_narrow.load_narrow_library", lambda: None
    )
    with pytest.raises(
        SkitError, match=r"^executor 'native-bf16' needs an x86 processor with AVX512-BF16"
    ):
        make_executor(llama(), 1, 40, None, "native-bf16")
    halved = llama().to(torch.bfloat16)
    assert type(make_executor(halved, 1, 40, None)) is executors.get("transformers")
    loaded = LoadedModel(halved, ModelSource("", "tiny", local_only=True))
    with pytest.raises(
        SkitError, match=r"^--dtype bfloat16 on a CPU is computed by 'native-bf16', which needs"
    ):
        loaded.runner(1, 40, None)
    assert type(loaded.runner(1, 40, None, "transformers").executor) is executors.get(
        "transformers"
    )


@needs_narrow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_method_gives_the_tokens_of_plain_decoding(executor: str) -> None:
    target = llama()
    runners = (
        make_runner(target, 3, 120, executor),
        make_runner(disturbed(target, 0.02), 3, 120, executor),
    )
    requests = make_requests(random_prompts([5, 30, 17, 8], SIZES["vocab_size"]), 24)
    plain = outputs(decode(AUTOREGRESSIVE, runners, requests))
    assert outputs(decode(AUTOREGRESSIVE, runners, requests, batch_size=3)) == plain
    for method in ("fixed-k:k=4", "specinfer", "suffix"):
        records = decode(parse_method(method), runners, requests, batch_size=3)
        assert outputs(records) == plain, method


def test_an_executor_is_refused_for_a_model_that_it_does_not_compute() -> None:
    with pytest.raises(
        SkitError, match=r"^executor 'native' cannot compute this model of type 'llama': it"
    ):
        make_executor(llama(hidden_act="gelu"), 1, 40, None, "native")

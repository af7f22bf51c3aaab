"""What every method promises, for the tests of packages that bring methods of their own.

`check_method("my-rule")` decodes with tiny random models, in seconds and without a download:

    from specbench_kit.api.testing import check_method

    def test_my_rule():
        check_method("my-rule")

`pytest --pyargs specbench_kit.api.testing` checks every installed method that another package brings; pytest finds the
test here, and `-k my-rule` chooses one of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from specbench_kit.decoding.drafting.base import parse_drafter
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.spec import parse_method, with_option
from specbench_kit.models.draft_library import HEAD
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.heads.config import HeadConfig
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Runner

VOCABULARY = 64
WIDTH = 32
CONTEXT = 48
SLOTS = 3
PROMPTS = (5, 1, 40, 17, 47)
"""Tokens of the prompts; the longest leaves room for one token, so that every answer ends with the
context.
"""
DRAFTERS = ("model", "head", "suffix")
"""The drafters that a method is tried with, if it lets its user choose one."""
DISTURBANCE = 0.02
"""How far the draft model's weights lie from the target's: it is right in some of its tokens."""
Outputs = dict[str, list[int]]


def check_method(spec: str) -> None:
    """Raise AssertionError unless a method keeps what every method promises.

    Greedy outputs are those of autoregressive decoding, for one request at a time and for several,
    up to the last token that the context holds, with every drafter that its user may choose; under
    sampling every answer has its length.
    """
    pair = _Pair()
    for tried in _with_drafters(spec):
        for size in (1, SLOTS):
            plain, found = (
                pair.outputs(method, size) for method in (Autoregressive(), parse_method(tried))
            )
            where = f"{tried}, {size} {'request' if size == 1 else 'requests'} at a time"
            assert found == plain, f"{where}: greedy outputs differ from autoregressive decoding"
            sampled = pair.outputs(parse_method(tried), size, Sampler(temperature=0.8))
            lengths = {name: len(tokens) for name, tokens in sampled.items()}
            assert lengths == {name: len(tokens) for name, tokens in plain.items()}, (
                f"{where}: sampled answers end early"
            )


def pytest_generate_tests(metafunc: Any) -> None:
    """Give `test_method` the methods that other packages bring; pytest calls this when it is asked
    for this module.
    """
    # One that is left out fails with the reason.
    metafunc.parametrize("installed_method", [*methods.of_other_packages(), *methods.left_out()])


def test_method(installed_method: str) -> None:
    """Check one method that is installed beside the kit."""
    check_method(installed_method)


def _with_drafters(spec: str) -> Iterator[str]:
    """Yield the spec as it is or, if the user may choose the drafter, with each that the method can
    draft from.
    """
    method = parse_method(spec)
    if "drafter=" in spec or not any(
        option.name == "drafter" and option.init for option in fields(method)
    ):
        yield spec
        return
    for drafter in DRAFTERS:
        if parse_drafter(drafter).capability >= method.required_capability:
            yield with_option(spec, "drafter", drafter)


class _Pair:
    """A target, a draft model that is right now and then, and an untrained head."""

    def __init__(self) -> None:
        target = _fill(LlamaForCausalLM(LlamaConfig(**_sizes(2))), seed=0)
        draft = deepcopy(target)
        generator = torch.Generator().manual_seed(1)
        for weight in draft.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * DISTURBANCE)
        self._runners = _runner(target), _runner(draft)
        head = HeadModel(
            HeadConfig(LlamaConfig(**_sizes(1)), VOCABULARY // 2, WIDTH, (0, 1, 2), "tiny")
        )
        self._head = _runner(_fill(head, seed=2))

    def outputs(self, method: Method, batch_size: int, sampler: Sampler | None = None) -> Outputs:
        """Return the tokens of every answer."""
        heads: Mapping[str, Runner] = {
            name: self._head for name in method.drafting.models if name.startswith(HEAD)
        }
        loop = local_loop(
            method,
            *self._runners,
            others=heads,
            setup=DecodingSetup(sampler=sampler or Sampler(), batch_size=batch_size),
        )
        for request in _requests():
            loop.submit(request)
        found: Outputs = {}
        while not loop.idle:
            found |= {record.request_id: record.output_ids for record in loop.step()}
        return found


def _requests() -> Sequence[Request]:
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in PROMPTS
    ]
    return [
        Request(str(number), "test", tuple(prompt), CONTEXT)
        for number, prompt in enumerate(prompts)
    ]


def _runner(model: Any) -> Runner:
    return Runner(make_executor(model, SLOTS, CONTEXT, VOCABULARY))


def _sizes(layers: int) -> dict[str, int]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": False,
    }


def _fill(model: nn.Module, seed: int) -> Any:
    """Return the model with random weights so large that what it says depends on what it reads."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 0.3, generator=generator)
    return model.eval()

"""The target's first layers as a draft model: what they compute, and that they are the target's own."""

import pytest
import torch
from command_line import TinyPair
from tiny_models import decode, make_requests, outputs, plain_logits
from transformers import GPT2Config, GPT2LMHeadModel

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.drafts.reduced import exit_early
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Append


@pytest.mark.parametrize("executor", ["auto", "transformers"])
def test_it_computes_what_the_first_layers_say(executor: str, tiny: TinyPair) -> None:
    pair = load_pair(str(tiny.target), "early-exit:1", device="cpu", executor=executor)
    model, small = pair.target.model, pair.needed_draft.model
    drafter = pair.runners(1, 40)[1]
    drafted = drafter.forward([Append(drafter.acquire(), [5, 90, 7], keep=3)])[0]
    with torch.inference_mode():
        states = model(torch.tensor([[5, 90, 7]]), output_hidden_states=True).hidden_states[1]
        expected = model.lm_head(model.model.norm(states))[0]
    torch.testing.assert_close(drafted, expected, atol=1e-4, rtol=1e-4)
    assert {weight.data_ptr() for weight in small.parameters()} < {
        weight.data_ptr() for weight in model.parameters()
    }


def test_the_target_stays_whole_and_its_output_too(tiny: TinyPair) -> None:
    pair = load_pair(str(tiny.target), "early-exit:1", device="cpu")
    alone = load_pair(str(tiny.target), None, device="cpu").target.model
    torch.testing.assert_close(plain_logits(pair.target.model, [5, 9]), plain_logits(alone, [5, 9]))
    requests = make_requests([[70, 80], [90, 3, 200]], 20)
    plain = decode(Autoregressive(), pair.runners(2, 64), requests, batch_size=2)
    drafted = decode(parse_method("fixed-k"), pair.runners(2, 64), requests, batch_size=2)
    assert outputs(drafted) == outputs(plain)
    assert sum(step.submitted for record in drafted.values() for step in record.rounds) > 20
    described = pair.describe(lambda _: "0")
    assert described["draft"].name == "target/early-exit:1"
    assert described["draft"].hash != described["target"].hash
    assert described["draft"].parameters < described["target"].parameters


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("early-exit:2", "early-exit:2 must exit before the last of the target's 2 layers"),
        (
            "early-exit",
            "early-exit needs the number of layers after which it exits, as in early-exit:4, not 'early-e",
        ),
        ("early-exit:0", "early-exit needs the number of layers"),
    ],
)
def test_a_layer_that_is_no_early_one_is_refused(name: str, said: str, tiny: TinyPair) -> None:
    with pytest.raises(SkitError) as refused:
        load_pair(str(tiny.target), name, device="cpu")
    assert str(refused.value).startswith(said)


def test_other_shapes_are_refused() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=2, n_head=2, n_positions=8))
    with pytest.raises(SkitError, match="models of type 'gpt2' cannot exit early"):
        exit_early(model, 1)

"""Medusa heads: trained for seconds, a block per round, lossless at any batch size, refused where they do not fit."""

import json
import random
from pathlib import Path

import pytest
import torch
from environments import DEPLOYMENT, ENVIRONMENT
from safetensors.torch import load_file, save_file
from tiny_heads import put_medusa_beside
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)
from transformers import PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.heads.files import load_any_head, load_head
from specbench_kit.models.heads.medusa import MedusaModel, save_medusa
from specbench_kit.models.runner import Runner
from specbench_kit.studies.training.distillation.answers import Answer, teach
from specbench_kit.studies.training.distillation.batches import batches
from specbench_kit.studies.training.head_training import HeadOptimizer, MedusaLoss, new_medusa

FIXED = "fixed-k:k=4,drafter=medusa"


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def answers(target: PreTrainedModel) -> list[Answer]:
    """Return the target's answers, with its last layer's states."""
    requests = make_requests(random_prompts([5, 9, 30], 64), 24)
    runners = make_runner(target, 3, 128), make_runner(target, 3, 128)
    records = decode(AUTOREGRESSIVE, runners, requests)
    runner = Runner(make_executor(target, 1, 128, None))
    return [
        teach(runner, index, request.prompt_ids, records[request.id].output_ids, (2,))
        for index, request in enumerate(requests)
    ]


@pytest.fixture(scope="module")
def trained(target: PreTrainedModel, answers: list[Answer]) -> MedusaModel:
    model = new_medusa(target, torch.arange(64), 4)
    loss, optimizer = MedusaLoss(model, 0.8, 64), HeadOptimizer(model, 5e-2)
    model.train()
    for step in range(150):
        for batch in batches(answers, 4096, random.Random(step)):
            loss(batch).loss.backward()
            optimizer.step(min(1.0, 1 - step / 150))
    return model.eval().requires_grad_(False)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_trained_heads_draft_blocks_that_are_accepted_and_lose_nothing(
    target: PreTrainedModel, trained: MedusaModel, answers: list[Answer], batch_size: int
) -> None:
    runners = make_runner(target, 3, 128), make_runner(target, 3, 128)
    put_medusa_beside(runners[0], trained)
    requests = make_requests(random_prompts([5, 9, 30], 64), 24)
    records = decode(parse_method(FIXED), runners, requests, batch_size=batch_size)
    assert outputs(records) == {
        request.id: list(answer.output) for request, answer in zip(requests, answers, strict=True)
    }
    assert {record.rounds[0].drafted for record in records.values()} == {0}, (
        "the prompt's states are not known yet"
    )
    assert {step.drafted for record in records.values() for step in record.rounds[1:-2]} == {4}
    counts = [step.accepted for record in records.values() for step in record.rounds[1:]]
    expected = MedusaLoss(trained, 0.8, 64).acceptance([answers])
    assert sum(counts) / len(counts) > 1.5, "it was trained on these answers"
    full = [
        step.accepted
        for record in records.values()
        for step in record.rounds[1:]
        if step.submitted == 4
    ]
    assert abs(1 + sum(full) / len(full) - expected.length) < 0.25, (
        "training counts acceptance as decoding does"
    )


@pytest.mark.parametrize(
    "spec", ["vllm-adaptive:drafter=medusa,refit_every=2,warmup_refits=1", "goodput:drafter=medusa"]
)
def test_methods_that_weigh_time_work_with_a_block(
    target: PreTrainedModel, trained: MedusaModel, spec: str
) -> None:
    runners = make_runner(target, 3, 128), make_runner(target, 3, 128)
    put_medusa_beside(runners[0], trained)
    requests = make_requests(random_prompts([5, 9, 30], 64), 24)
    plain = decode(AUTOREGRESSIVE, runners, requests)
    assert outputs(
        decode(
            parse_method(spec).prepare(ENVIRONMENT),
            runners,
            requests,
            batch_size=2,
            deployment=DEPLOYMENT,
        )
    ) == outputs(plain)


def test_a_block_takes_one_forward_of_the_deployments_drafter(
    target: PreTrainedModel, trained: MedusaModel
) -> None:
    runners = make_runner(target, 3, 128), make_runner(target, 3, 128)
    put_medusa_beside(runners[0], trained)
    (record,) = decode(
        parse_method(FIXED), runners, make_requests([[1, 2, 3, 4, 5]], 24), deployment=DEPLOYMENT
    ).values()
    expected = DEPLOYMENT.drafter.latency.seconds([(4, 0)])
    assert record.rounds[0].draft_s == 0
    assert [step.draft_s for step in record.rounds[1:-2]] == pytest.approx(
        [expected] * len(record.rounds[1:-2])
    )


def test_heads_come_back_as_they_were_saved(
    target: PreTrainedModel, trained: MedusaModel, tmp_path: Path
) -> None:
    save_medusa(trained, tmp_path, torch.float32)
    again = load_any_head(tmp_path, target)
    assert isinstance(again, MedusaModel)
    assert again.config.as_json() == trained.config.as_json()
    assert all(
        torch.equal(weight, trained.state_dict()[name])
        for name, weight in again.state_dict().items()
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 4096}, "has another shape"),
        ({"num_target_layers": 7}, "made for 7 layers"),
        ({"num_heads": 0}, "below 1"),
        ({"num_heads": 6}, "has another shape"),
        ({"draft_vocab_size": None}, "damaged"),
    ],
)
def test_heads_that_do_not_fit_are_refused_in_one_line(
    change: dict[str, object],
    words: str,
    target: PreTrainedModel,
    trained: MedusaModel,
    tmp_path: Path,
) -> None:
    save_medusa(trained, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(SkitError) as refused:
        load_any_head(tmp_path, target)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_damaged_weights_and_foreign_tokens_are_refused(
    target: PreTrainedModel, trained: MedusaModel, tmp_path: Path
) -> None:
    save_medusa(trained, tmp_path)
    with pytest.raises(SkitError, match="type 'medusa'"):
        load_head(tmp_path, target)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"d2t": weights["d2t"] + 60}, tmp_path / "model.safetensors")
    with pytest.raises(SkitError, match="the target does not have"):
        load_any_head(tmp_path, target)
    (tmp_path / "model.safetensors").write_bytes(b"cos\nsystem\n")
    with pytest.raises(SkitError, match="cannot read"):
        load_any_head(tmp_path, target)

"""The upper bound: nothing that it sends is rejected, and no chain needs fewer rounds."""

import pytest
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    random_prompts,
    tiny_llama,
    with_references,
)

from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 3, 200), make_runner(disturbed(target, 0.004), 3, 200)


def decode_all(spec: str, runners: Runners, sampler: Sampler) -> dict[str, RequestRecord]:
    requests = make_requests(random_prompts([3, 9, 1, 30, 14], 64), 60)
    answers = decode(AUTOREGRESSIVE, runners, requests, sampler=sampler, batch_size=3)
    return decode(parse_method(spec), runners, with_references(requests, answers), sampler=sampler, batch_size=3)


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.8)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("longest", [1, 4, 8])
def test_all_that_is_sent_is_accepted(longest: int, sampler: Sampler, runners: Runners) -> None:
    records = decode_all(f"oracle:max_draft={longest}", runners, sampler)
    rounds = [step for record in records.values() for step in record.rounds]
    for step in rounds:
        assert step.accepted == step.submitted
        assert step.drafted == step.submitted + 1 or step.drafted == step.submitted == longest
    assert sum(step.accepted for step in rounds) > 10


def test_no_chain_needs_fewer_rounds(runners: Runners) -> None:
    best = decode_all("oracle:max_draft=6", runners, Sampler())
    for spec in ("fixed-k:k=6", "fixed-k:k=3", "threshold:max_draft=6", "autoregressive"):
        rival = decode_all(spec, runners, Sampler())
        assert all(len(best[name].rounds) <= len(rival[name].rounds) for name in best)
        assert {name: best[name].output_ids for name in best} == {name: rival[name].output_ids for name in best}
    rounds = sum(len(record.rounds) for record in best.values())
    assert rounds == sum(len(record.rounds) for record in decode_all("fixed-k:k=6", runners, Sampler()).values())

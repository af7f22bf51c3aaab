"""What drafting without a model takes under a deployment."""

import pytest
from environments import DEPLOYMENT
from tiny_models import decode, make_requests, make_runner, tiny_llama

from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.spec import parse_method

LOOPING = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


def rounds(spec: str) -> list[RoundRecord]:
    """Under a deployment, where the target has no draft model beside it."""
    model = tiny_llama(0)
    runners = make_runner(model, 1, 200), make_runner(model, 1, 200)
    return decode(parse_method(spec), runners, make_requests([LOOPING], 8), deployment=DEPLOYMENT)[
        "000"
    ].rounds


def test_a_look_up_costs_nothing_unless_a_constant_is_stated() -> None:
    free = rounds("fixed-k:drafter=prompt-lookup")
    stated = rounds("fixed-k:drafter=prompt-lookup.lookup_s=0.002")
    assert sum(step.drafted for step in free) == sum(step.drafted for step in stated) > 0
    assert sum(step.draft_s for step in free) == 0
    for step in stated:
        assert step.draft_s == pytest.approx(0.002 * step.drafted)


def test_a_target_alone_is_enough() -> None:
    target = make_runner(tiny_llama(0), 1, 200)
    engine = local_loop(parse_method("suffix"), target, setup=DecodingSetup())
    (request,) = make_requests([LOOPING], 8)
    engine.submit(request)
    records = []
    while not engine.idle:
        records += engine.step()
    assert [len(record.output_ids) for record in records] == [8]
    assert sum(step.drafted for step in records[0].rounds) > 0

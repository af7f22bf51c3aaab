"""What sparse-quantised draws from, and what it sends: figures worked out by hand."""

import pytest
import torch
from tiny_models import decode, disturbed, make_requests, make_runner, tiny_llama

from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.loading import load
from specbench_kit.methods.sparse_quantised import nearest_steps, payload_bits, quantised
from specbench_kit.methods.spec import parse_method


@pytest.mark.parametrize(
    ("exact", "levels", "steps"),
    [
        ([2.0, 1.2, 0.8], 4, [2, 1, 1]),
        (
            [1.5, 0.9, 0.6],
            3,
            [1, 1, 1],
        ),  # 2, 1, 1 is one too many, and the first was rounded up the furthest
        (
            [1.4, 1.3, 0.3],
            3,
            [2, 1, 0],
        ),  # 1, 1, 0 lacks one, and the first was rounded down the furthest
    ],
)
def test_shares_are_rounded_to_the_nearest_that_add_up(
    exact: list[float], levels: int, steps: list[int]
) -> None:
    assert nearest_steps(exact, levels) == steps


def test_only_the_likeliest_are_left() -> None:
    """Two of .4 .1 .3 .2 are left with 4/7 and 3/7, which is 2 and 2 quarters; with eighths it is 5 and 3."""
    probabilities = torch.tensor([0.4, 0.1, 0.3, 0.2])
    assert quantised(probabilities, 2, 4).tolist() == [0.5, 0, 0.5, 0]
    assert quantised(probabilities, 2, 8).tolist() == [0.625, 0, 0.375, 0]


def test_the_bits_name_one_of_all_distributions() -> None:
    """C(6, 2) = 15 pairs of tokens and C(5, 1) = 5 ways to share 4 levels out: 3.907 + 2.322 bits, so 7."""
    assert payload_bits(6, 2, 4) == 7
    assert payload_bits(6, 1, 4) == 3
    assert payload_bits(4, 4, 1) == 2


@pytest.mark.parametrize(("temperature", "sent"), [(0.0, False), (1.0, True)])
def test_the_link_carries_the_bytes_of_its_own_distributions(
    temperature: float, sent: bool
) -> None:
    """C(64, 4) = 635,376 and C(8, 3) = 56: 19.28 + 5.81 bits, so 26; three tokens take 9.75 bytes."""
    deployment = load("wan", ["link.jitter_s=0", "link.up_bytes_per_s=100"])
    target = tiny_llama(0)
    runners = make_runner(target, 2, 64), make_runner(disturbed(target, 0.01), 2, 64)
    requests, sampler = make_requests([[3, 9]], 12), Sampler(temperature=temperature)
    links = []
    for spec in ("fixed-k:k=3", "sparse-quantised:k=3,top=4,levels=5"):
        (record,) = decode(
            parse_method(spec), runners, requests, sampler=sampler, deployment=deployment
        ).values()
        links.append(record.rounds[0].link_s)
    more_s = 9.75 / 100 if sent else 0.0
    assert links[1] - links[0] == pytest.approx(more_s, abs=1e-3)

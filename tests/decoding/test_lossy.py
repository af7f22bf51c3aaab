"""Lossy verification: what the rules accept, by hand, and how far the output's distribution is from the target's."""

from collections.abc import Sequence
from itertools import product
from math import exp, log

import pytest
import torch
from tiny_models import AUTOREGRESSIVE, disturbed, make_requests, make_runner, outputs, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.look_up import LookUpDistribution
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.lossy import LooseAcceptance, LossyRule, TypicalAcceptance, lossy_verdict, parse_lossy
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method

SURE = [0.97, 0.01, 0.01, 0.01]
OPEN = [0.4, 0.3, 0.2, 0.1]


def accepted(rule: LossyRule, tokens: Sequence[int], *rows: list[float]) -> int:
    return rule.accepted(tokens, torch.tensor(rows))


def test_typical_acceptance_asks_less_of_a_token_where_the_target_is_undecided() -> None:
    """The entropy of OPEN is 1.2799 nats: the threshold is min(.09, .3 exp(-1.2799)) = .08342."""
    entropy = -sum(share * log(share) for share in OPEN)
    assert 0.3 * exp(-entropy) == pytest.approx(0.08342, abs=1e-5)
    rule = TypicalAcceptance()
    assert accepted(rule, [3], OPEN, OPEN) == 1
    assert accepted(TypicalAcceptance(delta=0.4), [3], OPEN, OPEN) == 1  # .11123, and so .09
    assert accepted(TypicalAcceptance(epsilon=0.2, delta=0.4), [3], OPEN, OPEN) == 0
    assert accepted(rule, [1, 0], SURE, OPEN, OPEN) == 0
    assert accepted(rule, [0, 3, 1], SURE, OPEN, SURE, OPEN) == 2


def test_loose_acceptance_forgives_what_the_target_goes_on_from() -> None:
    """OPEN has .923 of the largest entropy, SURE .121: only a mismatch at the former may stand."""
    rule = LooseAcceptance(window=2)
    assert accepted(rule, [3, 0, 0], OPEN, SURE, SURE, SURE) == 3
    assert accepted(rule, [3, 0, 0], SURE, SURE, SURE, SURE) == 0
    assert accepted(rule, [3, 0, 1], OPEN, SURE, SURE, SURE) == 0
    assert accepted(rule, [0, 3, 0], SURE, OPEN, SURE, SURE) == 1
    assert accepted(rule, [3, 0, 0, 3, 0, 0, 3], OPEN, SURE, SURE, OPEN, SURE, SURE, OPEN, SURE) == 6


def test_the_longest_accepted_path_of_a_tree_is_taken() -> None:
    tree = TokenTree(9)
    source = LookUpDistribution("test", 1.0)
    nodes = [tree.add(token, parent, source, 0) for token, parent in ((3, 0), (1, 0), (0, 2), (2, 1))]
    target = torch.tensor([OPEN, SURE, OPEN, SURE, OPEN])
    assert lossy_verdict(TypicalAcceptance(), tree, nodes, target, None) == ([2, 3], 0)


def test_the_distance_from_the_targets_distribution_is_known_by_enumeration() -> None:
    """A draft of one token from q: accepted if p exceeds the threshold, else replaced by a draw from p.

    The output's first token has the distribution q where q is accepted, and its rest times p: by hand for two tokens.
    """
    p, q = torch.tensor([0.95, 0.05]), (0.5, 0.5)
    rule = TypicalAcceptance()
    output = [0.0, 0.0]
    for token, chance in enumerate(q):
        tree = TokenTree(0)
        node = tree.add(token, 0, LookUpDistribution("test", 1.0), 0)
        path, _ = lossy_verdict(rule, tree, [node], torch.stack((p, p)), None)
        for other in range(2):
            output[other] += chance * (float(other == token) if path else float(p[other]))
    assert output == pytest.approx([0.5 + 0.5 * 0.95, 0.5 * 0.05])
    assert sum(abs(share - float(mass)) for share, mass in zip(output, p, strict=True)) / 2 == pytest.approx(0.025)


def run(method: Method, rule: LossyRule | None) -> tuple[dict[str, list[int]], int]:
    """Decode greedily with a draft model that resembles the target, and count the rounds."""
    model = tiny_llama(0)
    runners = make_runner(model, 3, 96), make_runner(disturbed(model, 0.05), 3, 96)
    engine = live_engine(method, *runners, setup=DecodingSetup(lossy=rule, batch_size=2))
    for request in make_requests([[1, 2], [3], [4, 5, 6]], 40):
        engine.submit(request)
    records = {}
    while not engine.idle:
        records |= {record.request_id: record for record in engine.step()}
    return outputs(records), sum(len(record.rounds) for record in records.values())


@pytest.mark.parametrize(
    ("spec", "rule"),
    list(product(["fixed-k:k=6", "opt-tree:nodes=6,max_depth=3,gain=0.1"], ["typical", "fly:window=1"])),
)
def test_a_lossy_run_takes_fewer_rounds_and_changes_outputs(spec: str, rule: str) -> None:
    plain, rounds = run(parse_method(spec), None)
    lossy, fewer = run(parse_method(spec), parse_lossy(rule))
    assert fewer < rounds
    assert lossy != plain


def test_plain_decoding_is_the_same_under_a_lossy_rule() -> None:
    assert run(AUTOREGRESSIVE, parse_lossy("typical")) == run(AUTOREGRESSIVE, None)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("exact", "--lossy: unknown rule 'exact'; known: typical, fly"),
        ("typical:epsilon=2", "typical: epsilon must lie in 0..1, not 2"),
        ("fly:window=0", "fly: window must be at least 1, not 0"),
        ("fly:width=3", "--lossy fly: unknown option 'width'"),
    ],
)
def test_a_bad_rule_is_refused_in_one_line(spec: str, words: str) -> None:
    with pytest.raises(SkitError, match=words):
        parse_lossy(spec)


def test_a_rule_is_recorded_with_all_its_options() -> None:
    assert parse_lossy("typical:delta=0.2").spec == "typical:epsilon=0.09,delta=0.2"
    assert parse_lossy(parse_lossy("fly").spec) == parse_lossy("fly")

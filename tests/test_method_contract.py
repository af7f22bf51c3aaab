"""What every method promises: the target's own greedy output, or its distribution, whatever is drafted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from environments import ENVIRONMENT
from method_specs import filled_in, kind_of, one_of_each_kind, specs, variants
from nightly import nightly_except
from scipy.stats import chisquare
from tiny_heads import put_beside, trained
from tiny_models import (
    AS_NATIVE,
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    fill,
    make_requests,
    make_runner,
    outputs,
    plain_greedy,
    plain_logits,
    sharp_llama,
    tiny_llama,
    with_references,
)
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessorList,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import init_fields
from specbench_kit.decoding import rules
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafting.base import DRAFT, Capability, drafters
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler, draw
from specbench_kit.decoding.session import Request
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Method, Policy, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Runner

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter

LONG = 24
"""Output tokens of the greedy tests."""


@dataclass(frozen=True)
class TopTwoTree(Method):
    """A full binary tree of the draft model's two best tokens at each node."""

    depth: int
    proposal = "top"
    required_capability = Capability.TREES

    def policy(self) -> Policy:
        return _TopTwoPolicy(self.depth)


@dataclass
class _TopTwoPolicy(Policy):
    depth: int

    def draft(self, drafter: "Drafter") -> None:
        frontier = [(draft, [0]) for draft in drafter.drafts]
        for _ in range(self.depth):
            frontier = [
                (draft, nodes)
                for draft, nodes in frontier
                if nodes and drafter.room(draft) >= 2 * len(nodes)
            ]
            if not frontier:
                return
            forward = drafter.expand(frontier)
            best = iter(enumerate(forward.logits.topk(2, dim=-1).indices.tolist()))
            frontier = [
                (
                    draft,
                    [
                        draft.tree.add(token, node, forward, row)
                        for node in nodes
                        for row, pair in [next(best)]
                        for token in pair
                    ],
                )
                for draft, nodes in frontier
            ]


TREES = {"tree of depth 2": TopTwoTree(2), "tree of depth 3": TopTwoTree(3)}
SPECS = specs()
DRAFTED = [
    f"{spec}{',' if ':' in spec else ':'}drafter={drafter}"
    for name, kind in methods.all().items()
    for drafter, offered in drafters.all().items()
    if "drafter" in {option.name for option in init_fields(kind)}
    and drafter not in (kind.drafter, "grammar")
    and offered.capability >= kind.required_capability
    for spec in variants(name)[:1]
]
"""Every method with every other drafter that offers what it asks and needs no grammar."""
PLAIN = [name for name, kind in methods.all().items() if issubclass(kind, Autoregressive)]
"""Methods that draft nothing, whose decoding is autoregressive's own."""
UNDRAFTED = [
    spec
    for spec in SPECS
    if spec not in PLAIN and not methods.get(spec.partition(":")[0]).uses_drafter
]
"""Methods of a loop of their own that draft nothing."""
SPECULATIVE = [*(spec for spec in SPECS if spec not in (*PLAIN, *UNDRAFTED)), *TREES]
MODELLED = [spec for spec in SPECULATIVE if spec in TREES or parse_method(spec).drafting.models]
"""Those that draft with a model, which agrees with the target now and then on any text."""
EVERY = ["autoregressive", *UNDRAFTED, *SPECULATIVE]


SAMPLED = one_of_each_kind()
KINDS_WITH_DRAFTERS = list(
    {
        (kind_of(parse_method(spec)), spec.rpartition("drafter=")[2]): spec for spec in DRAFTED
    }.values()
)
"""One method of every kind with each drafter."""
SAMPLED_WITH_DRAFTERS = [
    spec
    for spec in KINDS_WITH_DRAFTERS
    if (
        spec.endswith("drafter=head")
        and spec.startswith(("pearl", "sampled-tree", "specinfer", "specpipe"))
    )
    or (spec.startswith("block-verification") and parse_method(spec).drafting.models)
]
"""One rule with every drafter that forwards a model; with a head, methods of each proposal and of each loop. All others
follow the same code with another policy."""


KINDS = [spec for spec in SAMPLED if spec in EVERY]
every_method = pytest.mark.parametrize("method", EVERY, indirect=True)
# For what the engine does whatever a policy decides.
one_method_of_every_kind = pytest.mark.parametrize(
    "method", nightly_except(KINDS, EVERY), indirect=True
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders and files that specs name."""
    return filled_in(tmp_path_factory.mktemp("places"))


@pytest.fixture
def method(request: pytest.FixtureRequest, places: dict[str, Path]) -> Method:
    """The method of a spec, ready for the pair."""
    spec: str = request.param
    return (
        TREES[spec] if spec in TREES else parse_method(spec.format(**places)).prepare(ENVIRONMENT)
    )


@pytest.fixture
def spec(request: pytest.FixtureRequest) -> str:
    """The spec of the test's method."""
    spec: str = request.node.callspec.params["method"]
    return spec


Runners = tuple[Runner, Runner]
ModelPair = tuple[PreTrainedModel, PreTrainedModel]


def run(
    method: Method, runners: Runners, requests: Sequence[Request], **options: Any
) -> dict[str, RequestRecord]:
    """Decode; a method that reads the target's answer is given it."""
    if method.needs_reference:
        answers = decode(AUTOREGRESSIVE, runners, requests, **options)
        requests = with_references(requests, answers)
    return decode(method, runners, requests, **options)


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0, **AS_NATIVE)


@pytest.fixture(scope="module")
def head(
    target: PreTrainedModel, prompts: list[list[int]], answers: dict[str, list[int]]
) -> HeadModel:
    return trained(target, prompts, [answers[name] for name in sorted(answers)])


@pytest.fixture(scope="module")
def runners(target: PreTrainedModel, head: HeadModel) -> Runners:
    runner = make_runner(target, 8, 256)
    put_beside(runner, head)
    return runner, make_runner(disturbed(target, 0.01), 8, 256)


@pytest.fixture(scope="module")
def prompts(target: PreTrainedModel) -> list[list[int]]:
    return clear_prompts(target, [1, 2, 90, 5, 14, 23, 64, 3, 40, 9, 63], LONG)


@pytest.fixture(scope="module")
def answers(target: PreTrainedModel, prompts: list[list[int]]) -> dict[str, list[int]]:
    """Greedy continuations computed by the transformers model alone, without any cache."""
    return {
        request.id: plain_greedy(target, request.prompt_ids, LONG)[0]
        for request in make_requests(prompts, LONG)
    }


@every_method
def test_greedy_output_is_the_targets(
    method: Method,
    spec: str,
    runners: Runners,
    prompts: list[list[int]],
    answers: dict[str, list[int]],
) -> None:
    """Three requests at a time; tokens were accepted and rejected; and only a method that says so submits trees.

    A server that verifies chains alone relies on what a method says. A tree has more nodes than levels.
    """
    records = run(method, runners, make_requests(prompts, LONG), batch_size=3)
    assert outputs(records) == answers
    assert {record.finish_reason for record in records.values()} == {"length"}
    if spec in MODELLED:
        rounds = [step for record in records.values() for step in record.rounds]
        assert sum(step.accepted for step in rounds) > 20
        assert sum(step.drafted - step.accepted for step in rounds) > 20
        # A pipeline that takes one token per step holds a chain.
        is_tree = method.pipeline.width > 1 if method.pipeline else method.submits_trees
        assert _branches(rounds) == is_tree


def _branches(rounds: Iterable[RoundRecord]) -> bool:
    """Tell whether any round submitted a tree that is not a chain."""
    return any(step.submitted > (step.deepest or 0) for step in rounds if step.submitted)


SHAPED = ["specinfer:branching=1-1-1", "specedge:tree=chain,depth=3", "specedge"]
"""Methods whose options decide whether they submit trees, in a form that no variant has."""


@pytest.mark.parametrize("method", SHAPED, indirect=True)
def test_a_method_says_if_it_submits_trees(
    method: Method, runners: Runners, prompts: list[list[int]]
) -> None:
    records = run(method, runners, make_requests(prompts, LONG), batch_size=3)
    assert (
        _branches(step for record in records.values() for step in record.rounds)
        == method.submits_trees
    )


@pytest.mark.parametrize(
    ("method", "batch_size"),
    nightly_except(list(product(KINDS, [1, 8])), product(EVERY, [1, 8])),
    indirect=["method"],
)
def test_greedy_output_is_the_targets_at_other_batch_sizes(
    method: Method,
    batch_size: int,
    runners: Runners,
    prompts: list[list[int]],
    answers: dict[str, list[int]],
) -> None:
    records = run(method, runners, make_requests(prompts, LONG), batch_size=batch_size)
    assert outputs(records) == answers


@pytest.mark.parametrize("method", nightly_except(KINDS_WITH_DRAFTERS, DRAFTED), indirect=True)
def test_greedy_output_is_the_targets_with_every_drafter(
    method: Method, runners: Runners, prompts: list[list[int]], answers: dict[str, list[int]]
) -> None:
    assert outputs(run(method, runners, make_requests(prompts, LONG), batch_size=3)) == answers


@one_method_of_every_kind
def test_output_ends_with_the_first_end_of_sequence(
    method: Method, runners: Runners, prompts: list[list[int]], answers: dict[str, list[int]]
) -> None:
    ends = {answers["000"][4], answers["003"][7], answers["005"][2]}
    expected = {name: _until(answer, ends) for name, answer in answers.items()}
    records = run(
        method,
        runners,
        make_requests(prompts, LONG),
        eos_ids=frozenset({*ends, 63_000}),
        batch_size=3,
    )
    assert outputs(records) == expected
    for name, record in records.items():
        assert record.finish_reason == ("eos" if ends & {*expected[name]} else "length")


def test_end_of_sequence_cuts_an_accepted_block(
    runners: Runners, prompts: list[list[int]], answers: dict[str, list[int]]
) -> None:
    """The test above meets this case: nothing after the end joins the output, and the record says so."""
    cut = []
    for token in {answers["000"][4], answers["003"][7], answers["005"][2]}:
        records = run(
            parse_method("fixed-k"),
            runners,
            make_requests(prompts, LONG),
            eos_ids=frozenset({token}),
        )
        last = [record.rounds[-1] for record in records.values() if record.finish_reason == "eos"]
        cut += [step for step in last if step.committed <= step.accepted]
    assert cut


@one_method_of_every_kind
def test_output_is_never_longer_than_asked(
    method: Method,
    target: PreTrainedModel,
    head: HeadModel,
    prompts: list[list[int]],
    answers: dict[str, list[int]],
) -> None:
    agreeing = make_runner(target, 3, 256), make_runner(disturbed(target, 0.0005), 3, 256)
    put_beside(agreeing[0], head)
    lengths = {name: 1 + index % 7 for index, name in enumerate(answers)}
    requests = [
        replace(request, max_new_tokens=lengths[request.id])
        for request in make_requests(prompts, 1)
    ]
    records = run(method, agreeing, requests, batch_size=3)
    assert outputs(records) == {name: answer[: lengths[name]] for name, answer in answers.items()}
    if method.uses_drafter and DRAFT in method.drafting.models and not method.needs_reference:
        rounds = [record.rounds[-1] for record in records.values()]
        assert any(step.committed <= step.accepted for step in rounds)


def _full_llama() -> PreTrainedModel:
    return tiny_llama(3, max_position_embeddings=32, **AS_NATIVE)


def _full_gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    return fill(GPT2LMHeadModel(config), 4)


@pytest.mark.parametrize(
    ("method", "make_model"),
    nightly_except(
        [(spec, _full_llama) for spec in EVERY], product(EVERY, [_full_llama, _full_gpt2])
    ),
    indirect=["method"],
)
def test_output_ends_with_the_context(
    method: Method, spec: str, make_model: Callable[[], PreTrainedModel]
) -> None:
    """Requests of different length in one batch, up to the last position that the model has."""
    runners, prompts, expected = _filled(make_model)
    for batch_size in (1, 3) if spec in SAMPLED else (3,):
        records = run(method, runners, make_requests(prompts, 1000), batch_size=batch_size)
        assert outputs(records) == expected


@cache
def _filled(
    make_model: Callable[[], PreTrainedModel],
) -> tuple[Runners, list[list[int]], dict[str, list[int]]]:
    """A pair, prompts, and what fills the context up after each of them."""
    model, context = make_model(), 32
    runners = make_runner(model, 3, context), make_runner(disturbed(model, 0.002), 3, context)
    lengths = [31, 20, 28, 1, 30, 25]
    prompts = clear_prompts(model, lengths, 1)
    expected = {
        request.id: plain_greedy(model, request.prompt_ids, context - length)[0]
        for request, length in zip(make_requests(prompts, 1), lengths, strict=True)
    }
    return runners, prompts, expected


def _until(answer: list[int], ends: Iterable[int]) -> list[int]:
    """Return the answer up to and with its first end token."""
    end_positions = [answer.index(token) for token in ends if token in answer]
    return answer[: min(end_positions) + 1] if end_positions else answer


# Sampling: a vocabulary small enough to count every outcome.

VOCABULARY = 6
DRAWS = 20_000
ENOUGH = 2000
"""Draws in which a fault of the kinds below is found without a doubt; every night it is `DRAWS`."""
SLOW_DRAWS = 1000
START = (2,)
PROCESSED = Sampler(temperature=1.3, top_p=0.9, top_k=4)


@pytest.fixture(scope="module")
def small() -> ModelPair:
    return sharp_llama(6, VOCABULARY), sharp_llama(2, VOCABULARY)


def processed(model: PreTrainedModel, tokens: Sequence[int], sampler: Sampler) -> torch.Tensor:
    """The next token's distribution, with the logits processors of transformers."""
    chain = LogitsProcessorList([TemperatureLogitsWarper(sampler.temperature)])
    if sampler.top_k:
        chain.append(TopKLogitsWarper(sampler.top_k))
    if sampler.top_p < 1:
        chain.append(TopPLogitsWarper(sampler.top_p))
    scores: Any = plain_logits(model, tokens)[-1:]
    probabilities: torch.Tensor = (
        chain(torch.tensor([list(tokens)]), scores).softmax(-1)[0].double()
    )
    return probabilities


@cache
def joint(model: PreTrainedModel, length: int, sampler: Sampler) -> dict[tuple[int, ...], float]:
    """Exact probability of every output of that length."""
    table: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        table = {
            (*tokens, token): chance * float(following[token])
            for tokens, chance in table.items()
            if chance
            for following in [processed(model, (*START, *tokens), sampler)]
            for token in range(VOCABULARY)
        }
    return table


def p_value(records: dict[str, RequestRecord], wanted: dict[tuple[int, ...], float]) -> float:
    """Chi-square over all outputs; those expected fewer than five times count as one. Impossible ones give 0."""
    counts = dict.fromkeys(wanted, 0)
    for record in records.values():
        counts[tuple(record.output_ids)] += 1
    if any(count and not wanted[tokens] for tokens, count in counts.items()):
        return 0.0
    common = [tokens for tokens in wanted if wanted[tokens] * len(records) >= 5]
    observed = [counts[tokens] for tokens in common]
    expected = [wanted[tokens] * len(records) for tokens in common]
    rare_count = len(records) - sum(expected)
    if rare_count > 1e-3 * len(records):
        observed, expected = [*observed, len(records) - sum(observed)], [*expected, rare_count]
    scale = sum(observed) / sum(expected)
    return float(chisquare(observed, [value * scale for value in expected]).pvalue)


def sample(
    method: Method, pair: ModelPair, length: int, sampler: Sampler, draws: int = DRAWS
) -> dict[str, RequestRecord]:
    runners = make_runner(pair[0], 400, 40), make_runner(pair[1], 400, 40)
    # a pipeline takes one request at a time; what is looked up draws plain decoding's own tokens, as is tested below
    # and what a policy draws token by token is slow, and enumerated in tests/decoding/test_drawn_rules.py
    own = method.own_distributions or method.verification.endswith("replacement")
    if method.pipeline or not method.drafting.models or own:
        draws = min(draws, SLOW_DRAWS) if draws >= ENOUGH else draws // 10
    requests = make_requests([START] * draws, length)
    batch_size = 16 if method.pipeline else 400
    return run(method, runners, requests, sampler=sampler, seed=11, batch_size=batch_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "draws"),
    nightly_except([(spec, ENOUGH) for spec in SAMPLED[::2]], product(SAMPLED, (ENOUGH, DRAWS))),
    indirect=["method"],
)
def test_sampling_keeps_the_targets_distribution(
    method: Method, draws: int, small: ModelPair
) -> None:
    records = sample(method, small, 2, Sampler(temperature=1.0), draws)
    assert p_value(records, joint(small[0], 2, Sampler(temperature=1.0))) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    nightly_except(
        SAMPLED_WITH_DRAFTERS[::2], [spec for spec in DRAFTED if parse_method(spec).drafting.models]
    ),
    indirect=True,
)
def test_sampling_keeps_the_targets_distribution_with_every_drafter(
    method: Method, small: ModelPair
) -> None:
    records = sample(method, small, 3, Sampler(temperature=1.0), draws=1500)
    assert p_value(records, joint(small[0], 3, Sampler(temperature=1.0))) > 1e-3


LOOK_UPS = [
    spec
    for spec in [*SPECULATIVE, *DRAFTED]
    if spec not in TREES and not parse_method(spec).drafting.models
]


@pytest.mark.parametrize(
    ("method", "temperature"),
    nightly_except(
        [
            *((spec, 0.0) for spec in LOOK_UPS),
            *((spec, 1.0) for spec in (*SAMPLED, *KINDS_WITH_DRAFTERS) if spec in LOOK_UPS),
        ],
        product(LOOK_UPS, (0.0, 1.0)),
    ),
    indirect=["method"],
)
def test_what_is_looked_up_changes_no_token(
    method: Method, temperature: float, small: ModelPair
) -> None:
    """With the same seed, sampling too draws what plain decoding draws; and repeated text takes fewer rounds.

    What is drawn repeats itself less than the likeliest text, which ends in a loop: methods that weigh the gain see a
    handful of refused tokens, and hardly draft any more.
    """
    runners = make_runner(small[0], 8, 64), make_runner(small[1], 8, 64)
    requests, sampler = (
        make_requests([START, (1, 4), (3,), (5, 0, 2)], 40),
        Sampler(temperature=temperature),
    )
    plain = decode(AUTOREGRESSIVE, runners, requests, sampler=sampler)
    for batch_size in (1, 3, 8):
        records = run(method, runners, requests, sampler=sampler, batch_size=batch_size)
        assert outputs(records) == outputs(plain)
        rounds = [step for record in records.values() for step in record.rounds]
        submitted, accepted = (
            sum(getattr(step, name) for step in rounds) for name in ("submitted", "accepted")
        )
        assert accepted > (0 if temperature else 10) or (temperature and submitted < 10)
        assert sum(step.drafted - step.accepted for step in rounds) > 0 or method.needs_reference


@pytest.mark.parametrize(
    "method", ["fixed-k:drafter=cascade", "threshold:drafter=cascade"], indirect=True
)
def test_what_a_cascade_draws_does_not_depend_on_the_batch(
    method: Method, small: ModelPair
) -> None:
    """The policy looks at one request's tokens alone there: others draft to another length in other company."""
    runners = make_runner(small[0], 8, 64), make_runner(small[1], 8, 64)
    requests, sampler = (
        make_requests([START, (1, 4), (3,), (5, 0, 2), (2, 2)], 30),
        Sampler(temperature=1.0),
    )
    outputs_by_batch_size = [
        outputs(run(method, runners, requests, sampler=sampler, batch_size=size))
        for size in (1, 3, 8)
    ]
    assert outputs_by_batch_size[0] == outputs_by_batch_size[1] == outputs_by_batch_size[2]


REFUSED = [
    (name, drafter)
    for name, kind in methods.all().items()
    for drafter, offered in drafters.all().items()
    if "drafter" in {option.name for option in init_fields(kind)}
    and offered.capability < kind.required_capability
]


@pytest.mark.parametrize(("name", "drafter"), REFUSED)
def test_a_drafter_that_says_too_little_is_refused_in_one_line(name: str, drafter: str) -> None:
    with pytest.raises(SkitError) as refused:
        parse_method(f"{name}:drafter={drafter}")
    assert f"{name} reads " in str(refused.value)
    assert f"drafter '{drafter}'" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("spec", DRAFTED)
def test_a_method_made_ready_drafts_with_what_was_asked(spec: str, places: dict[str, Path]) -> None:
    method = parse_method(spec.format(**places))
    assert method.prepare(ENVIRONMENT).drafting == method.drafting


PROCESSED_METHODS = [("fixed-k:k=2", 3), ("threshold:max_draft=3", 2), ("tree of depth 2", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "length", "draws"),
    nightly_except(
        [(*case, ENOUGH) for case in PROCESSED_METHODS],
        [(*case, draws) for case in PROCESSED_METHODS for draws in (ENOUGH, DRAWS)],
    ),
    indirect=["method"],
)
def test_sampling_keeps_the_targets_processed_distribution(
    method: Method, length: int, draws: int, small: ModelPair
) -> None:
    records = sample(method, small, length, PROCESSED, draws)
    assert p_value(records, joint(small[0], length, PROCESSED)) > 1e-3
    rounds = [step for record in records.values() for step in record.rounds]
    assert sum(step.accepted for step in rounds) > draws / 20
    assert sum(step.submitted - step.accepted for step in rounds) > draws / 20


def _from_target(
    tree: TokenTree, nodes: Sequence[int], target: torch.Tensor, random: RequestRandom
) -> tuple[list[int], int]:
    """Wrong on purpose: after a rejection the extra token comes from p, not from what p has left over q."""
    for position, node in enumerate(nodes):
        source, row = tree.source(node)
        assert isinstance(source, DraftForward)
        token = tree.tokens[node]
        if random.uniform("accept") * float(source.probabilities[row][token]) > float(
            target[position, token]
        ):
            return list(nodes[:position]), draw(target[position, None], [random.uniform("target")])[
                0
            ]
    return list(nodes), draw(target[len(nodes), None], [random.uniform("target")])[0]


def test_the_distribution_check_catches_a_wrong_rule(
    small: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Sampler(temperature=1.0)
    target, draft = (processed(model, START, sampler) for model in small)
    assert (target - draft).abs().sum() / 2 > 0.25
    monkeypatch.setattr(rules, "residual", _from_target)
    records = sample(parse_method("fixed-k"), small, 2, sampler, ENOUGH)
    assert p_value(records, joint(small[0], 2, sampler)) < 1e-6


class ForgetfulTree(TopTwoTree):
    """A tree of likely tokens that does not say so."""

    proposal = "sample"


def test_a_tree_that_forgets_its_proposal_keeps_the_distribution(
    small: ModelPair,
) -> None:
    """The rule follows from how the nodes were proposed, not from what the method says of itself."""
    records = sample(ForgetfulTree(2), small, 2, Sampler(temperature=1.0), draws=4000)
    assert p_value(records, joint(small[0], 2, Sampler(temperature=1.0))) > 1e-3
    assert sum(step.accepted for record in records.values() for step in record.rounds) > 400


@dataclass(frozen=True)
class Withholding(Method):
    """Wrong on purpose: whether it sends a sampled token depends on which one it is."""

    def policy(self) -> Policy:
        return _WithholdingPolicy()


class _WithholdingPolicy(Policy):
    def draft(self, drafter: "Drafter") -> None:
        drafter.extend(drafter.drafts)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [[1] if draft.tree.tokens[1] == 3 else [] for draft in drafts]


def test_the_distribution_check_catches_a_policy_that_picks_by_the_token(
    small: ModelPair,
) -> None:
    """The draft distribution, or a token that is sent too, may decide what is sent: not a token that it drops."""
    records = sample(Withholding(), small, 2, Sampler(temperature=1.0), ENOUGH)
    assert p_value(records, joint(small[0], 2, Sampler(temperature=1.0))) < 1e-6

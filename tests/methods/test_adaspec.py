"""How long a batch drafts, what is dropped before it is sent, and what the latency model is asked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
from environments import ENVIRONMENT
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)
from tiny_predictors import PAIR
from trace_builders import MAX_DRAFT, made_requests

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.distributions import NodeStats
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.latency import (
    BatchSums,
    ContextModel,
    LatencyModel,
    LeapModel,
    Row,
    TableModel,
)
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.adaspec import AdaSpec
from specbench_kit.methods.base import Environment, Latencies, Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

DRAFT = ContextModel(alpha_s=2e-8, gamma_s=2e-5, delta_s=1e-3)
VERIFY = ContextModel(alpha_s=2e-7, gamma_s=4e-4, delta_s=8e-3)
LATENCIES = Latencies(DRAFT, VERIFY)
CONTEXT = 300


@dataclass
class KnownChance:
    """A distribution whose drafted token has a known probability."""

    chance: float
    sampled: bool = True

    def stats(self, row: int, token: int) -> NodeStats:
        return NodeStats(self.chance, 0.0, 0.0, 0.0, self.chance)

    def probability(self, row: int, token: int) -> float:
        return self.chance


@dataclass
class ChanceDrafter:
    """Drafts tokens of known probabilities, as many as there are: the i-th list is the i-th request's."""

    chances: Sequence[Sequence[float]]
    context: int = CONTEXT
    drafts: list[Draft] = field(default_factory=list)

    def __post_init__(self) -> None:
        sessions = [make_session(str(i), self.context) for i in range(len(self.chances))]
        self.drafts = [Draft(session, TokenTree(session.tokens[-1])) for session in sessions]

    def room(self, draft: Draft) -> int:
        return len(self.chances[int(draft.request_id)]) - draft.tree.last

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        grown = [draft for draft in drafts if self.room(draft) > 0]
        for draft in grown:
            draft.tree.add(
                7,
                draft.tree.last,
                KnownChance(self.chances[int(draft.request_id)][draft.tree.last]),
                0,
            )
        return grown


def make_session(name: str, context: int) -> Session:
    prompt = (1,) * context
    return Session(
        Request(name, "test", prompt, 100),
        RequestRandom(0, name),
        frozenset(),
        0.0,
        RequestRecord(name, "test", []),
    )


@dataclass
class Play:
    """One policy over many rounds of drafts with known probabilities."""

    options: AdaSpec = field(default_factory=AdaSpec)
    latencies: Latencies = LATENCIES

    def __post_init__(self) -> None:
        surroundings = Environment(PAIR, lambda: self.latencies)
        self.policy = self.options.prepare(surroundings).policy()

    def __call__(
        self, chances: Sequence[Sequence[float]], context: int = CONTEXT
    ) -> tuple[list[int], list[list[int]]]:
        """Tokens drafted per request, and the nodes chosen."""
        drafter = ChanceDrafter(chances, context)
        self.policy.draft(drafter)
        return [draft.tree.last for draft in drafter.drafts], self.policy.choose(drafter.drafts)


def steady(draft_s: float, verify_s: float = 1.0) -> Latencies:
    """Forwards that take the same time whatever is in them."""
    return Latencies(TableModel((draft_s,)), TableModel((verify_s,)))


# What a round takes, and what it is expected to yield, in the paper's closed forms.


def drafting_s(batch: int, context: int, steps: int, model: ContextModel = DRAFT) -> float:
    return sum(
        model.alpha_s * batch * (context + k) + model.gamma_s * batch + model.delta_s
        for k in range(steps)
    )


def verifying_s(batch: int, context: int, steps: int, model: ContextModel = VERIFY) -> float:
    read = (steps + 1) * context + steps * (steps + 1) / 2
    return model.alpha_s * batch * read + model.gamma_s * batch * (steps + 1) + model.delta_s


def expected_tokens(chances: Sequence[Sequence[float]], lengths: Sequence[int]) -> float:
    return sum(
        1 + float(np.cumprod(entry[:length]).sum())
        for entry, length in zip(chances, lengths, strict=True)
    )


def throughput(chances: Sequence[Sequence[float]], lengths: Sequence[int], drafted: int) -> float:
    """Expected tokens per second where all drafted `drafted` tokens and sent the first `lengths`."""
    context, batch = CONTEXT - 1, len(chances)
    verify_s = (
        sum(verifying_s(1, context, length) for length in lengths) - (batch - 1) * VERIFY.delta_s
    )
    return expected_tokens(chances, lengths) / (drafting_s(batch, context, drafted) + verify_s)


@dataclass
class Asked(LatencyModel):
    """A latency model that remembers what it was asked."""

    model: LatencyModel
    rows: list[list[Row]] = field(default_factory=list)

    def of_sums(self, sums: BatchSums) -> float:
        return self.model.of_sums(sums)

    def seconds(self, rows: Sequence[Row]) -> float:
        if list(rows) not in self.rows:
            self.rows.append(list(rows))
        return self.model.seconds(rows)


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("steps", [1, 2, 8])
def test_a_context_model_gives_the_papers_closed_forms(batch: int, steps: int) -> None:
    """L are the tokens in KV: all of the context but the last one, which is the first to be forwarded."""
    requested = Latencies(Asked(DRAFT), Asked(VERIFY))
    play = Play(AdaSpec(max_draft=steps, elimination=False), requested)
    assert play([[1.0] * steps] * batch)[0] == [steps] * batch
    draft_s = sum(DRAFT.seconds(rows) for rows in requested.draft.rows)
    assert draft_s == pytest.approx(drafting_s(batch, CONTEXT - 1, steps))
    assert [VERIFY.seconds(rows) for rows in requested.verify.rows] == pytest.approx(
        [verifying_s(batch, CONTEXT - 1, s) for s in range(steps + 1)]
    )


def test_requests_of_different_length_count_with_their_own(runners: tuple[object, object]) -> None:
    requested = Latencies(Asked(TableModel((0.001,))), Asked(TableModel((1.0,))))
    method = AdaSpec(max_draft=2, elimination=False).prepare(Environment(PAIR, lambda: requested))
    decode(method, runners, make_requests(random_prompts([5, 30], 64), 1), batch_size=2)
    assert requested.draft.rows == [[(1, 4), (1, 29)], [(1, 5), (1, 30)]]
    assert requested.verify.rows == [[(n, 4), (n, 29)] for n in (1, 2, 3)]


# When drafting stops. A verification takes 1 s here, so plain decoding gives one token per second.


@pytest.mark.parametrize(("draft_s", "drafted"), [(0.25, 8), (0.499, 8), (0.5, 0), (0.6, 0)])
def test_speculation_has_to_promise_more_than_plain_decoding(draft_s: float, drafted: int) -> None:
    """With 0.5 expected of the first token, half a second for it is no gain yet."""
    assert Play(AdaSpec(initial_confidence=0.5), steady(draft_s))([[1.0] * 8]) == (
        [drafted],
        [[*range(1, drafted + 1)]],
    )


@pytest.mark.parametrize(("second_s", "drafted"), [(0.625, 2), (0.626, 1)])
def test_a_tie_continues(second_s: float, drafted: int) -> None:
    """2 tokens in 1.25 s, then 3 in 1.875 s; a third step would take a second."""
    model = ContextModel(alpha_s=second_s - 0.25, gamma_s=0.0, delta_s=0.25)
    play = Play(AdaSpec(), Latencies(model, TableModel((1.0,))))
    assert play([[1.0] * 8], context=1)[0] == [drafted]


@pytest.mark.parametrize(("chance", "learned"), [(0.24, 0.6), (0.25, 0.25), (0.26, 0.26)])
def test_the_token_that_slows_the_batch_down_is_kept_the_last_and_teaches_nothing(
    chance: float, learned: float
) -> None:
    """From 0.25 on, a token in a quarter of a second is no loss; the next one would be."""
    play = Play(AdaSpec(elimination=False), steady(0.25))
    assert play([[chance, 1.0, 1.0]]) == ([1], [[1]])
    assert play.policy.confidence == learned


def test_one_unsure_request_does_not_stop_a_batch() -> None:
    sure, unsure = [0.95] * 4, [0.05] * 4
    assert Play(AdaSpec(max_draft=4), steady(0.1))([sure, sure, unsure])[0] == [4, 4, 4]
    assert Play(AdaSpec(max_draft=4), steady(0.1))([unsure, unsure, unsure])[0] == [1, 1, 1]


def test_the_average_is_of_all_tokens_that_did_not_slow_the_batch_down() -> None:
    play = Play(AdaSpec(max_draft=4, elimination=False), steady(0.1))
    assert play.policy.confidence == 0.6
    play([[0.01] * 4])
    assert play.policy.confidence == 0.6
    assert play([[0.9, 0.8, 0.02, 1.0], [0.7, 0.95, 0.01, 1.0]])[0] == [3, 3]
    assert play.policy.confidence == pytest.approx(np.mean([0.9, 0.8, 0.7, 0.95]))
    play([[1.0, 1.0, 1.0, 1.0]])
    assert play.policy.confidence == pytest.approx(np.mean([0.9, 0.8, 0.7, 0.95, 1, 1, 1, 1]))


def test_the_average_decides_the_next_round() -> None:
    """A step of 0.7 s pays where more than 0.7 is expected; 0.6 is, before anything was seen."""
    assert Play(AdaSpec(), steady(0.7))([[0.9] * 8])[0] == [0]
    play = Play(AdaSpec(initial_confidence=0.8, max_draft=2), steady(0.7))
    assert play([[0.72, 1.0]])[0] == [1]
    assert play.policy.confidence == 0.72
    assert play([[0.9, 1.0]])[0] == [1]
    assert play([[1.0, 1.0]])[0] == [2]


def test_a_request_without_room_leaves_the_batch_to_the_others() -> None:
    lengths, chosen = Play(AdaSpec(max_draft=5), steady(0.1))([[0.9] * 8, [0.9] * 2, []])
    assert lengths == [5, 2, 0]
    assert chosen == [[1, 2, 3, 4, 5], [1, 2], []]
    assert Play(latencies=steady(0.1))([[], []]) == ([0, 0], [[], []])


# What is dropped.


def random_chances(seed: int, batch: int, length: int = 8) -> list[list[float]]:
    dice = np.random.default_rng(seed)
    return (dice.random((batch, length)) ** dice.choice([0.2, 0.5, 1.0])).round(2).tolist()


@pytest.mark.parametrize("seed", range(60))
def test_the_least_likely_tokens_go_while_that_makes_the_batch_faster(seed: int) -> None:
    """Each drop was a gain, the next one would be none; nothing that stays is less likely than what went."""
    batch = [1, 2, 4, 16][seed % 4]
    chances = random_chances(seed, batch)
    (drafted, *_), chosen = Play()(chances)
    lengths = [len(nodes) for nodes in chosen]
    assert chosen == [list(range(1, length + 1)) for length in lengths]
    order = sorted(
        (float(np.prod(entry[:end])), -end, row)
        for row, entry in enumerate(chances)
        for end in range(1, drafted + 1)
    )
    current = [drafted] * batch
    dropped = drafted * batch - sum(lengths)
    for count, (_, _, row) in enumerate(order):
        after = [length - (i == row) for i, length in enumerate(current)]
        gain = throughput(chances, after, drafted) - throughput(chances, current, drafted)
        assert gain > -1e-9 if count < dropped else gain < 1e-9
        if count >= dropped:
            break
        current = after
    assert lengths == current


def test_a_step_of_the_costs_is_reached_past_a_drop_that_gains_nothing() -> None:
    """Up to six tokens take 1 s, up to twelve 1.1 s.

    Eight tokens give 5.657 / 1.1 = 5.143 and seven 5.655 / 1.1 = 5.141, which is no gain, but six 5.610 / 1: the two
    unlikely tokens go together. Five would give 4.752 / 1.
    """
    costs = Latencies(TableModel((0.0,)), LeapModel(forward_s=1.0, leap_s=0.1, tile=6))
    chances = [[0.95, 0.95, 0.95], [0.9, 0.05, 0.05]]
    assert Play(AdaSpec(max_draft=3), costs)(chances) == ([3, 3], [[1, 2, 3], [1]])


@pytest.mark.parametrize("seed", range(30))
def test_elimination_finds_the_best_lengths_of_all_where_costs_rise_in_steps(seed: int) -> None:
    costs = LeapModel(forward_s=0.01, leap_s=0.0015, tile=4)
    chances = random_chances(seed, 3)
    (drafted, *_), chosen = Play(latencies=Latencies(DRAFT, costs))(chances)
    draft_s = drafting_s(3, CONTEXT - 1, drafted)

    def rate(lengths: Sequence[int]) -> float:
        return expected_tokens(chances, lengths) / (
            draft_s + costs.seconds([(1 + n, CONTEXT - 1) for n in lengths])
        )

    best = max(map(rate, product(range(drafted + 1), repeat=3)))
    assert rate([len(nodes) for nodes in chosen]) == pytest.approx(best)


def test_the_elimination_test_saw_some_of_everything() -> None:
    """Rounds without a draft, rounds that keep all of it, requests that end with none, with some and with all."""
    outcomes = set()
    for seed in range(60):
        lengths, chosen = Play()(random_chances(seed, [1, 2, 4, 16][seed % 4]))
        for drafted, nodes in zip(lengths, chosen, strict=True):
            outcomes.add(
                "plain"
                if not drafted
                else "none"
                if not nodes
                else "all"
                if len(nodes) == drafted
                else "some"
            )
    assert outcomes == {"none", "some", "all"}


def test_a_request_may_end_with_none_and_a_batch_too() -> None:
    hopeless, sure = [0.01] * 8, [0.99] * 8
    (drafted, *_), chosen = Play()([sure, hopeless, sure])
    assert (drafted, chosen) == (3, [[1, 2, 3], [], [1, 2, 3]])
    assert Play()([hopeless]) == ([1], [[]])


def test_of_equally_likely_tokens_the_deeper_goes_first() -> None:
    """A certain token leaves the cumulative probability as it is: nothing before it may go ahead of it."""
    lengths, chosen = Play(AdaSpec(max_draft=4))([[0.05, 1.0, 1.0, 1.0], [0.99] * 4, [0.99] * 4])
    assert lengths == [4, 4, 4]
    assert chosen == [[], [1, 2, 3, 4], [1, 2, 3, 4]]


def test_a_token_that_costs_nothing_stays() -> None:
    """Dropping it would be no gain, even where it is of no use."""
    assert Play(latencies=steady(0.1))([[0.0]]) == ([1], [[1]])


def test_without_elimination_all_that_was_drafted_is_sent() -> None:
    for seed in range(20):
        chances = random_chances(seed, 4)
        with_all, without = Play(AdaSpec(elimination=False))(chances), Play()(chances)
        assert with_all[0] == without[0]
        assert with_all[1] == [list(range(1, length + 1)) for length in with_all[0]]


# The objective.


@pytest.mark.parametrize("slo_ms", [8.0, 10.0, 12.0, 15.0, 20.0, 30.0])
def test_a_round_with_drafts_never_plans_to_exceed_the_slo(slo_ms: float) -> None:
    """Plain decoding of the larger batches exceeds the shorter limits, and goes on."""
    drafted_more = False
    for seed in range(40):
        batch = [1, 2, 4, 16][seed % 4]
        chances = random_chances(seed, batch)
        (free, *_), _ = Play(AdaSpec(elimination=False))(chances)
        (bound, *_), chosen = Play(AdaSpec(elimination=False, slo_tpot=slo_ms / 1e3))(chances)
        taken_s = drafting_s(batch, CONTEXT - 1, bound) + verifying_s(batch, CONTEXT - 1, bound)
        assert bound == 0 or taken_s <= slo_ms / 1e3
        assert bound <= free
        drafted_more |= bound < free
        assert [len(nodes) for nodes in chosen] == [bound] * batch
    assert drafted_more


def test_a_limit_that_even_plain_decoding_exceeds_means_plain_decoding() -> None:
    assert Play(AdaSpec(slo_tpot=0.5), steady(0.1))([[1.0] * 8]) == ([0], [[]])
    assert Play(AdaSpec(slo_tpot=1.1), steady(0.1))([[1.0] * 8])[0] == [1]
    assert Play(AdaSpec(slo_tpot=1.3), steady(0.1))([[1.0] * 8])[0] == [3]


def test_dropping_all_drafts_is_no_breach() -> None:
    """After drafting for 0.2 s, a plain verification takes 1 s and one of two tokens 1.1 s."""
    late = Latencies(TableModel((0.2,)), TableModel((1.0, 1.1)))
    assert Play(AdaSpec(slo_tpot=1.3), late)([[0.01]]) == ([1], [[]])
    assert Play(AdaSpec(slo_tpot=1.2999), late)([[1.0]]) == ([0], [[]])


# How good the lengths are.


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("spread", [0.0, 0.1])
@pytest.mark.parametrize("middle", [0.5, 0.7, 0.85])
def test_throughput_is_near_that_of_the_best_length(
    batch: int, spread: float, middle: float
) -> None:
    """Constant confidences give one peak; the best of all lengths is sought anew in every round."""
    dice, play = (
        np.random.default_rng(0),
        Play(AdaSpec(initial_confidence=middle, elimination=False)),
    )
    reached, best = [], []
    for _ in range(30):
        level = dice.uniform(middle - spread, middle + spread, batch)
        chances = [[chance] * 8 for chance in level]
        (drafted, *_), _ = play(chances)
        rates = [throughput(chances, [s] * batch, s) for s in range(9)]
        reached.append(rates[drafted])
        best.append(max(rates))
    assert sum(reached) >= 0.98 * sum(best)


def test_elimination_is_near_the_best_lengths_of_all() -> None:
    for seed in range(20):
        chances = random_chances(seed, 3)
        (drafted, *_), chosen = Play()(chances)
        best = max(
            throughput(chances, lengths, drafted)
            for lengths in product(range(drafted + 1), repeat=3)
        )
        assert throughput(chances, [len(nodes) for nodes in chosen], drafted) >= 0.98 * best


def test_drafts_grow_shorter_as_the_batch_grows() -> None:
    options = AdaSpec(initial_confidence=0.8)
    lengths = [Play(options)([[0.8] * 8] * batch)[0][0] for batch in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= 4
    assert lengths[-1] == 0
    assert len(set(lengths)) >= 4


# On recorded traces and live.


HEADER = TraceHeader(MAX_DRAFT, 0.001, (0.01,) * (MAX_DRAFT + 1), {})
PLACE = Deployment(
    "one machine", Endpoint("gpu", DRAFT), Endpoint("gpu", VERIFY), placement="server"
)


def replayed(spec: str, batch_size: int, traces: Sequence[RequestTrace]) -> list[RequestRecord]:
    method = parse_method(spec).prepare(environment(PAIR, PLACE))
    return list(replay(method, HEADER, traces, deployment=PLACE, batch_size=batch_size))


def mean_of(name: str, records: Sequence[RequestRecord]) -> float:
    return float(np.mean([getattr(step, name) for record in records for step in record.rounds]))


def test_replay_under_a_deployment_drafts_less_in_larger_batches() -> None:
    traces = made_requests(16)
    drafted = [
        mean_of("drafted", replayed(f"adaspec:max_draft={MAX_DRAFT}", size, traces))
        for size in (1, 4, 16)
    ]
    assert drafted[0] > drafted[1] > drafted[2] > 0


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_replay_decodes_no_slower_than_a_constant_length(batch_size: int) -> None:
    """Modelled time: the makespan of the same answers."""
    traces = made_requests(16)
    makespans = {
        spec: max(record.finished_s or 0.0 for record in replayed(spec, batch_size, traces))
        for spec in (
            f"adaspec:max_draft={MAX_DRAFT}",
            "autoregressive",
            *(f"fixed-k:k={k}" for k in (1, 2, 4, 6)),
        )
    }
    fastest = min(makespans.values())
    assert makespans[f"adaspec:max_draft={MAX_DRAFT}"] <= 1.02 * fastest


@pytest.fixture(scope="module")
def runners() -> tuple[object, object]:
    target = tiny_llama(0)
    return make_runner(target, 4, 200), make_runner(disturbed(target, 0.01), 4, 200)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(temperature=0.8)], ids=["greedy", "sampled"]
)
def test_live_output_is_the_targets(
    batch_size: int, sampler: Sampler, runners: tuple[object, object]
) -> None:
    """Under sampling too, token for token: a draw of the target decides at every place."""
    requests = make_requests(random_prompts([3, 9, 1, 30, 14, 22], 64), 40)
    answers = decode(AUTOREGRESSIVE, runners, requests, sampler=sampler, batch_size=batch_size)
    latencies = Latencies(ContextModel(2e-8, 2e-5, 3e-4), ContextModel(2e-7, 1e-3, 8e-3))
    method = AdaSpec().prepare(Environment(PAIR, lambda: latencies))
    records = decode(method, runners, requests, sampler=sampler, batch_size=batch_size)
    assert outputs(records) == outputs(answers)
    rounds = [step for record in records.values() for step in record.rounds]
    assert any(step.accepted for step in rounds)
    assert any(step.submitted < step.drafted for step in rounds)
    assert any(step.submitted == step.drafted > 0 for step in rounds)


# Options.


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        ("adaspec", AdaSpec()),
        ("adaspec:max_draft=5,slo_tpot=0.05", AdaSpec(5, 0.05)),
        (
            "adaspec:initial_confidence=0,elimination=false",
            AdaSpec(initial_confidence=0.0, elimination=False),
        ),
    ],
)
def test_specs_that_are_understood(spec: str, method: Method) -> None:
    assert parse_method(spec) == method


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adaspec:max_draft=0", "adaspec: max_draft must be at least 1, not 0"),
        ("adaspec:slo_tpot=0", "adaspec: slo_tpot must be a number of seconds above 0, not 0.0"),
        ("adaspec:slo_tpot=nan", "adaspec: slo_tpot must be a number of seconds above 0, not nan"),
        ("adaspec:slo_tpot=50ms", "adaspec: slo_tpot must be a number, not '50ms'"),
        ("adaspec:initial_confidence=1.2", "adaspec: initial_confidence must lie in 0..1, not 1.2"),
        ("adaspec:initial_confidence=nan", "adaspec: initial_confidence must lie in 0..1, not nan"),
        ("adaspec:elimination=no", "adaspec: elimination must be true or false, not 'no'"),
        (
            "adaspec:threshold=0.6",
            "adaspec: unknown option 'threshold'; known: max_draft, slo_tpot, ",
        ),
    ],
)
def test_specs_that_are_not(spec: str, message: str) -> None:
    with pytest.raises(SkitError, match=f"^{re.escape(message)}[^\n]*$"):
        parse_method(spec)


def test_it_needs_latencies() -> None:
    with pytest.raises(
        SkitError, match=r"^adaspec needs the latencies of the pair: call prepare first$"
    ):
        AdaSpec().policy()
    with pytest.raises(SkitError, match=r"^no latency profile [^\n]*: run skit [^\n]*$"):
        AdaSpec().prepare(environment(PAIR, None))
    assert AdaSpec().prepare(ENVIRONMENT).proposal == AdaSpec.proposal

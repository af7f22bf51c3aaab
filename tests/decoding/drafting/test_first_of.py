"""A hybrid drafter takes each round's tokens from one member, and all members stay in step with the text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import pytest
import torch
from environments import DEPLOYMENT
from nightly import nightly_except
from scipy.stats import chisquare
from tiny_heads import heads_beside, put_beside, trained, untrained
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    plain_greedy,
    plain_logits,
    random_prompts,
    tiny_llama,
)
from transformers import PreTrainedModel

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.detail import DetailCollector, RoundDetail
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.drafting.base import DRAFT, parse_drafter
from specbench_kit.decoding.drafting.first_of import FirstOfDrafting
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Endpoint
from specbench_kit.methods.base import Method, Policy
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.heads.model import HeadModel
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link

VOCABULARY, LENGTH = 12, 60
TARGET = tiny_llama(0, vocab_size=VOCABULARY)
PROMPTS = random_prompts([5, 1, 30, 12], VOCABULARY, seed=2)
OWN = "suffix.shared=false"
MEMBERS = f"first-of.first={OWN}+second=head+third=model"


@cache
def answers() -> list[list[int]]:
    """The target's answers to all prompts."""
    return [plain_greedy(TARGET, prompt, LENGTH)[0] for prompt in PROMPTS]


@cache
def head() -> HeadModel:
    """A head that was trained on the beginnings of the answers."""
    return trained(TARGET, PROMPTS, [[*answer[:20], *answer[:5]] for answer in answers()])


@dataclass(frozen=True)
class DraftsInVain(FixedK):
    """Drafts, and sends nothing: every offset of the answer becomes a round."""

    def policy(self) -> Policy:
        return _InVain(self.k)


@dataclass
class _InVain(Policy):
    k: int

    def draft(self, drafter: Drafter) -> None:
        for _ in range(self.k):
            drafter.extend(drafter.drafts)

    def choose(self, drafts: Sequence[Draft]) -> list[list[int]]:
        return [[] for _ in drafts]


def pair() -> tuple[Runner, Runner]:
    runners = make_runner(TARGET, 4, 120), make_runner(disturbed(TARGET, 0.02), 4, 120)
    put_beside(runners[0], head())
    return runners


def rounds_of(
    method: Method, requests: Sequence[Request], batch_size: int
) -> dict[str, list[RoundDetail]]:
    runners, collector = pair(), DetailCollector()
    other_runners: Mapping[str, Runner] = heads_beside(method, runners[0])
    engine = local_loop(
        method, *runners, setup=DecodingSetup(batch_size=batch_size), others=other_runners
    )
    engine.on_round = collector.note
    for request in requests:
        engine.submit(request)
    details = {}
    while not engine.idle:
        details |= {
            record.request_id: collector.take(record.request_id).rounds for record in engine.step()
        }
    return details


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, list[list[int]]]]:
    """The chain of every member on its own at every offset, by member and request."""
    specs = {"suffix": f"{OWN}+min=2", "head": "head", "model": "model"}
    requests = make_requests(PROMPTS, LENGTH)
    return {
        name: {
            request: [detail.tokens[1:] for detail in details]
            for request, details in rounds_of(DraftsInVain(5, drafter=spec), requests, 1).items()
        }
        for name, spec in specs.items()
    }


@pytest.mark.parametrize(
    ("kind", "batch_size"), nightly_except([(FixedK, 3)], product([FixedK, DraftsInVain], [1, 3]))
)
def test_every_member_drafts_what_it_would_draft_alone(
    kind: type[FixedK], batch_size: int, alone: dict[str, dict[str, list[list[int]]]]
) -> None:
    """Even after rounds of other members: look-ups know all text, and head and model have no gap in their KV."""
    used = Counter[str]()
    details = rounds_of(kind(5, drafter=MEMBERS), make_requests(PROMPTS, LENGTH), batch_size)
    for request, rounds in details.items():
        offset = 0
        for detail in rounds:
            chains = {name: alone[name][request][offset] for name in alone}
            expected = next(name for name in ("suffix", "head", "model") if chains[name])
            assert (detail.drafter, detail.tokens[1:]) == (expected, chains[expected])
            used[expected] += 1
            offset += detail.committed
    assert min(used[name] for name in ("suffix", "head", "model")) >= 3


def test_a_head_that_waits_for_its_first_draft_knows_all_text_before_it() -> None:
    """The suffix drafts from the first round on, so the head's slot is taken late."""
    (start,) = random_prompts([14], VOCABULARY, seed=4)
    requests = make_requests([[*start, *start[:6]]], 40)
    alone = [
        detail.tokens[1:]
        for detail in rounds_of(DraftsInVain(4, drafter="head"), requests, 1)["000"]
    ]
    details = rounds_of(
        FixedK(4, drafter=f"first-of.first={OWN}+second=head+match=1"), requests, 1
    )["000"]
    late = next(number for number, detail in enumerate(details) if detail.drafter == "head")
    assert late >= 2
    offset = 0
    for detail in details:
        if detail.drafter == "head":
            assert detail.tokens[1:] == alone[offset]
        offset += detail.committed


@pytest.mark.parametrize("match", [1, 2, 4])
def test_a_look_up_drafts_only_after_a_match_of_that_length(match: int) -> None:
    details = rounds_of(
        FixedK(4, drafter=f"{MEMBERS}+match={match}"), make_requests(PROMPTS, LENGTH), 1
    )
    drafters = Counter[str]()
    for number, (prompt, answer) in enumerate(zip(PROMPTS, answers(), strict=True)):
        offset = 0
        for detail in details[f"{number:03}"]:
            text = [*prompt, *answer[:offset]]
            tail = text[-match:]
            repeats = any(text[end - match : end] == tail for end in range(match, len(text)))
            assert (detail.drafter == "suffix") == repeats
            drafters[detail.drafter] += 1
            offset += detail.committed
    assert drafters["suffix"] > 3 < drafters["head"]


@pytest.mark.parametrize(
    ("first", "temperature"),
    nightly_except(
        [(OWN, 0.0), ("prompt-lookup", 0.7)], product([OWN, "prompt-lookup", "none"], [0.0, 0.7])
    ),
)
def test_the_batch_changes_no_token_and_greedy_output_is_the_targets(
    first: str, temperature: float
) -> None:
    method = FixedK(4, drafter=f"first-of.first={first}+second=head+third=model")
    requests, sampler = make_requests(PROMPTS, LENGTH), Sampler(temperature)
    outputs_by_batch_size = [
        outputs(decode(method, pair(), requests, sampler=sampler, batch_size=size))
        for size in (1, 4)
    ]
    assert outputs_by_batch_size[0] == outputs_by_batch_size[1]
    if sampler.greedy:
        assert outputs_by_batch_size[0] == outputs(decode(AUTOREGRESSIVE, pair(), requests))
        assert list(outputs_by_batch_size[0].values()) == answers()


DRAWS, TOKENS = 1500, 4


@pytest.mark.nightly  # test_method_contract.py draws from it too
@pytest.mark.parametrize("spec", [MEMBERS, f"first-of.first={OWN}+second=model"])
def test_sampled_output_has_the_targets_distribution_whoever_drafts(spec: str) -> None:
    """Each round by the rule of its member, and what was drawn decides who drafts next."""
    target, draft = tiny_llama(3, vocab_size=4), tiny_llama(4, vocab_size=4)
    runners = make_runner(target, 300, 24), make_runner(draft, 300, 24)
    put_beside(runners[0], untrained(runners[0], seed=1))
    sampler, prompt = Sampler(temperature=0.7), [1, 2, 3, 2, 1]
    records = decode(
        FixedK(2, drafter=spec),
        runners,
        make_requests([prompt] * DRAWS, TOKENS),
        sampler=sampler,
        batch_size=300,
    )
    drafters = Counter(
        step.drafter for record in records.values() for step in record.rounds if step.submitted
    )
    assert len(drafters) == (3 if "head" in spec else 2)
    assert min(drafters.values()) > 100
    counts = Counter(tuple(record.output_ids) for record in records.values())
    expected = _joint(target, prompt, sampler)
    assert sum(expected.values()) == pytest.approx(1)
    common = [tokens for tokens, share in expected.items() if share * DRAWS >= 5]
    observed = [
        *(counts[tokens] for tokens in common),
        sum(counts[tokens] for tokens in expected if tokens not in common),
    ]
    shares = [
        *(expected[tokens] for tokens in common),
        1 - sum(expected[tokens] for tokens in common),
    ]
    scale = DRAWS / sum(shares)
    assert chisquare(observed, [share * scale for share in shares]).pvalue > 1e-3


def _joint(
    target: PreTrainedModel, prompt: Sequence[int], sampler: Sampler
) -> dict[tuple[int, ...], float]:
    """The probability of every text of so many tokens."""
    joint = {}
    for text in product(range(4), repeat=TOKENS):
        logits = plain_logits(target, [*prompt, *text[:-1]])[len(prompt) - 1 :]
        probabilities = sampler.probabilities(logits)[torch.arange(TOKENS), list(text)]
        joint[text] = float(probabilities.prod())
    return joint


EDGE = replace(
    DEPLOYMENT,
    drafter=Endpoint("edge", ContextModel(0, gamma_s=1e-3, delta_s=1e-2)),
    link=Link(rtt_s=0.1, state_bytes=15),
)


def seconds(records: dict[str, RequestRecord]) -> list[float]:
    steps = [step for record in records.values() for step in record.rounds]
    return [
        time
        for step in steps
        for time in (step.prefill_s, step.draft_s, step.link_s, step.verify_s, step.end_s)
    ]


def test_with_one_member_it_takes_that_members_time() -> None:
    requests = make_requests([PROMPTS[0], *PROMPTS[2:]], 20)
    for member in ("head", "model"):
        hybrid = FixedK(3, drafter=f"first-of.first={member}+second=none")
        hybrid_seconds = seconds(decode(hybrid, pair(), requests, deployment=EDGE))
        assert hybrid_seconds == pytest.approx(
            seconds(decode(FixedK(3, drafter=member), pair(), requests, deployment=EDGE))
        )


def test_looking_up_takes_its_own_time_and_the_head_catches_up() -> None:
    """A look-up of 2 ms per token; the head forwards what was committed since its last round, 1 ms each."""
    method = FixedK(3, drafter=f"first-of.first={OWN}:lookup_s=0.002+second=head")
    (record,) = decode(
        method, pair(), make_requests(PROMPTS[2:3], LENGTH), deployment=EDGE
    ).values()
    waiting, kinds = len(PROMPTS[2]) - 1, Counter[str]()
    for step in record.rounds:
        kinds[step.drafter] += 1
        if step.drafter == "suffix":
            assert (step.prefill_s, step.draft_s) == (0.0, pytest.approx(0.002 * step.drafted))
        elif step.drafter == "head":
            if step.prefill_s:
                assert step.prefill_s == pytest.approx(0.010 + 0.001 * waiting)
                waiting = 0
            assert step.draft_s == pytest.approx(0.010 * 3 + 0.001 * (3 + waiting))
            waiting = 0
        waiting += step.committed if step.drafter != "head" else step.accepted
    assert min(kinds["suffix"], kinds["head"]) > 3


def test_a_round_says_who_drafted_it_only_if_there_was_a_choice() -> None:
    requests = make_requests(PROMPTS[:1], 30)
    (plain,) = decode(parse_method("fixed-k"), pair(), requests).values()
    (hybrid,) = decode(FixedK(drafter=MEMBERS), pair(), requests).values()
    assert '"drafter"' not in plain.to_json()
    again = RequestRecord.from_json(hybrid.to_json())
    assert [step.drafter for step in again.rounds] == [step.drafter for step in hybrid.rounds]
    assert {step.drafter for step in again.rounds} >= {"model", "head"}


def test_members_are_chosen_by_option() -> None:
    own_head = parse_drafter("first-of").resolved(lambda _: True)
    assert own_head.spec == "first-of.second=head"
    no_head = parse_drafter("first-of.match=3").resolved(lambda name: name == DRAFT)
    assert (no_head.models, no_head.spec) == ((DRAFT,), "first-of.second=model+match=3")
    chosen = parse_drafter(
        "first-of.first=suffix.factor=2:min_prob=0.3+second=head.path=/x/y+third=model"
    )
    assert chosen.models == ("head:/x/y", DRAFT)
    assert isinstance(chosen, FirstOfDrafting)
    assert chosen.members[0] == parse_drafter("suffix.factor=2+min_prob=0.3+min=2")
    assert parse_drafter(chosen.spec) == chosen == chosen.resolved(lambda _: False)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("first-of.match=0", "match must be at least 1, not 0"),
        ("first-of.first=none+second=none", "all members are none"),
        ("first-of.first=cascade", "'cascade' cannot be a member"),
        ("first-of.first=first-of", "'first-of' cannot be a member"),
        ("first-of.first=model+second=model", "members must differ, not model, model"),
        ("first-of.first=suffx", "unknown drafter 'suffx'"),
        ("first-of.first=suffix.depth=3", "unknown option 'depth'"),
        ("first-of.first=prompt-lookup+match=4", "min must lie in 1..max, not 4 with max 3"),
        ("suffix.min=0", "min must be at least 1, not 0"),
    ],
)
def test_bad_members_are_refused(spec: str, problem: str) -> None:
    with pytest.raises(SkitError, match=problem):
        parse_drafter(spec)

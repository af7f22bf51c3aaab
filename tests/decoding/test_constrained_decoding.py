"""Under a grammar every method writes what masked plain decoding writes, or draws from the masked target."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("llguidance")

import torch
from environments import ENVIRONMENT
from method_specs import filled_in, one_of_each_kind, specs
from nightly import nightly_except
from scipy.stats import chisquare
from tiny_grammars import END, VOCABULARY, constraint, masked_greedy, masked_logits, text
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    make_requests,
    make_runner,
    outputs,
    sharp_llama,
    with_references,
)
from torch import Tensor

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding import verification
from specbench_kit.decoding.constraint import Allowed, Grammars, parse_constraint
from specbench_kit.decoding.distributions import DraftForward, FullDistributions
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting import model as model_drafts
from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.decoding.masking import masked
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler, UniformNumbers, draw
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods import lookahead
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link

REGEX = "regex:a[bc]{1,7}d"
TEXTS = [f"a{''.join(middle)}d" for n in range(1, 8) for middle in product("bc", repeat=n)]
PROMPTS = [[2], [1, 5], [3, 3, 0], [0, 2, 1, 4, 5]]
LENGTH = 12
TEMPERATURE = 0.7


TARGET, DRAFT = sharp_llama(6, VOCABULARY), sharp_llama(2, VOCABULARY)
IN_ROUNDS = [
    spec for spec in specs() if parse_method(spec).pipeline is None and spec != "autoregressive"
]
KINDS = [spec for spec in one_of_each_kind() if spec in IN_ROUNDS]
WITH_DRAFTERS = [
    *(f"fixed-k:k=3,drafter={name}" for name in ("head", "medusa", "cascade", "suffix")),
    *(f"fixed-k:k=4,drafter={name}" for name in ("slem", "block", "block.keep=1-0.5-0")),
    "fixed-k:k=3,drafter=grammar",
    "fixed-k:k=3,drafter=first-of.first=grammar+second=suffix+third=model",
    "fixed-k:k=3,drafter=cascade.second=grammar",
    "specinfer:branching=2-1-2,drafter=head",
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return filled_in(tmp_path_factory.mktemp("places"))


@pytest.fixture
def method(request: pytest.FixtureRequest, places: dict[str, Path]) -> Method:
    return parse_method(request.param.format(**places)).prepare(ENVIRONMENT)


def runners(slots: int = 4) -> tuple[Runner, Runner]:
    return make_runner(TARGET, slots, 60), make_runner(DRAFT, slots, 60)


@cache
def answers() -> list[list[int]]:
    return [masked_greedy(TARGET, prompt, TEXTS, LENGTH) for prompt in PROMPTS]


def constrained(prompts: Sequence[Sequence[int]], length: int = LENGTH) -> list[Request]:
    grammar = constraint(REGEX)
    return [replace(request, constraint=grammar) for request in make_requests(prompts, length)]


def run(
    method: Method, pair: tuple[Runner, Runner], requests: Sequence[Request], **options: object
) -> dict[str, RequestRecord]:
    options = {"eos_ids": frozenset({END}), **options}
    if method.needs_reference:
        plain = decode(AUTOREGRESSIVE, pair, requests, **options)  # type: ignore[arg-type]
        requests = with_references(requests, plain)
    return decode(method, pair, requests, **options)  # type: ignore[arg-type]


def test_plain_decoding_writes_the_likeliest_text_of_the_grammar() -> None:
    free = decode(AUTOREGRESSIVE, runners(), make_requests(PROMPTS, LENGTH))
    records = run(AUTOREGRESSIVE, runners(), constrained(PROMPTS))
    assert [*outputs(records).values()] == answers()
    assert [*outputs(free).values()] != answers()
    for record in records.values():
        assert re.fullmatch(REGEX.removeprefix("regex:"), text(record.output_ids))
        assert (record.grammar, record.finish_reason) == ("valid", "eos")
    assert all(record.grammar is None for record in free.values())


@pytest.mark.parametrize("method", [*IN_ROUNDS, *WITH_DRAFTERS], indirect=True)
def test_greedy_output_is_that_of_masked_plain_decoding_and_no_draft_is_forbidden(
    method: Method,
) -> None:
    records = run(method, runners(), constrained(PROMPTS), batch_size=3)
    assert [*outputs(records).values()] == answers()
    assert {record.grammar for record in records.values()} == {"valid"}
    forbidden = sum(step.forbidden for record in records.values() for step in record.rounds)
    # The window of `lookahead` is there to be read.
    assert forbidden == 0 or method.display_name == lookahead.Lookahead.display_name


@pytest.mark.parametrize(
    "spec", ["token-recycling", "fixed-k:k=4,drafter=block", "fixed-k:k=4,drafter=block.keep=1-0.5"]
)
def test_drafts_that_keep_to_the_grammar_are_made_and_accepted(spec: str) -> None:
    """A table of a grammar's many texts, and blocks of a draft model that equals the target."""
    pair = make_runner(TARGET, 4, 60), make_runner(TARGET, 4, 60)
    records = run(parse_method(spec), pair, constrained(PROMPTS * 3), batch_size=3)
    rounds = [step for record in records.values() for step in record.rounds]
    assert sum(step.accepted for step in rounds) > 8
    assert sum(step.forbidden for step in rounds) == 0


def test_the_n_grams_of_lookahead_keep_to_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's grammar leaves out what its own window has; the window itself does not hold to it."""
    verified: list[int] = []
    grow = lookahead._LookaheadPolicy._grow

    def counted(
        policy: lookahead._LookaheadPolicy, draft: Draft, guesses: lookahead._Guesses, room: int
    ) -> None:
        grow(policy, draft, guesses, room)
        window = {node for nodes in guesses.nodes for node in nodes}
        ngrams = [node for node in range(1, len(draft.tree)) if node not in window]
        assert draft.forbidden(ngrams) == 0
        verified.append(len(ngrams))

    monkeypatch.setattr(lookahead._LookaheadPolicy, "_grow", counted)
    method = parse_method("lookahead:window=3,ngram=3")
    grammar = constraint("regex:(ab|ba|c){8,20}d")
    requests = [replace(request, constraint=grammar) for request in make_requests(PROMPTS, 24)]
    records = run(method, runners(), requests)
    assert outputs(records) == outputs(run(AUTOREGRESSIVE, runners(), requests))
    assert sum(verified) > 20
    assert sum(step.forbidden for record in records.values() for step in record.rounds) > 0


def test_drafted_tokens_that_the_grammar_forbids_are_counted_and_never_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft model that knows nothing of the grammar: outputs stay the same."""
    monkeypatch.setattr(model_drafts, "masked", lambda forward, _: forward)
    for spec in ("fixed-k:k=3", "specinfer:branching=2-1-2"):
        records = run(parse_method(spec), runners(), constrained(PROMPTS), batch_size=3)
        assert [*outputs(records).values()] == answers()
        rounds = [step for record in records.values() for step in record.rounds]
        assert sum(step.forbidden for step in rounds) > 0
        assert all(step.accepted + step.forbidden <= step.submitted for step in rounds)


FORCING = "regex:a(bdcd|cdbd)a"


@pytest.mark.parametrize(
    ("method", "drafters"),
    [
        ("fixed-k:k=8,drafter=grammar", {""}),
        ("fixed-k:k=2,drafter=first-of.first=grammar+second=model", {"grammar", "model"}),
    ],
    indirect=["method"],
)
def test_what_the_grammar_forces_is_drafted_and_right(method: Method, drafters: set[str]) -> None:
    """Behind the one choice stand six forced tokens, the end among them; a model drafts where there is a choice."""
    grammar = constraint(FORCING)
    requests = [replace(request, constraint=grammar) for request in make_requests(PROMPTS, LENGTH)]
    plain = run(AUTOREGRESSIVE, runners(), requests)
    records = run(method, runners(), requests)
    assert outputs(records) == outputs(plain)
    drafted = [step for record in records.values() for step in record.rounds if step.drafted]
    assert {step.drafter for step in drafted} == drafters
    forced = [step for step in drafted if step.drafter != "model"]
    assert sum(step.accepted for step in forced) == sum(step.submitted for step in forced) > 8
    assert sum(step.forced_accepted for step in forced) == sum(step.accepted for step in forced)
    models = [step for step in drafted if step.drafter == "model"]
    assert all(step.forced_submitted < step.submitted for step in models)
    if len(drafters) == 1:
        assert all(len(record.rounds) <= 3 for record in records.values())


PARTS = "regex:(ab|cd){2}(acdb|bdca)[ab]d"
"""Forced tokens in the middle and at the end, single ones and runs, behind choices that models make."""


def forced_in(record: RequestRecord) -> int:
    """The tokens of an output that joined it without being verified."""
    return record.forced_first + sum(step.forced for step in record.rounds)


SKIPPING = [*IN_ROUNDS, *WITH_DRAFTERS]


@pytest.mark.parametrize(
    "method", nightly_except([*KINDS, *WITH_DRAFTERS], SKIPPING), indirect=True
)
def test_forced_tokens_that_are_skipped_leave_greedy_outputs_as_they_are(method: Method) -> None:
    for spec, length in ((REGEX, LENGTH), (PARTS, 14), (PARTS, 9)):
        grammar = constraint(spec)
        asked = [replace(request, constraint=grammar) for request in make_requests(PROMPTS, length)]
        verified = run(AUTOREGRESSIVE, runners(), asked)
        records = run(method, runners(), asked, batch_size=3, skip_forced=True)
        assert outputs(records) == outputs(verified)
        for name, record in records.items():
            assert record.finish_reason == verified[name].finish_reason
            joined = sum(step.committed + step.forced for step in record.rounds)
            assert record.forced_first + joined == len(record.output_ids)
            assert all(step.committed <= step.accepted + 1 for step in record.rounds)
        reads_states = method.drafting.reads_states
        assert any(map(forced_in, records.values())) is not reads_states


def test_plain_decoding_skips_forced_tokens_too() -> None:
    """One or two choices are verified; five or six tokens and the end of each output are not."""
    grammar = constraint(FORCING)
    requests = [replace(request, constraint=grammar) for request in make_requests(PROMPTS, LENGTH)]
    verified = run(AUTOREGRESSIVE, runners(), requests)
    records = run(AUTOREGRESSIVE, runners(), requests, skip_forced=True)
    for name, record in records.items():
        assert len(verified[name].rounds) == len(record.output_ids) >= 6
        assert 1 <= len(record.rounds) <= 2
        assert [(step.committed, step.accepted) for step in record.rounds] == [
            (1, 0) for _ in record.rounds
        ]
        assert forced_in(record) == len(record.output_ids) - len(record.rounds)
        assert (record.finish_reason, record.e2e_s) == ("eos", record.rounds[-1].end_s)


def test_an_output_that_is_forced_as_a_whole_has_one_round() -> None:
    grammar = constraint("regex:abd")
    requests = [replace(request, constraint=grammar) for request in make_requests(PROMPTS, LENGTH)]
    for length in (LENGTH, 1, 2):
        asked = [replace(request, max_new_tokens=length) for request in requests]
        records = run(parse_method("fixed-k:k=3"), runners(), asked, skip_forced=True)
        assert outputs(records) == outputs(run(AUTOREGRESSIVE, runners(), asked))
        assert all(len(record.rounds) == 1 for record in records.values())


def test_modelled_time_charges_the_rows_in_which_forced_tokens_ride() -> None:
    """A target whose forward takes a second per new token: skipping saves forwards, and no tokens."""
    grammar = constraint(PARTS)
    requests = [replace(request, constraint=grammar) for request in make_requests(PROMPTS, 14)]
    second_each = InteractionModel(a_s=1.0, b_compute_s=0.0, b_read_s=0.0, c_s=0.0)
    per_token = Deployment(
        "test", Endpoint("edge", second_each), Endpoint("server", second_each), Link(rtt_s=0.0)
    )
    for records in (
        run(AUTOREGRESSIVE, runners(), requests, deployment=per_token, skip_forced=skips)
        for skips in (False, True)
    ):
        for record in records.values():
            trailing = record.rounds[-1].forced
            computed = len(record.prompt_ids) + len(record.output_ids) - 1 - trailing
            assert record.e2e_s == pytest.approx(computed)


def test_without_a_grammar_nothing_can_be_forced() -> None:
    with pytest.raises(SkitError, match=r"^drafter 'grammar' drafts what a grammar forces: give"):
        decode(parse_method("fixed-k:drafter=grammar"), runners(), make_requests(PROMPTS, 4))


def test_an_output_that_ends_early_is_called_cut() -> None:
    records = run(parse_method("fixed-k"), runners(), constrained(PROMPTS, 2))
    assert {(record.grammar, record.finish_reason) for record in records.values()} == {
        ("cut", "length")
    }


def test_requests_without_a_grammar_are_decoded_beside_others() -> None:
    free = make_requests(PROMPTS[:2], LENGTH)
    requests = [*free, *constrained(PROMPTS)[2:]]
    records = run(parse_method("fixed-k:k=3"), runners(), requests, batch_size=4)
    alone = run(AUTOREGRESSIVE, runners(), free)
    assert [*outputs(records).values()] == [*outputs(alone).values(), *answers()[2:]]


# Sampling: every output of a few tokens, and its exact probability under the masked target.

START = [2]
SHORT = 3
DRAWS = 500


@cache
def joint() -> dict[tuple[int, ...], float]:
    """Return the probability of each output of at most `SHORT` tokens."""
    table: dict[tuple[int, ...], float] = {}
    open_outputs: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while open_outputs:
        output, chance = open_outputs.pop()
        if len(output) == SHORT or END in output:
            table[output] = chance
            continue
        logits = masked_logits(TARGET, START, output, TEXTS)
        following = (logits.double() / TEMPERATURE).softmax(-1).tolist()
        open_outputs += [
            ((*output, token), chance * share) for token, share in enumerate(following) if share
        ]
    return table


def p_value(found: Sequence[tuple[int, ...]], wanted: Mapping[tuple[int, ...], float]) -> float:
    """Chi-square over all outputs; those expected fewer than five times count as one. Impossible ones give 0."""
    if not set(found) <= wanted.keys():
        return 0.0
    expected = {output: chance * len(found) for output, chance in wanted.items()}
    common = [output for output in wanted if expected[output] >= 5]
    observed = [found.count(output) for output in common]
    values = [expected[output] for output in common]
    if len(found) - sum(values) > 1e-3 * len(found):
        observed, values = (
            [*observed, len(found) - sum(observed)],
            [*values, len(found) - sum(values)],
        )
    scale = sum(observed) / sum(values)
    return float(chisquare(observed, [value * scale for value in values]).pvalue)


def sampled(
    method: Method, draws: int = DRAWS, *, skip_forced: bool = False
) -> list[tuple[int, ...]]:
    pair = make_runner(TARGET, 50, 40), make_runner(DRAFT, 50, 40)
    records = run(
        method,
        pair,
        constrained([START] * draws, SHORT),
        sampler=Sampler(temperature=TEMPERATURE),
        seed=11,
        batch_size=50,
        skip_forced=skip_forced,
    )
    return [tuple(record.output_ids) for record in records.values()]


@pytest.mark.parametrize(
    "method",
    [*KINDS, "sampled-tree:branching=2-1-2", "fixed-k:k=3,drafter=medusa", "specinfer"],
    indirect=True,
)
def test_sampled_outputs_follow_the_masked_target(method: Method) -> None:
    assert p_value(sampled(method), joint()) > 1e-3


@pytest.mark.parametrize("method", [*KINDS, "sampled-tree:branching=2-1-2"], indirect=True)
def test_sampled_outputs_follow_the_masked_target_where_forced_tokens_are_skipped(
    method: Method,
) -> None:
    assert p_value(sampled(method, skip_forced=True), joint()) > 1e-3


def _masked_too_late(
    sampler: Sampler, draft: Draft, nodes: Sequence[int], logits: Tensor
) -> tuple[list[int], int]:
    """Wrong on purpose, and valid text all the same: the rule is given what neither model was masked in.

    A token that it accepts is rejected if the grammar forbids it; what takes its place is drawn from the rest of the
    target's distribution over the draft's, masked only then.
    """
    target = sampler.probabilities(logits[-1 - len(nodes) :])
    random = draft.session.random.from_position(draft.session.produced)
    path: list[int] = []
    for index, (node, allowed) in enumerate(
        zip(nodes, draft.allowed_after((0, *nodes)), strict=False)
    ):
        source, row = draft.tree.source(node)
        assert isinstance(source, FullDistributions)
        token, own = draft.tree.tokens[node], source.probabilities[row]
        number = random.uniform("accept")
        accepted = number * float(own[token]) <= float(target[index, token])
        if not accepted or (allowed is not None and not allowed[token]):
            return path, _late(target[index] - own, target[index], allowed, random)
        path.append(node)
    (allowed,) = draft.allowed_after([path[-1] if path else 0])
    return path, _late(target[len(nodes)], target[len(nodes)], allowed, random)


def _late(weights: Tensor, target: Tensor, allowed: Allowed, random: UniformNumbers) -> int:
    keeps = torch.ones(len(target)) if allowed is None else torch.from_numpy(allowed).float()
    rest = weights.clamp(min=0) * keeps
    return draw((rest if rest.any() else target * keeps)[None], [random.uniform("target")])[0]


def test_the_check_catches_masks_that_come_after_acceptance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (model_drafts, verification):
        monkeypatch.setattr(module, "masked", lambda forward, _: forward)
    monkeypatch.setattr(verification, "judge_sampled", _masked_too_late)
    found = sampled(parse_method("fixed-k:k=2"), 2000)
    assert set(found) <= joint().keys(), "every output is valid"
    assert p_value(found, joint()) < 1e-6


def test_the_counterexample_of_total_variation_near_1() -> None:
    """Of two allowed tokens the target wants the first 249 times in 250, and the draft never drafts the other.

    Masked too late, what is left over for the grammar is the other one (arXiv 2605.07698).
    """
    target = torch.tensor([3.984e-3, 1.6e-5, 0.0, 0.0, 0.996, 0.0])
    own = torch.tensor([4e-3, 0.0, 0.0, 0.0, 0.996, 0.0])
    wanted = torch.tensor([target[0], target[1]]) / target[:2].sum()
    allowed = constraint("lark:start: /a|b/").state().allowed([])
    found: dict[bool, list[int]] = {True: [], False: []}
    (request,) = make_requests([START], 1)
    for late, draw_number in product(found, range(2000)):
        request = replace(request, id=f"{draw_number}", constraint=constraint("lark:start: /a|b/"))
        random = RequestRandom(5, request.id)
        session = Session(request, random, frozenset(), 0.0, RequestRecord(request.id, "", START))
        draft = Draft(session, TokenTree(START[0]))
        forwards = [Forward([rows.log()]) for rows in (own[None], target.repeat(2, 1))]
        drafts, verified = (
            forwards
            if late
            else [masked(forward, [[allowed] * len(forward[0])]) for forward in forwards]
        )
        sampler = Sampler(temperature=1.0)
        source = DraftForward(drafts, sampler, sampled=True)
        draft.tree.add(draw(source.probabilities, [random.uniform("draft")])[0], 0, source, 0)
        judge = _masked_too_late if late else verification.judge_sampled
        path, bonus = judge(sampler, draft, [1], verified[0])
        found[late].append(draft.tree.tokens[1] if path else bonus)
    shares = {late: tokens.count(1) / len(tokens) for late, tokens in found.items()}
    assert set(found[True]) == {0, 1}
    assert shares[True] - float(wanted[1]) > 0.98, "the total variation"
    assert abs(shares[False] - float(wanted[1])) < 0.01


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def test_the_bundled_pair_writes_valid_json() -> None:
    pair = load_pair()
    spec = f"json-schema:{json.dumps(SCHEMA)}"
    grammar = Grammars(pair.tokenizer, pair.eos_ids).compile(parse_constraint(spec))
    prompts = [pair.tokenizer(text)["input_ids"] for text in ("Who is Ada?", "Tell me a name.")]
    requests = [replace(request, constraint=grammar) for request in make_requests(prompts, 48)]
    own = pair.runners(2, 128)
    found = {
        spec: run(parse_method(spec), own, requests, batch_size=2, eos_ids=pair.eos_ids)
        for spec in ("autoregressive", "fixed-k:k=4", "specinfer:branching=2-2-1", "suffix")
    }
    for records in found.values():
        assert outputs(records) == outputs(found["autoregressive"])
        for record in records.values():
            assert record.grammar == "valid"
            answer = json.loads(pair.tokenizer.decode(record.output_ids, skip_special_tokens=True))
            assert answer.keys() == {"name", "age"}
            assert isinstance(answer["age"], int)
            assert answer["age"] <= 99
    drafted = [step for record in found["fixed-k:k=4"].values() for step in record.rounds]
    assert sum(step.accepted for step in drafted) > 0

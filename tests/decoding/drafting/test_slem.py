"""Drafts by text: what the target's tokenizer makes of them, and that outputs stay the target's."""

from dataclasses import replace
from itertools import product

import pytest
from nightly import nightly_except
from tiny_models import AUTOREGRESSIVE, decode, make_requests, make_runner, outputs, tiny_llama
from tiny_tokenizers import SPACED, TARGET

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import Grammars, parse_constraint
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Runner
from specbench_kit.models.vocabulary_map import Texts, TranslatingRunner, map_vocabulary

TEXTS = Texts(TARGET, SPACED)
SIZES: dict[str, object] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 96,
}


def test_a_text_has_other_tokens_in_each_vocabulary() -> None:
    """ "ab a" is "a", "b" and " a" of the draft's; "ab" behind "d" is one token of the target's."""
    assert TEXTS.to_draft([0, 1, 6]) == [4, 3, 7]
    assert TEXTS.to_target([4], [4, 3]) == [5]
    assert TEXTS.to_target([4], [0, 4, 2, 4]) == [6, 2, 0]


def test_a_text_whose_tokens_are_not_the_tokenizers_own_is_continued_by_itself() -> None:
    """The target's tokenizer makes one token of "abc": after "a", the text "bc" is split alone."""
    assert TEXTS.to_target([0], [3, 2]) == [1, 2]


@pytest.fixture(scope="module")
def runners() -> tuple[Runner, Runner]:
    """A target and a draft model with random weights, whose tokenizers split texts differently."""
    target, draft = tiny_llama(5, vocab_size=8, **SIZES), tiny_llama(6, vocab_size=8, **SIZES)
    translation = map_vocabulary(TARGET, SPACED, ("target", "draft"))
    return make_runner(target, 4, 64), TranslatingRunner(
        make_executor(draft, 4, 96, None), translation, 8
    )


@pytest.mark.parametrize(
    ("settled", "temperature"), nightly_except([(1, 1.0), (2, 0.0)], product([0, 1, 2], [0.0, 1.0]))
)
def test_outputs_are_those_of_plain_decoding(
    settled: int, temperature: float, runners: tuple[Runner, Runner]
) -> None:
    """Drawn tokens are matched, so that the same seed draws the same tokens; prompts begin in several ways."""
    requests = make_requests([[0, 1], [7, 3, 6], [4], [2, 2, 5, 0]], 40)
    sampler = Sampler(temperature=temperature)
    plain = decode(AUTOREGRESSIVE, runners, requests, sampler=sampler)
    method = parse_method(f"fixed-k:k=3,drafter=slem.settled={settled}")
    for batch_size in (1, 3):
        records = decode(method, runners, requests, sampler=sampler, batch_size=batch_size)
        assert outputs(records) == outputs(plain)
        rounds = [step for record in records.values() for step in record.rounds]
        assert sum(step.accepted for step in rounds) > 5
        assert sum(step.submitted - step.accepted for step in rounds) > 5


def test_a_draft_ends_before_a_token_that_the_grammar_forbids(
    runners: tuple[Runner, Runner],
) -> None:
    """The draft model's own tokens are not masked: its text ends where the grammar does not follow."""
    pytest.importorskip("llguidance")
    end = 4
    grammar = Grammars(TARGET, [end]).compile(parse_constraint("regex:(a ?b|c[ab]){6,14}"))
    requests = [
        replace(request, constraint=grammar)
        for request in make_requests([[0, 1], [7, 3, 6], [4], [2, 2, 5, 0]], 24)
    ]
    plain = decode(AUTOREGRESSIVE, runners, requests, eos_ids=frozenset({end}))
    method = parse_method("fixed-k:k=3,drafter=slem")
    records = decode(method, runners, requests, eos_ids=frozenset({end}), batch_size=3)
    assert outputs(records) == outputs(plain)
    rounds = [step for record in records.values() for step in record.rounds]
    assert sum(step.accepted for step in rounds) > 5
    assert sum(step.forbidden for step in rounds) == 0
    assert any(step.drafted < 3 for step in rounds)


def test_a_slem_drafter_refuses_trees_and_bad_options() -> None:
    with pytest.raises(SkitError, match="slem: settled must be at least 0, not -1"):
        parse_method("fixed-k:drafter=slem.settled=-1")
    with pytest.raises(SkitError, match="reads distributions of trees"):
        parse_method("opt-tree:drafter=slem")

"""Methods that learn from the target's candidates: what they draft, worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from environments import ENVIRONMENT
from known_drafts import KnownDrafter
from tiny_models import decode, make_requests, make_runner, plain_logits, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafter import Draft, Drafter
from specbench_kit.decoding.drafting.look_up import LookUpDistribution
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import Verdict
from specbench_kit.live.server.drafting import DraftingOffer
from specbench_kit.methods.base import Capability, Method, Policy
from specbench_kit.methods.lookahead import Lookahead, NgramPool
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.token_recycling import Place, TokenRecycling, likeliest_shape
from specbench_kit.traces.replay import require_replayable
from specbench_kit.traces.trace import TraceHeader

BOTH = ["lookahead", "token-recycling"]


class Texts(KnownDrafter):
    """One request with this text and room for so many nodes."""

    def __init__(self, text: Sequence[int], room: int = 100) -> None:
        super().__init__([[]])
        (draft,) = self.drafts
        draft.session.tokens[:] = text
        self.drafts = [Draft(draft.session, TokenTree(text[-1]))]
        self._room = room

    def room(self, draft: Draft) -> int:
        return self._room - draft.tree.last


def drafted(policy: Policy, text: Sequence[int], room: int = 100) -> Draft:
    """Let a policy draft after a text."""
    drafter = Texts(text, room)
    policy.draft(drafter)
    return drafter.drafts[0]


def answer(policy: Policy, draft: Draft, candidates: Mapping[int, Sequence[int]]) -> None:
    """Let a target whose candidates depend on the last token alone verify a draft."""
    nodes = list(range(1, len(draft.tree)))
    after = [candidates[token] for token in draft.tree.tokens]
    policy.observe([Verdict(draft, nodes, [], after[0][0], 1 + len(nodes), candidates=after)])


def shape(draft: Draft) -> list[tuple[int, int]]:
    """Return the parent and the token of every node."""
    return list(zip(draft.tree.parents[1:], draft.tree.tokens[1:], strict=True))


def test_a_tree_has_the_places_that_are_reached_most_likely() -> None:
    """The chances are .5 for the first candidate, .25 and .125 for the first ones below it, .2 for the second."""
    assert likeliest_shape(4, 3, 8) == (Place(-1, 0), Place(-1, 1), Place(0, 0), Place(2, 0))
    assert likeliest_shape(4, 3, 1) == (Place(-1, 0), Place(0, 0), Place(1, 0))
    assert len(TokenRecycling().shape) == 80


def test_recycled_candidates_fill_the_tree() -> None:
    policy = TokenRecycling(nodes=4, depth=3, candidates=2).policy()
    first = drafted(policy, [9, 4])
    assert shape(first) == []
    table = {4: [5, 6], 5: [4, 7], 6: [6, 6], 7: [4, 4]}
    answer(policy, first, table)
    second = drafted(policy, [9, 4])
    assert shape(second) == [(0, 5), (0, 6)]
    answer(policy, second, table)  # what was rejected is recycled too
    assert shape(drafted(policy, [9, 4])) == [(0, 5), (0, 6), (1, 4), (3, 5)]
    assert shape(drafted(policy, [9, 6])) == [(0, 6), (0, 6), (1, 6), (3, 6)]
    assert shape(drafted(policy, [9, 4], room=3)) == [(0, 5), (0, 6), (1, 4)]


def test_a_window_of_guesses_fills_the_pool() -> None:
    """A window of 2 and n-grams of 3: the second row is known after one round, the first n-grams after two."""
    policy = Lookahead(window=2, ngram=3, guesses=2).policy()
    follows = {5: [6], 1: [2], 6: [0], 2: [3], 4: [8], 0: [1], 3: [5]}
    first = drafted(policy, [5, 1, 4])
    assert shape(first) == [(0, 5), (1, 1)]
    answer(policy, first, follows)
    second = drafted(policy, [5, 1, 4])
    assert shape(second) == [(0, 5), (1, 1), (1, 6), (2, 2)]
    answer(policy, second, follows)
    # The pool has 5 6 0 and 1 2 3, and the window moves on to the rows 6 2 and 0 3.
    assert shape(drafted(policy, [5, 1, 4])) == [(0, 6), (1, 2), (1, 0), (2, 3)]
    assert shape(drafted(policy, [1, 4, 5])) == [(0, 6), (1, 2), (1, 0), (2, 3), (0, 6), (5, 0)]
    assert shape(drafted(policy, [1, 4, 5], room=3)) == [(0, 6), (1, 0)]
    policy.forget("0")
    assert shape(drafted(policy, [5, 1, 4])) == [(0, 5), (1, 1)]


def test_a_pool_keeps_the_newest_ngrams() -> None:
    pool = NgramPool(2)
    for ngram in ([1, 2, 3], [1, 4, 5], [2, 2, 2], [1, 2, 3], [1, 6, 7]):
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.after(3) == []


@dataclass(frozen=True)
class Observing(Method):
    """A tree of two branches, whose verdicts it keeps."""

    verdicts: list[tuple[list[int], Verdict]] = field(default_factory=list)
    """The text before each round, and the round's verdict."""
    drafter: str = field(default="none", init=False)
    required_capability = Capability.TREES

    @property
    def reads_candidates(self) -> int:
        return 3

    def policy(self) -> Policy:
        return _ObservingPolicy(self.verdicts)


@dataclass
class _ObservingPolicy(Policy):
    verdicts: list[tuple[list[int], Verdict]]
    texts: dict[str, list[int]] = field(default_factory=dict)

    def draft(self, drafter: Drafter) -> None:
        for draft in drafter.drafts:
            self.texts[draft.request_id] = [*draft.session.tokens]
            for token, parent in ((3, 0), (4, 0), (5, 1)):
                draft.tree.add(token, parent, LookUpDistribution("test", 1.0), 0)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        self.verdicts.extend(
            (self.texts[verdict.draft.request_id], verdict) for verdict in verdicts
        )


def test_a_verdict_has_the_targets_candidates_after_the_root_and_every_node() -> None:
    model, method = tiny_llama(3), Observing()
    runners = make_runner(model, 2, 64), make_runner(model, 2, 64)
    decode(method, runners, make_requests([[1, 2, 3], [4]], 4), batch_size=2)
    assert len(method.verdicts) >= 4
    for text, verdict in method.verdicts:
        tree = verdict.draft.tree
        for node, candidates in zip((0, *verdict.submitted), verdict.candidates, strict=True):
            tokens = [tree.tokens[above] for above in tree.path(node)]
            assert (
                list(candidates)
                == plain_logits(model, [*text, *tokens])[-1].topk(3).indices.tolist()
            )


@pytest.mark.parametrize("name", BOTH)
def test_a_target_that_names_no_candidates_is_refused_in_one_line(name: str) -> None:
    method = parse_method(name)
    with pytest.raises(SkitError, match=f"^{name}: servers do not send the target's candidates"):
        method.prepare(replace(ENVIRONMENT, served=True))
    with pytest.raises(SkitError, match=f"^{name}: a trace holds no candidates of the target"):
        require_replayable(method, TraceHeader)  # type: ignore[arg-type]
    with pytest.raises(SkitError, match=f"^--method {name}: it reads the target's candidates"):
        DraftingOffer({name: method})


@pytest.mark.parametrize(
    "spec", ["lookahead:window=0", "lookahead:ngram=1", "token-recycling:nodes=0"]
)
def test_bad_options_are_refused(spec: str) -> None:
    with pytest.raises(SkitError, match="must be at least"):
        parse_method(spec)

"""Trees that grow on an emulated card by a rule: those of growth level by level, and one wait per round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated_card import Machine, emulated_cards
from environments import DEPLOYMENT
from nightly import nightly_except
from tiny_models import (
    AUTOREGRESSIVE,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    sharp_llama,
    tiny_llama,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.core.gc_paused import gc_paused
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.decoding.verification import ModelVerifier
from specbench_kit.methods.sequoia import TreeShape
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.specinfer import shape_of
from specbench_kit.models.executors import graph_forward, graph_trees
from specbench_kit.models.executors.cuda_graph import CudaGraphExecutor, GraphKey
from specbench_kit.models.executors.graph_forward import GraphComputations
from specbench_kit.models.executors.graph_trees import BeamTrees, Level
from specbench_kit.models.executors.tree_rule import BeamRule, ShapeRule
from specbench_kit.models.runner import Append, GrownBy, Runner

CAPACITY, NEW_TOKENS, SLOTS = 160, 24, 9
EAGLE2 = "eagle2-tree:depth=3,top_k=4,total=12"
BEST_FIRST = "specedge:depth=4,budget=12,beams=4,branch=3"
"""A tree whose levels forward nodes of every depth, with a decay of scores."""
SPECS = [
    EAGLE2,
    "eagle2-tree",
    "eagle2-tree:depth=4,top_k=1,total=4",
    "eagle2-tree:depth=2,top_k=6,total=4",
    BEST_FIRST,
    "specedge:depth=3,proactive=false,tree=chain",
    "specinfer",
    "specinfer:branching=2-3-1",
    "specinfer:branching=2-2-1,guesses=2",
]

Trees = dict[str, list[tuple[list[int], list[int], list[int]]]]
"""The tokens, the parents and the verified nodes of every round, by request."""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with emulated_cards(2) as machine:
        yield machine


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Trees:
    """All trees that are sent to a target from now on."""
    sent: Trees = {}
    send = ModelVerifier.send

    def note(own: ModelVerifier, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> Any:
        for draft, nodes in zip(drafts, chosen, strict=True):
            tree = draft.tree
            sent.setdefault(draft.request_id, []).append(
                ([*tree.tokens], [*tree.parents], [*nodes])
            )
        return send(own, drafts, chosen)

    monkeypatch.setattr(ModelVerifier, "send", note)
    return sent


@pytest.fixture(scope="module")
def requests_() -> list[Request]:
    return make_requests(clear_prompts(tiny_llama(), [3, 9, 70], NEW_TOKENS), NEW_TOKENS)


def runners(
    *, ahead: bool = True, capacity: int = CAPACITY, draft_device: str = "cuda"
) -> tuple[Runner, Runner]:
    """Return a target and a draft model on cards; with `ahead` the draft's trees grow there."""
    models: list[Any] = [tiny_llama().to("cuda"), disturbed(tiny_llama(), 0.02).to(draft_device)]
    target, draft = (make_runner(model, SLOTS, capacity, "cuda-graph") for model in models)
    draft.grows_trees = ahead
    return target, draft


def require_same_trees(
    trees: Trees,
    spec: str,
    requests: list[Request],
    held: Callable[..., tuple[Runner, Runner]] = runners,
    **options: Any,
) -> dict[str, RequestRecord]:
    """Decode with trees that grow on the card and level by level, and return the first records."""
    found = []
    for ahead in (True, False):
        trees.clear()
        records = decode(parse_method(spec), held(ahead=ahead), requests, **options)
        lines = {
            name: [
                (
                    line.drafted,
                    line.submitted,
                    line.accepted,
                    line.parents,
                    line.path,
                    # A first round appends prompts too, to the right of which nodes stand.
                    line.padded if line is not record.rounds[0] else [],
                )
                for line in record.rounds
            ]
            for name, record in records.items()
        }
        expected = {
            name: [pytest.approx(line.expected) for line in record.rounds]
            for name, record in records.items()
        }
        found.append((dict(trees), outputs(records), lines, expected, records))
    assert found[0][0] == found[1][0]
    assert found[0][1:4] == found[1][1:4]
    return found[0][4]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("spec", "temperature", "batch_size"),
    nightly_except(
        [
            (EAGLE2, 0.0, 1),
            ("eagle2-tree", 0.7, 3),
            (BEST_FIRST, 0.0, 3),
            (SPECS[3], 0.0, 1),
            ("specinfer:branching=2-3-1", 0.0, 3),
        ],
        [(spec, *case) for spec in SPECS for case in ((0.0, 1), (0.0, 3), (0.7, 1), (0.7, 3))],
    ),
)
def test_trees_are_those_of_growth_level_by_level(
    spec: str, temperature: float, batch_size: int, requests_: list[Request], trees: Trees
) -> None:
    options = {"sampler": Sampler(temperature), "batch_size": batch_size}
    require_same_trees(trees, spec, requests_, **options)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("spec", [EAGLE2, BEST_FIRST])
def test_trees_near_the_end_of_the_context(spec: str, trees: Trees) -> None:
    """Requests have unequal rooms: the trees of one have no room for a level where those of others do."""
    prompts = clear_prompts(tiny_llama(), [3, 9, 5, 14], 40)
    requests = make_requests(prompts, 40)
    require_same_trees(
        trees, spec, requests, lambda ahead: runners(ahead=ahead, capacity=40), batch_size=4
    )
    sizes = [len(nodes) for rounds in trees.values() for nodes, _, _ in rounds]
    assert min(sizes) == 1, "no tree has room at the very end"
    assert len(set(sizes)) > 2, "and smaller trees before it"


@pytest.mark.usefixtures("machine")
def test_a_nucleus_cuts_the_probabilities_that_trees_grow_by(
    requests_: list[Request], trees: Trees
) -> None:
    require_same_trees(trees, EAGLE2, requests_, sampler=Sampler(0.7, top_p=0.8), batch_size=2)


def test_a_grammar_is_followed_level_by_level(machine: Machine) -> None:
    """Its masks are the host's to make, so that no tree of the batch grows on the card."""
    pytest.importorskip("llguidance")
    from tiny_grammars import END, VOCABULARY, constraint, masked_greedy

    language = constraint("regex:a[bc]{1,7}d")
    texts = [f"a{middle}d" for n in range(1, 8) for middle in map("".join, _words("bc", n))]
    models = sharp_llama(6, VOCABULARY), sharp_llama(2, VOCABULARY)
    prompts = [[2], [1, 5], [3, 3, 0]]
    requests = [replace(request, constraint=language) for request in make_requests(prompts, 12)]
    held = tuple(make_runner(model.to("cuda"), 4, 60, "cuda-graph") for model in models)
    records = decode(
        parse_method("eagle2-tree:depth=2,top_k=2,total=6"),
        held,  # type: ignore[arg-type]
        requests,
        batch_size=3,
        eos_ids=frozenset([END]),
    )
    plain = sharp_llama(6, VOCABULARY)
    expected = [masked_greedy(plain, prompt, texts, 12) for prompt in prompts]
    assert [record.output_ids for _, record in sorted(records.items())] == expected
    assert machine.counts.replays > 0


def _words(letters: str, length: int) -> list[str]:
    return [""] if not length else [w + x for w in _words(letters, length - 1) for x in letters]


@pytest.mark.parametrize(
    ("spec", "batch_size"),
    nightly_except(
        [(EAGLE2, 1), ("eagle2-tree:depth=2,top_k=3,total=7", 8), ("specinfer", 1)],
        [
            (spec, batch_size)
            for spec in (EAGLE2, "eagle2-tree:depth=2,top_k=3,total=7", BEST_FIRST, "specinfer")
            for batch_size in (1, 3, 8)
        ],
    ),
)
def test_a_round_waits_once(spec: str, batch_size: int, machine: Machine) -> None:
    """As a round of a chain of fixed length does."""
    if spec == BEST_FIRST:
        spec += ",proactive=false"
    method, held = parse_method(spec), runners()
    prompts = make_requests(clear_prompts(tiny_llama(), [4] * batch_size, NEW_TOKENS), NEW_TOKENS)
    plain = decode(AUTOREGRESSIVE, held, prompts, batch_size=batch_size)
    decode(method, held, prompts, batch_size=batch_size)  # captures all shapes
    with machine.counts.during() as counts:
        records = decode(method, held, prompts, batch_size=batch_size)
    assert outputs(records) == outputs(plain)
    rounds = max(len(record.rounds) for record in records.values())
    assert counts.waits <= rounds + batch_size, "one per round, and one for each prompt"
    assert counts.synchronisations == rounds, "the clock reads its events once a round"
    assert counts.copies_to_card == 0, "graphs copy their inputs themselves"
    assert counts.replays <= 4 * rounds + batch_size, (
        "trees, their verification, two moves of KV, and the prompts"
    )
    assert counts.launches == 0


def test_a_draft_on_another_card_is_verified_when_its_tree_is_known(
    requests_: list[Request], machine: Machine, trees: Trees
) -> None:
    require_same_trees(
        trees, EAGLE2, requests_, lambda ahead: runners(ahead=ahead, draft_device="cuda:1")
    )
    assert machine.counts.replays > 0


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("spec", [EAGLE2, BEST_FIRST])
def test_modelled_times_do_not_know_where_trees_grow(spec: str, requests_: list[Request]) -> None:
    on_card, by_level = (
        decode(
            parse_method(spec),
            runners(ahead=ahead),
            requests_,
            batch_size=2,
            deployment=DEPLOYMENT,
        )
        for ahead in (True, False)
    )
    assert {name: record.rounds for name, record in on_card.items()} == {
        name: record.rounds for name, record in by_level.items()
    }


@pytest.mark.usefixtures("machine")
def test_nan_in_a_tree_is_refused(requests_: list[Request]) -> None:
    for broken in (0, 1):
        held = runners()
        held[broken].executor.model.lm_head.weight.fill_(float("nan"))  # type: ignore[attr-defined]
        with pytest.raises(SkitError, match="NaN"):
            decode(parse_method(EAGLE2), held, requests_)


def test_a_pair_that_nobody_needs_is_freed_at_once(
    requests_: list[Request], machine: Machine
) -> None:
    before = machine.cards[0].allocated_bytes
    held = runners()
    after = []
    for _ in range(3):
        decode(parse_method(EAGLE2), held, requests_, batch_size=2)
        after.append(machine.cards[0].allocated_bytes)
    assert len(set(after[1:])) == 1, "the first time captures"
    with gc_paused():
        del held
        assert machine.cards[0].allocated_bytes == before


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("graph", ["trees", "selected"])
def test_trees_that_cannot_be_captured_grow_level_by_level(
    graph: str,
    requests_: list[Request],
    trees: Trees,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried once for each shape, and said."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("an operation that no capture allows\nand more")

    monkeypatch.setattr(GraphComputations, graph, fail)
    require_same_trees(trees, EAGLE2, requests_)
    said = [record.message for record in caplog.records if "TREES" in record.message]
    assert said
    assert all(
        text == "TREES ARE NO GRAPH ON cuda:0: an operation that no capture allows" for text in said
    )
    assert len(said) < 6


def turned(level: Level) -> Level:
    """Return a level with its nodes in reverse."""
    return Level(*(part.flip(-1) for part in level))


@pytest.mark.parametrize(
    "fault", ["other nodes are forwarded", "other nodes are verified", "a parent is wrong"]
)
def test_what_the_card_foresees_wrongly_is_computed_anew(
    fault: str,
    requests_: list[Request],
    trees: Trees,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trees and outputs are right even so, and the host waits for it."""
    next_level, selected = BeamTrees.next_level, BeamTrees.selected
    if fault == "other nodes are forwarded":
        monkeypatch.setattr(
            BeamTrees, "next_level", lambda own, width: turned(next_level(own, width))
        )
    else:
        place = 0 if fault == "other nodes are verified" else 1

        def wrong(own: BeamTrees) -> torch.Tensor:
            nodes = selected(own)
            nodes[..., -1, place] = (nodes[..., -1, place] + 1) % nodes.shape[1]
            return nodes

        monkeypatch.setattr(BeamTrees, "selected", wrong)
    held = runners()
    for _ in range(2):
        with machine.counts.during() as counts:
            records = decode(parse_method(EAGLE2), held, requests_[:1])
    assert counts.waits > len(records["000"].rounds) + 1
    require_same_trees(trees, EAGLE2, requests_)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", ["paths_to", "node_mask", "tokens"])
def test_a_wrong_computation_is_noticed(
    name: str, requests_: list[Request], trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks above fail where nodes attend to others than their ancestors, or scores are not the rule's."""
    if name == "paths_to":
        right = graph_trees.paths_to
        monkeypatch.setattr(graph_forward, "paths_to", lambda above, _: right(above, 1))
    elif name == "node_mask":
        mask = graph_forward.GraphMemory.node_mask
        monkeypatch.setattr(
            graph_forward.GraphMemory,
            "node_mask",
            lambda own, ancestors, *others: mask(own, torch.zeros_like(ancestors), *others),
        )
    else:
        add = BeamTrees.add_children
        monkeypatch.setattr(
            BeamTrees,
            "add_children",
            lambda own, level, numbers, candidates, tokens: add(
                own, level, numbers, candidates, tokens.roll(1, -1)
            ),
        )
    with pytest.raises(AssertionError):
        require_foreseen(requests_, trees)


def require_foreseen(requests: list[Request], trees: Trees) -> None:
    """Decode trees that are right, and of which every level and every verification was foreseen."""
    levels = [0, 0]
    right = graph_trees.TreeWork.next_level, graph_trees.VerifiedAhead.answers
    with pytest.MonkeyPatch.context() as patch:

        def next_level(own: Any, rows: Any, layers: Any) -> int:
            level = right[0](own, rows, layers)
            levels[0] += level > 0
            levels[1] += 1
            return level

        def answers(own: Any, rows: Any, layers: Any) -> bool:
            is_answer = right[1](own, rows, layers)
            levels[0] += is_answer
            levels[1] += 1
            return is_answer

        patch.setattr(graph_trees.TreeWork, "next_level", next_level)
        patch.setattr(graph_trees.VerifiedAhead, "answers", answers)
        require_same_trees(trees, EAGLE2, requests[:2], batch_size=2)
    assert levels[0] == levels[1] > 0


@pytest.mark.usefixtures("machine")
def test_every_level_is_foreseen(requests_: list[Request], trees: Trees) -> None:
    require_foreseen(requests_, trees)


def test_the_nodes_that_a_rule_may_forward() -> None:
    assert BeamRule(4, 10, 10, 59, newest_only=True).widths == [1, 10, 10, 10]
    assert BeamRule(4, 32, 3, 12).widths == [1, 3, 9, 12]
    assert BeamRule(4, 32, 1, 12).widths == [1, 1, 1, 1]
    assert BeamRule(3, 4, 4, 2, newest_only=True).widths == [1, 2, 2]
    assert BeamRule(3, 1, 1, 32).bounded == BeamRule(3, 1, 1, 3)
    assert BeamRule(3, 4, 4, 12).bounded == BeamRule(3, 4, 4, 12)


def test_the_levels_of_a_shape() -> None:
    rule = ShapeRule((0, 0, 1, 1, 2, 4))
    assert rule.below == [[1, 2], [3, 4, 5], [6]]
    assert rule.inner == [[0], [1, 2], [4]]
    assert (rule.widths, rule.levels, rule.branch, rule.budget) == ([1, 2, 1], 3, 2, 6)
    assert rule.ranks == [0, 1, 0, 1, 0, 0]
    assert shape_of((2, 2, 1)).parents == (0, 0, 1, 1, 2, 2, 3, 4, 5, 6)
    leaf = TreeShape()
    assert TreeShape((TreeShape((leaf, TreeShape((leaf,)))), TreeShape((leaf,)))).parents == (
        rule.parents
    )


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    "rule", [BeamRule(1, 4, 4, 4), BeamRule(3, 4, 65, 4), BeamRule(9, 99, 32, 99)]
)
def test_rules_that_no_graph_follows(rule: BeamRule) -> None:
    """One level, more candidates than results have, and more nodes than graphs have."""
    _, draft = runners()
    executor = draft.executor
    assert isinstance(executor, CudaGraphExecutor)
    before = executor.captures
    draft.acquire()
    forward = draft.forward([Append(0, [1, 2])], trees=GrownBy(rule, 1.0))
    assert forward.argmax()
    assert executor.captures == before + 1
    assert not any(
        isinstance(key, GraphKey) and key.rule is not None for key in executor._graphs._graphs
    )

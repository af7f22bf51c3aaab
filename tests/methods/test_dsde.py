"""How dsde turns divergences into lengths, worked out by hand, and that verdicts have the models' own divergences."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from environments import DEPLOYMENT, ENVIRONMENT
from known_drafts import KnownDrafter, at
from tiny_models import decode, make_requests, make_runner, plain_logits, tiny_llama

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.verification import Verdict
from specbench_kit.live.server.drafting import DraftingOffer
from specbench_kit.methods.base import Capability, Method, Policy
from specbench_kit.methods.dsde import Dsde, Stability, _DsdePolicy, weighted_variance
from specbench_kit.methods.spec import parse_method
from specbench_kit.studies.recording.trace import TreeMethods
from specbench_kit.traces.replay import require_replayable
from specbench_kit.traces.trace import TraceHeader

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Drafter


def test_the_weighted_variance_is_worked_out_by_hand() -> None:
    """0.2 weighs 1 and 0 weighs .85: the mean is .2/1.85 = .108108, the variance .0099343."""
    assert weighted_variance([0.2, 0.0], 0.85) == pytest.approx(0.0099343, abs=1e-7)
    assert weighted_variance([0.3, 0.3, 0.3], 0.85) == pytest.approx(0.0, abs=1e-12)


def test_the_penalty_is_the_scale_times_the_growth_of_the_variance() -> None:
    """One window of two: exp(.2) - 1 = .221403. A long window that holds a calm past doubles it and more."""
    both = Stability(deque(maxlen=30))
    both.add([0.0, 0.2])
    assert list(both.divergences) == [0.2, 0.0]
    assert both.penalty(10, 0.85) == pytest.approx(0.221403, abs=1e-6)
    calm = Stability(deque(maxlen=4))
    calm.add([0.0, 0.0])
    calm.add([0.0, 0.2])
    # Weights 1, .85, .7225, .614125: the mean is .062756, the variance .0086129.
    assert calm.penalty(2, 0.85) == pytest.approx(0.221403 * 0.0099343 / 0.0086129, rel=1e-4)


def calibrated(**options: object) -> _DsdePolicy:
    """A policy whose calibration saw at most six tokens accepted, and divergences of .1 on average and .5 at most."""
    policy = _DsdePolicy(Dsde(**options))  # type: ignore[arg-type]
    policy.rounds = policy.options.calibration
    policy.most_accepted = 6
    policy.divergences = [0.5, 0.0, 0.0, 0.0, 0.0]
    return policy


def stable(*divergences: float) -> Stability:
    """A request with these divergences in its last verification, and none before."""
    stability = Stability(deque(maxlen=30))
    stability.add(divergences)
    return stability


def test_lengths_are_worked_out_by_hand_and_capped_by_their_mean() -> None:
    """6 x (1 + .1/.5) = 7.2 at most; .778597 x 5.2 + 2 = 6.0487 for one, 2 for a request of exp(.8) - 1 = 1.2255."""
    policy = calibrated()
    policy.requests = {"calm": stable(0.0, 0.2), "wild": stable(0.2, 0.6)}
    assert policy.longest == pytest.approx(7.2)
    assert policy.predicted("calm") == pytest.approx(6.04871, abs=1e-5)
    assert policy.predicted("wild") == 2
    assert policy.lengths(["calm", "wild"]) == [4, 2]
    assert policy.lengths(["calm"]) == [6]
    assert policy.lengths(["new"]) == [7]
    assert calibrated(max_draft=5).lengths(["new"]) == [5]
    uncapped = calibrated(cap=False)
    uncapped.requests = policy.requests
    assert uncapped.lengths(["calm", "wild"]) == [6, 2]


def test_calibration_drafts_as_far_as_it_may_and_learns_from_every_request() -> None:
    policy = _DsdePolicy(Dsde(max_draft=4, calibration=1))
    drafter = KnownDrafter([[at()] * 9] * 2)
    policy.draft(drafter)  # type: ignore[arg-type]
    assert [draft.tree.last for draft in drafter.drafts] == [4, 4]
    verdicts = drafter.verdicts(policy.choose(drafter.drafts), [3, 1])
    policy.observe(
        [
            replace(verdict, divergences=[divergence] * 4)
            for verdict, divergence in zip(verdicts, (0.0, 0.4), strict=True)
        ]
    )
    assert policy.longest == pytest.approx(3 * (1 + 0.2 / 0.4))
    assert policy.lengths(["0"]) == [4]
    policy.forget("0")
    policy.observe([replace(verdicts[0], divergences=[9.0], path=[1, 2, 3, 4])])
    assert policy.most_accepted == 3


@dataclass(frozen=True)
class Observing(Method):
    """A chain of three tokens, whose verdicts it keeps with the text before them."""

    verdicts: list[tuple[list[int], Verdict]] = field(default_factory=list)
    required_capability = Capability.TREES

    @property
    def submits_trees(self) -> bool:
        return False

    @property
    def reads_divergences(self) -> bool:
        return True

    def policy(self) -> Policy:
        return _ObservingPolicy(self.verdicts)


@dataclass
class _ObservingPolicy(Policy):
    verdicts: list[tuple[list[int], Verdict]]
    texts: dict[str, list[int]] = field(default_factory=dict)

    def draft(self, drafter: "Drafter") -> None:
        self.texts = {draft.request_id: [*draft.session.tokens] for draft in drafter.drafts}
        for _ in range(3):
            drafter.extend(drafter.drafts)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        self.verdicts += [(self.texts[verdict.draft.request_id], verdict) for verdict in verdicts]


def test_a_verdict_has_the_divergence_of_both_models_at_every_node() -> None:
    target, draft, method = tiny_llama(3), tiny_llama(4), Observing()
    runners = make_runner(target, 2, 64), make_runner(draft, 2, 64)
    decode(method, runners, make_requests([[1, 2, 3], [4]], 6), batch_size=2)
    assert len(method.verdicts) >= 4
    for text, verdict in method.verdicts:
        tokens = verdict.draft.tree.tokens
        assert len(verdict.divergences) == len(verdict.submitted)
        for node, divergence in zip(verdict.submitted, verdict.divergences, strict=True):
            above = [*text, *tokens[1:node]]
            p, q = (plain_logits(model, above)[-1].softmax(-1) for model in (target, draft))
            wanted = float((q * (q / p).log()).sum())
            assert divergence == pytest.approx(wanted, abs=1e-5)
            assert divergence > 0


def test_a_target_that_gives_no_distributions_is_refused_in_one_line() -> None:
    method = parse_method("dsde")
    with pytest.raises(SkitError, match=r"^dsde: servers do not send the target's distributions"):
        method.prepare(replace(ENVIRONMENT, served=True))
    with pytest.raises(SkitError, match=r"^dsde: a trace holds no distributions of the target"):
        require_replayable(method, TraceHeader)  # type: ignore[arg-type]
    with pytest.raises(SkitError, match=r"^--method dsde: it reads the target's distributions"):
        DraftingOffer({"dsde": method})
    with pytest.raises(SkitError, match=r"^--trees dsde: dsde drafts no trees"):
        TreeMethods(("dsde",), [DEPLOYMENT])
    for spec in ("dsde:min_draft=5,max_draft=4", "dsde:short=9,long=4", "dsde:decay=2"):
        with pytest.raises(SkitError, match=r"^dsde: "):
            parse_method(spec)

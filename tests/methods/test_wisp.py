"""The method wisp: where it stops, which predictor it takes, and what its decisions cost."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from environments import DEPLOYMENT, ENVIRONMENT
from known_drafts import KnownDrafter, at
from tiny_models import clear_prompts, decode, disturbed, make_requests, make_runner, tiny_llama
from tiny_predictors import PAIR, confidence_predictor
from trace_builders import made_request

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock, Phase
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments import assembly
from specbench_kit.deployments.assembly import round_policy
from specbench_kit.deployments.placing import deployment_key, environment
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner
from specbench_kit.predictors import library
from specbench_kit.predictors.artefact import load, save
from specbench_kit.predictors.dense import Dense
from specbench_kit.predictors.library import PairHashes
from specbench_kit.predictors.thresholds import PUBLISHED_RULE, TunedThreshold
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.runs.deployment import Link
from specbench_kit.runs.document import RunDescription
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import TraceHeader

OTHER = environment(PairHashes("another", "pair"), DEPLOYMENT)
LONG = 24
AT_15_PERCENT = 0.057
"""The score of a token with a confidence of 0.15: these models are seldom surer."""
Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 4, 128), make_runner(disturbed(target, 0.01), 4, 128)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return clear_prompts(tiny_llama(0), [3, 9, 14, 30, 2, 21], LONG)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A predictor that expects acceptance from a confidence of 0.5 on."""
    return confidence_predictor(tmp_path / "by hand")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's predictors; none is bundled."""
    monkeypatch.setenv("SKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(library, "BUNDLED", tmp_path / "nothing")
    return tmp_path / "home/predictors"


def prepared(spec: str) -> Method:
    return parse_method(spec).prepare(ENVIRONMENT)


def run(
    spec: str, runners: Runners, prompts: list[list[int]], **options: object
) -> dict[str, RequestRecord]:
    return decode(prepared(spec), runners, make_requests(prompts, LONG), **options)  # type: ignore[arg-type]


def rounds(records: dict[str, RequestRecord]) -> list[RoundRecord]:
    return [step for record in records.values() for step in record.rounds]


def counts(records: dict[str, RequestRecord]) -> dict[str, list[tuple[int, int, int]]]:
    return {
        name: [(r.drafted, r.submitted, r.accepted) for r in record.rounds]
        for name, record in records.items()
    }


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_token_that_it_stops_at_is_drafted_and_not_sent(
    temperature: float, folder: Path, runners: Runners, prompts: list[list[int]]
) -> None:
    spec = f"wisp:predictor={folder},operating_point={AT_15_PERCENT},max_draft=4"
    records_found = rounds(run(spec, runners, prompts, sampler=Sampler(temperature)))
    assert {
        step.drafted - step.submitted for step in records_found if step.submitted < 4 and step.end_s
    } >= {1}
    assert {step.drafted for step in records_found if step.submitted == 4} == {4}
    assert {step.submitted for step in records_found} >= {0, 1, 4}


def test_a_threshold_that_nothing_reaches_is_plain_decoding_with_a_probe(
    folder: Path, runners: Runners, prompts: list[list[int]]
) -> None:
    records_found = rounds(run(f"wisp:predictor={folder},operating_point=1", runners, prompts))
    assert {(step.drafted, step.submitted, step.committed) for step in records_found} == {(1, 0, 1)}


def test_a_threshold_that_everything_reaches_is_a_fixed_length(
    folder: Path, runners: Runners, prompts: list[list[int]]
) -> None:
    everything = run(f"wisp:predictor={folder},operating_point=0,max_draft=3", runners, prompts)
    fixed = decode(parse_method("fixed-k:k=3"), runners, make_requests(prompts, LONG))
    assert counts(everything) == counts(fixed)


def test_requests_of_a_batch_stop_each_on_its_own(
    folder: Path, runners: Runners, prompts: list[list[int]]
) -> None:
    spec = f"wisp:predictor={folder},max_draft=4"
    assert counts(run(spec, runners, prompts, batch_size=3)) == counts(run(spec, runners, prompts))


def test_the_predictors_own_longest_draft_holds_unless_another_is_given(
    folder: Path, runners: Runners, prompts: list[list[int]]
) -> None:
    save(folder, replace(load(folder), threshold=0.0, max_draft=2))
    for spec, longest in (
        (f"wisp:predictor={folder}", 2),
        (f"wisp:predictor={folder},max_draft=5", 5),
    ):
        assert max(step.drafted for step in rounds(run(spec, runners, prompts))) == longest


class OpenPhases(MeasuringClock):
    """A clock that tells which phases are open, the inner one last."""

    open: ClassVar[list[Phase]] = []

    def enter(self, phase: Phase) -> None:
        self.open.append(phase)
        super().enter(phase)

    def leave(self, resumed: bool, typical: bool) -> None:
        self.open.pop()
        super().leave(resumed, typical)


class Noting(Dense):
    """Notes the phase that is charged while it scores."""

    charged: ClassVar[set[Phase]] = set()

    def score(self, features: Sequence[float]) -> float:
        self.charged.add(OpenPhases.open[-1])
        return super().score(features)


def test_deciding_is_charged_to_the_policy(
    folder: Path, runners: Runners, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        assembly, "measuring_clock", lambda device, started_s, _: OpenPhases(device, started_s)
    )
    predictor = load(folder)
    assert isinstance(predictor.scorer, Dense)
    assert predictor.scorer.scaler is not None
    scorer = Noting(predictor.scorer.scaler, predictor.scorer.layers)
    method = replace(
        prepared(f"wisp:predictor={folder}"), predictor=replace(predictor, scorer=scorer)
    )
    decode(method, runners, make_requests(prompts, LONG), batch_size=2)
    assert Noting.charged == {"policy"}


def test_a_folder_a_name_a_family_and_the_best_are_found(own: Path, folder: Path) -> None:
    with pytest.raises(
        SkitError,
        match=r"no predictor for this pair of models: run skit train-predictor with the sa",
    ):
        prepared("wisp")
    confidence_predictor(own / "mine", threshold=0.7)
    thresholds = {
        spec: prepared(f"wisp:predictor={spec}").predictor.threshold  # type: ignore[attr-defined]
        for spec in (str(folder), "mine", "logistic", "auto")
    }
    assert thresholds == {str(folder): 0.5, "mine": 0.7, "logistic": 0.7, "auto": 0.7}
    with pytest.raises(
        SkitError, match=r"no predictor 'xgboost' for this pair of models; known: mine"
    ):
        prepared("wisp:predictor=xgboost")


@pytest.mark.usefixtures("own")
def test_another_pair_is_refused_unless_forced(folder: Path) -> None:
    with pytest.raises(
        SkitError, match=r"trained for another pair of models; .* or add force=true"
    ):
        parse_method(f"wisp:predictor={folder}").prepare(OTHER)
    forced = parse_method(f"wisp:predictor={folder},force=true").prepare(OTHER)
    assert forced.predictor.pair == PAIR  # type: ignore[attr-defined]
    with pytest.raises(SkitError, match=r"no predictor for this pair of models"):
        parse_method("wisp").prepare(OTHER)


@pytest.mark.parametrize(
    "option", ["max_draft=0", "operating_point=1.5", "operating_point=nan", "max_draft=x"]
)
def test_options_that_make_no_sense_are_refused(option: str) -> None:
    with pytest.raises(SkitError, match=f"^wisp: {option.partition('=')[0]} must "):
        parse_method(f"wisp:{option}")


def test_a_bare_name_is_never_a_folder(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder `auto` where somebody works is not what plain `wisp` asks for."""
    confidence_predictor(own / "mine", threshold=0.25)
    for name in ("auto", "mine"):
        confidence_predictor(tmp_path / "here" / name, threshold=0.75)
    monkeypatch.chdir(tmp_path / "here")
    thresholds = {
        spec: prepared(spec).predictor.threshold  # type: ignore[attr-defined]
        for spec in ("wisp", "wisp:predictor=mine", "wisp:predictor=./mine")
    }
    assert thresholds == {"wisp": 0.25, "wisp:predictor=mine": 0.25, "wisp:predictor=./mine": 0.75}


def test_a_threshold_of_zero_is_a_fixed_length_that_pays_for_no_score(tmp_path: Path) -> None:
    method = prepared(
        f"wisp:predictor={confidence_predictor(tmp_path / 'all pass', threshold=0.0)}"
    )
    assert method.learned is False
    assert method.uses()["predictor"]["threshold"] == 0.0


def drafted_and_sent(spec: str, *confidences: float) -> tuple[int, int]:
    """Return the counts of one chain drawn with these confidences, scored 1 / (1 + exp(4 - 8 confidence))."""
    drafter = KnownDrafter([[at(confidence=confidence) for confidence in confidences]])
    policy = round_policy(prepared(spec))
    policy.draft(drafter)
    (sent,) = policy.choose(drafter.drafts)
    return drafter.drafts[0].tree.last, len(sent)


def test_the_token_that_it_stops_at_can_be_sent(folder: Path) -> None:
    spec = f"wisp:predictor={folder},operating_point=0.5,max_draft=4"
    assert drafted_and_sent(spec, 0.9, 0.4, 0.9, 0.9) == (2, 1)
    assert drafted_and_sent(f"{spec},send_last=true", 0.9, 0.4, 0.9, 0.9) == (2, 2)
    assert drafted_and_sent(f"{spec},send_last=true", 0.9, 0.9, 0.9, 0.9, 0.9) == (4, 4)


def test_a_cumulative_score_is_the_product_of_the_chances_so_far(folder: Path) -> None:
    """A confidence of 0.6 scores .68997; to the third power that is .328, to the fourth .227."""
    spec = f"wisp:predictor={folder},operating_point=0.3,max_draft=6"
    assert drafted_and_sent(spec, *[0.6] * 6) == (6, 6)
    assert drafted_and_sent(f"{spec},score=cumulative", *[0.6] * 6) == (4, 3)
    assert drafted_and_sent(f"{spec},score=cumulative,send_last=true", *[0.6] * 6) == (4, 4)


def test_the_threshold_of_the_deployment_at_hand_is_taken_and_another_is_named(
    folder: Path,
) -> None:
    key = deployment_key(DEPLOYMENT)
    near, far = (
        TunedThreshold(*key, *PUBLISHED_RULE, 0.9, 3),
        TunedThreshold("far", "f00", True, "token", 0.1, 7),
    )
    save(
        folder,
        replace(load(folder), tuned=(near, far), decision_s=7e-5, decision_origin="in the loop"),
    )
    assert drafted_and_sent(f"wisp:predictor={folder}", 1.0, 0.7, 1.0) == (2, 1)  # 0.7 scores .83
    used = prepared(f"wisp:predictor={folder}").uses()["predictor"]
    assert (used["threshold"], used["max_draft"], used["deployment"]) == (0.9, 3, "test")
    assert (used["decision_s"], used["decision_origin"], "rule" in used) == (
        7e-5,
        "in the loop",
        False,
    )
    elsewhere = parse_method(f"wisp:predictor={folder}").prepare(
        environment(PAIR, replace(DEPLOYMENT, link=Link(rtt_s=0.5)))
    )
    assert elsewhere.uses()["predictor"]["deployment"] == "test with other values"
    sending = prepared(f"wisp:predictor={folder},send_last=true").uses()
    assert sending["predictor"]["rule"] == "the rule as published"
    (line,) = [
        entry
        for entry in setting_cautions(RunDescription(method="wisp", uses=sending))
        if entry.startswith("OTHER RULE")
    ]
    assert (
        line
        == "OTHER RULE: the predictor of wisp has a threshold for the rule as published only; train it again."
    )
    own = prepared(f"wisp:predictor={folder},send_last=true,operating_point=0.3").uses()[
        "predictor"
    ]
    assert (own["threshold"], own["deployment"], "rule" in own) == (0.3, "test", False)


def test_a_decision_takes_what_the_deployment_says_or_else_what_it_took_in_the_loop(
    folder: Path,
) -> None:
    save(folder, replace(load(folder), decision_s=0.002, decision_origin="in the loop"))
    method, trace = prepared(f"wisp:predictor={folder}"), made_request("one", 12)
    header = TraceHeader(8, 0.01, (0.1,) * 9, {})
    trace = replace(
        trace,
        drafted=trace.drafted.repeat(2, 1)[:, :8],
        statistics=trace.statistics.repeat(2, 1)[:, :8],
    )
    for stated, paid_s in ((None, 0.002), (0.0, 0.0), (0.005, 0.005)):
        deployment = replace(DEPLOYMENT, predictor_s=stated)
        (record,) = replay(method, header, [trace], deployment=deployment)
        assert sum(step.policy_s for step in record.rounds) == pytest.approx(
            paid_s * sum(step.drafted for step in record.rounds)
        )

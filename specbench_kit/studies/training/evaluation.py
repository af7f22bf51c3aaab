"""What each contender does to decoding, on prompts that nothing was chosen on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.metrics.acceptance import counts, ratios
from specbench_kit.metrics.cost import per_makespan
from specbench_kit.metrics.latency import PHASES, wasted_time
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.predictors import scoring
from specbench_kit.predictors.thresholds import ThresholdRule
from specbench_kit.reports.predictor.plots import Judged
from specbench_kit.studies.training.contenders import Contender, Kind, family_of
from specbench_kit.studies.training.offsets import Offsets
from specbench_kit.studies.training.pairing import Get, PairedSums, Sums
from specbench_kit.studies.training.rounds import RoundArrays, play, until_rejection
from specbench_kit.studies.training.sites import sums_by_prompt
from specbench_kit.studies.training.theorem import waste_and_bound
from specbench_kit.studies.training.timing import Timing

Fields = dict[str, Any]
COLUMNS = ("drafted", "submitted", "accepted", "committed")
SECONDS = (*(f"{phase}_s" for phase in PHASES), "end_s")


@dataclass(frozen=True, slots=True)
class Played:
    """A contender's rounds on some offsets; `seconds` is of each round, `speed` committed tokens per second."""

    contender: Contender
    rounds: RoundArrays
    seconds: Sums

    @classmethod
    def on(cls, offsets: Offsets, contender: Contender, timing: Timing) -> "Played":
        rounds = play(offsets, contender.plan(offsets))
        return cls(contender, rounds, contender.seconds(rounds, timing))

    @property
    def speed(self) -> float:
        return float(self.rounds.committed.sum() / self.seconds.sum())


@dataclass(frozen=True, slots=True)
class Leaders:
    """Names of the fastest of each kind on the validation prompts; `longest` always drafts all that it may."""

    classifier: str
    rule: str
    """The classifier under the rule under which it is fastest."""
    feature: str
    threshold: str
    fixed: str
    longest: str

    @classmethod
    def of(
        cls, contenders: Sequence[Contender], best: Contender, speeds: Mapping[str, float], max_draft: int
    ) -> "Leaders":
        """`speeds` are on the validation prompts, by name; `best` is the fastest of all families and rules."""

        def fastest(kind: Kind) -> str:
            return max((one.name for one in contenders if one.kind == kind), key=speeds.__getitem__)

        return cls(
            classifier=family_of(best),
            rule=best.name,
            feature=fastest("feature"),
            threshold=fastest("threshold"),
            fixed=fastest("fixed"),
            longest=f"fixed-k:k={max_draft}",
        )


class Evaluation:
    """All contenders on the same offsets, beside each other."""

    def __init__(
        self, offsets: Offsets, contenders: Sequence[Contender], leaders: Leaders, timing: Timing, seed: int
    ) -> None:
        self.offsets, self.leaders, self.timing = offsets, leaders, timing
        self.played = {one.name: Played.on(offsets, one, timing) for one in contenders}
        self.paired = PairedSums(self._columns())

    def decoding(self) -> dict[str, Fields]:
        """Each contender's metrics, as `reports.vocabulary` defines them, and how it compares."""
        return {name: self._measured(one) | self._compared(name) for name, one in self.played.items()}

    def classification(self) -> dict[str, Fields]:
        """How well each judge tells accepted from rejected tokens (WISP Tables 4 and 10)."""
        return {
            name: scoring.summarise(*labels_and_scores(self.offsets, one.contender), one.contender.judge.threshold)
            for name, one in self.played.items()
            if one.contender.judge and one.contender.kind != "variant"
        }

    def judged(self) -> dict[str, Judged]:
        """The test tokens as each classifier and the best single feature score them."""
        shown = [one.contender for one in self.played.values() if one.contender.kind == "classifier"]
        shown.append(self.played[self.leaders.feature].contender)
        return {
            one.name: Judged(*labels_and_scores(self.offsets, one), one.judge.threshold) for one in shown if one.judge
        }

    def theorem(self) -> dict[str, Fields]:
        """Theorem 1's bound on the rounds of every rule that it speaks of: those that keep back what they reject."""
        return {
            name: waste_and_bound(self.offsets, one.rounds, one.contender.judge)
            for name, one in self.played.items()
            if one.contender.judge and not one.contender.judge.rule.send_last
        }

    def speed_ratio(self, name: str, other: str) -> Fields:
        """Speed of one contender over another's: they commit the same tokens."""
        return asdict(self.paired.estimate(lambda get: get(other, "seconds") / get(name, "seconds")))

    def choices(self) -> dict[str, Fields]:
        """Speed ratios between those that a user has to choose from."""
        leaders = self.leaders
        return {
            "wisp_over_fixed": self.speed_ratio(leaders.rule, leaders.fixed),
            "confidence_over_fixed": self.speed_ratio(leaders.threshold, leaders.fixed),
            "wisp_over_confidence": self.speed_ratio(leaders.rule, leaders.threshold),
            "plain_over_fixed": self.speed_ratio("autoregressive", leaders.fixed),
        }

    def attribution(self) -> Fields:
        """Tokens per second of the recommended classifier without one of its shortcomings at a time."""
        leader = self.played[self.leaders.classifier].contender
        sending = self.played[f"{self.leaders.classifier},{ThresholdRule(send_last=True).options}"]
        return {
            "never_wrong": self.timing.speed(self.offsets, until_rejection(self.offsets), leader.policy_s),
            "deciding_for_free": self.timing.speed(self.offsets, leader.plan(self.offsets), 0.0),
            "last_token_sent": sending.speed,
        }

    def _measured(self, one: Played) -> Fields:
        group = RequestGroup(to_records(self.offsets, one.rounds, self.timing, one.contender.paid_s))
        makespan_s = float(one.seconds.sum())
        measured = counts(group) | ratios(group.rounds) | wasted_time(group.rounds)
        return {"kind": one.contender.kind, **measured, **per_makespan(group, makespan_s)}

    def _compared(self, name: str) -> Fields:
        leaders, paired = self.leaders, self.paired
        return {
            "speedup": self.speed_ratio(name, "autoregressive"),
            "against_best_fixed": self.speed_ratio(name, leaders.fixed),
            "against_best_feature": self.speed_ratio(name, leaders.feature),
            "regret": asdict(paired.estimate(lambda get: 1 - get("oracle", "seconds") / get(name, "seconds"))),
            "gap_closed": asdict(paired.estimate(lambda get: self._gap_closed(get, name))),
            "acceptance_gain": asdict(
                paired.estimate(lambda get: _acceptance(get, name) / _acceptance(get, leaders.longest) - 1)
            ),
        }

    def _gap_closed(self, get: Get, name: str) -> Sums:
        """Share of the speed between the best fixed length and the oracle; nan where the oracle is not faster."""
        fixed, oracle, own = (1 / get(who, "seconds") for who in (self.leaders.fixed, "oracle", name))
        return np.where(oracle > fixed, (own - fixed) / (oracle - fixed), np.nan)

    def _columns(self) -> Mapping[tuple[str, str], Sums]:
        """Each contender's sums per prompt."""
        columns = {}
        for name, one in self.played.items():
            values = {column: getattr(one.rounds, column) for column in COLUMNS} | {"seconds": one.seconds}
            for column, value in values.items():
                columns[name, column] = sums_by_prompt(self.offsets, one.rounds, value)
        return columns


def _acceptance(get: Get, name: str) -> Sums:
    return get(name, "accepted") / get(name, "submitted")


def labels_and_scores(offsets: Offsets, contender: Contender) -> tuple[scoring.Labels, scoring.Scores]:
    """Of the examples that the offsets hold."""
    assert contender.judge is not None
    rows, columns = offsets.met()
    return columns < offsets.matched[rows], contender.judge.score(offsets)[rows, columns]


def to_records(offsets: Offsets, rounds: RoundArrays, timing: Timing, policy_s: float) -> list[RequestRecord]:
    """The rounds as the records of a replay, with modelled seconds; ends of rounds are left out."""
    records = {int(number): RequestRecord(str(number), "", [], time_kind="modelled") for number in offsets.request}
    columns = (getattr(rounds, column).tolist() for column in COLUMNS)
    for request, drafted, submitted, accepted, committed in zip(
        offsets.request[rounds.offset].tolist(), *columns, strict=True
    ):
        seconds: dict[str, Any] = dict.fromkeys(SECONDS, 0.0)
        seconds |= {"draft_s": drafted * timing.draft_s, "policy_s": drafted * policy_s}
        seconds["verify_s"] = timing.verify_s[submitted]
        seconds["link_s"] = timing.link_s[submitted] if timing.link_s else 0.0
        records[request].rounds.append(RoundRecord(drafted, submitted, accepted, committed, **seconds))
    return list(records.values())

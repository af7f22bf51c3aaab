"""Verdicts on outputs: by hand, and on tiny models in half precision with right and with faulty verification."""

from functools import cache
from itertools import product

import pytest
import torch
from msgspec.structs import replace
from nightly import nightly_except
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    random_prompts,
    tiny_llama,
)

from benchmarks.faults import accept_second, injected, swap_extra
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.specinfer import SpecInfer
from specbench_kit.metrics.evidence import GreedyChoice, SampledChoice, ShapeJudge
from specbench_kit.metrics.losslessness import (
    DivergenceJudge,
    LosslessCounts,
    Losslessness,
    check,
    check_all,
    summarise_checks,
)
from specbench_kit.metrics.shapes import RecomputedLogits

LIKELIEST = GreedyChoice()


def output(*ids: int, request_id: str = "a", **fields: object) -> RequestRecord:
    record = RequestRecord(request_id, "chat", [1, 2], list(ids))
    for name, value in fields.items():
        setattr(record, name, value)
    return record


class Never:
    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        pytest.fail(f"{record.request_id} was judged")


class Always:
    """Calls every divergence a tie, but that of one request."""

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        verdict = "error" if record.request_id == "wrong" else "tie"
        return Losslessness(
            record.request_id, verdict, position, repeat=record.repeat, noise=2e-6, control=1e-6
        )


def test_equal_outputs_are_identical_without_asking_the_target() -> None:
    result = check(output(5, 6, 7), output(5, 6, 7), Never())
    assert (result.verdict, result.position) == ("identical", None)


@pytest.mark.parametrize(("method", "baseline"), [((5,), (5, 7)), ((5, 7), (5,))])
def test_an_output_that_ends_too_early_is_an_error_at_its_end(
    method: list[int], baseline: list[int]
) -> None:
    result = check(output(*method, finish_reason="eos"), output(*baseline), Never())
    assert (result.verdict, result.position) == ("error", 1)
    assert {result.method_token, result.baseline_token} == {7, None}


def test_another_prompt_is_its_own_verdict() -> None:
    assert check(output(5, prompt_ids=[1, 3]), output(6), Never()).verdict == "prompt differs"


def test_failed_or_missing_requests_are_not_compared() -> None:
    failed = output(finish_reason="error", error="the prompt is too long")
    for record, baseline in ((failed, output(5)), (output(5), failed), (output(5), None)):
        assert check(record, baseline, Never()).verdict == "not compared"


def test_summary_counts_each_verdict() -> None:
    records = [
        output(5, request_id="same"),
        output(9, request_id="tie"),
        output(8, request_id="wrong"),
    ]
    records += [output(4, request_id="turn", prompt_ids=[3]), output(1, request_id="alone")]
    baseline = [output(5, request_id="same")] + [
        output(7, request_id=i) for i in ("wrong", "tie", "turn")
    ]
    summary = summarise_checks(check_all(records, baseline, Always()))
    assert [d.request_id for d in summary.divergences] == ["tie", "wrong"]
    assert replace(summary, divergences=[]) == LosslessCounts(
        lossless=False,
        compared=3,
        identical=1,
        ties=1,
        errors=1,
        unjudged=0,
        prompt_differs=1,
        not_compared=1,
        noise=2e-6,
        control=1e-6,
    )


def test_ties_alone_are_lossless_and_nothing_compared_is_neither() -> None:
    tie = check(output(9), output(7), Always())
    assert summarise_checks([tie]).lossless is True
    assert summarise_checks([]).lossless is None


class DecodedPair:
    """A tiny pair in half precision, and the outputs of plain decoding."""

    def __init__(self, dtype: torch.dtype, size: int, requests: int = 5) -> None:
        target = tiny_llama(vocab_size=256).to(dtype)
        self.size = size
        self.runners = tuple(
            make_runner(model, size, 120) for model in (target, disturbed(target, 0.03))
        )
        self.requests = make_requests(random_prompts([7 + 3 * i for i in range(requests)], 256), 24)
        self.shapes = RecomputedLogits(self.runners[0], target)
        self.plain = list(self.decode(AUTOREGRESSIVE).values())
        self._right: dict[object, dict[str, RequestRecord]] = {}

    def decode(self, method: object) -> dict[str, RequestRecord]:
        first, second = self.runners
        decoded = decode(method, (first, second), self.requests, batch_size=self.size)  # type: ignore[arg-type]
        return dict(sorted(decoded.items()))

    def right(self, method: object) -> dict[str, RequestRecord]:
        """Return the outputs without a fault, which are decoded once."""
        if method not in self._right:
            self._right[method] = self.decode(method)
        return self._right[method]

    @property
    def judge(self) -> DivergenceJudge:
        return ShapeJudge(self.shapes, lambda _: LIKELIEST, exact=True)


make_bench = cache(DecodedPair)
HALVES = (torch.bfloat16, torch.float16)
METHODS = (FixedK(4), SpecInfer())


@pytest.mark.parametrize(
    ("dtype", "size"), nightly_except([(torch.bfloat16, 3)], product(HALVES, (1, 3)))
)
def test_rounding_is_no_error(dtype: torch.dtype, size: int) -> None:
    bench = make_bench(dtype, size)
    for method in METHODS:
        checks = check_all(list(bench.right(method).values()), bench.plain, bench.judge)
        assert {result.verdict for result in checks} <= {"identical", "tie"}


@pytest.mark.parametrize(
    ("dtype", "size", "fault"),
    nightly_except(
        [(torch.bfloat16, 3, accept_second)],
        product(HALVES, (1, 3), (accept_second, swap_extra)),
    ),
)
def test_faults_that_stay_near_the_best_token_are_errors(
    dtype: torch.dtype, size: int, fault: object
) -> None:
    bench, verdicts = make_bench(dtype, size), list[str]()
    for method in METHODS:
        right = bench.right(method)
        with injected(fault):  # type: ignore[arg-type]
            faulty = bench.decode(method)
        checks = check_all(list(faulty.values()), bench.plain, bench.judge)
        verdicts += [
            result.verdict
            for result in checks
            if faulty[result.request_id].output_ids != right[result.request_id].output_ids
        ]
    assert len(verdicts) >= 3
    assert verdicts.count("error") >= 0.95 * len(verdicts)


def test_a_forward_that_computes_something_else_is_no_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noise that the control does not show, here that of verifications one position off, cannot excuse a token."""
    bench = DecodedPair(torch.float32, 1, requests=3)
    records = list(bench.decode(FixedK(4)).values())
    right = RecomputedLogits.rounds

    def shifted(shapes: RecomputedLogits, record: RequestRecord) -> torch.Tensor:
        return right(shapes, record).roll(1, 0)

    monkeypatch.setattr(RecomputedLogits, "rounds", shifted)
    for record in records:
        logits = shifted(bench.shapes, record)
        record.output_ids[20] = int(logits[20].argmax())
    verdicts = [record.verdict for record in check_all(records, bench.plain, bench.judge)]
    pairs = zip(records, bench.plain, strict=True)
    changed = [record.output_ids[:21] != plain.output_ids[:21] for record, plain in pairs]
    assert verdicts.count("error") == sum(changed) > 0


def test_drawn_tokens_follow_the_streams_numbers() -> None:
    """Two shapes whose cumulative probabilities lie on either side of the number explain two different tokens."""
    sampler, numbers = Sampler(1.0), RequestRandom(0, "a")
    first = numbers.uniform("target")
    choice = SampledChoice(sampler, RequestRandom(0, "a"))
    below, above = (
        choice.scores(torch.tensor([p, 1 - p]).log()) for p in (first - 1e-3, first + 1e-3)
    )
    assert [choice.token(scores, 0) for scores in (below, above)] == [1, 0]
    assert choice.shortfall(below, 0, 0) == pytest.approx(1e-3, abs=1e-6)
    assert choice.shortfall(below, 0, 1) == 0
    assert choice.margin(below, 0, 1) == 0

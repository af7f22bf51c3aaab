import json

import pytest
from report_builders import failed_record, make_record

from specbench_kit.reports.losslessness import TIE_MARGINS, check, check_all, summarise_checks


def output(*ids, request_id="a", **fields):
    return make_record(request_id, output_ids=list(ids), **fields)


def never(prefix_ids):
    pytest.fail(f"the target was asked after {prefix_ids}")


def top_two(best, second, margin, expected_prefix):
    def answer(prefix_ids):
        assert prefix_ids == expected_prefix
        return (best, second), margin

    return answer


def test_equal_outputs_are_identical_without_asking_the_target():
    result = check(output(5, 6, 7), output(5, 6, 7), never, 1e-4)
    assert (result.verdict, result.position) == ("identical", None)


def test_the_two_best_tokens_within_the_margin_are_a_tie():
    answer = top_two(7, 9, 2e-5, expected_prefix=[1, 2, 5, 6])
    result = check(output(5, 6, 9, 3), output(5, 6, 7, 4), answer, 1e-4)
    assert result.verdict == "tie"
    assert (result.position, result.method_token, result.baseline_token, result.margin) == (2, 9, 7, 2e-5)


def test_a_margin_at_the_bound_is_an_error():
    assert check(output(9), output(7), top_two(7, 9, 1e-4, [1, 2]), 1e-4).verdict == "error"


def test_a_token_that_is_not_among_the_two_best_is_an_error():
    assert check(output(8), output(7), top_two(7, 9, 0.0, [1, 2]), 1e-4).verdict == "error"


@pytest.mark.parametrize(("method", "baseline"), [((5,), (5, 7)), ((5, 7), (5,))])
def test_an_output_that_ends_too_early_is_an_error_at_its_end(method, baseline):
    answer = top_two(7, 9, 0.0, expected_prefix=[1, 2, 5])
    result = check(output(*method, finish_reason="eos"), output(*baseline), answer, 1e-4)
    assert (result.verdict, result.position) == ("error", 1)
    assert {result.method_token, result.baseline_token} == {7, None}


def test_another_prompt_is_its_own_verdict():
    assert check(output(5, prompt_ids=[1, 3]), output(6), never, 1e-4).verdict == "prompt differs"


def test_failed_or_missing_requests_are_not_compared():
    assert check(failed_record("a"), output(5), never, 1e-4).verdict == "not compared"
    assert check(output(5), failed_record("a"), never, 1e-4).verdict == "not compared"
    assert check(output(5), None, never, 1e-4).verdict == "not compared"


def test_half_precision_allows_more_than_single_precision():
    assert TIE_MARGINS["float32"] < TIE_MARGINS["float16"] < TIE_MARGINS["bfloat16"]


def test_summary_counts_each_verdict():
    records = [output(5, request_id="same"), output(9, request_id="tie"), output(8, request_id="wrong")]
    records += [output(4, request_id="turn", prompt_ids=[3]), failed_record("failed"), output(1, request_id="alone")]
    baseline = [output(5, request_id="same")] + [output(7, request_id=i) for i in ("wrong", "tie", "turn", "failed")]
    checks = check_all(records, baseline, lambda _: ((7, 9), 1e-6), 1e-4)
    summary = summarise_checks(checks, 1e-4)
    assert [d["request_id"] for d in summary.pop("divergences")] == ["tie", "wrong"]
    assert summary == {
        "lossless": False,
        "compared": 3,
        "identical": 1,
        "ties": 1,
        "errors": 1,
        "prompt_differs": 1,
        "not_compared": 2,
        "tie_margin": 1e-4,
    }


def test_ties_alone_are_lossless_and_nothing_compared_is_neither():
    tie = check(output(9), output(7), top_two(7, 9, 1e-6, [1, 2]), 1e-4)
    assert summarise_checks([tie], 1e-4)["lossless"] is True
    assert summarise_checks([], 1e-4)["lossless"] is None
    json.dumps(summarise_checks([tie], 1e-4))

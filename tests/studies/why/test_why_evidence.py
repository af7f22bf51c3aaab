"""The numbers that follow from timed answers, worked out by hand."""

import pytest
from msgspec import structs

from specbench_kit.studies.why.diagnosis import diagnose
from specbench_kit.studies.why.evidence import Evidence, figures_of, repeated_share
from specbench_kit.studies.why.summary import ObservedAnswer

PLAIN_S, FIXED_S, TOKEN_S, WIDER_S = 0.010, 0.012, 0.004, 0.001
"""A plain token; a round without a draft; a drafted token in a round; one more token in a forward of the target."""
ROUNDS, LENGTH = 20, 4
ACCEPTED_AT = (0.8, 0.6, 0.2, 0.1)


def whole(number: int, length: int = LENGTH) -> ObservedAnswer:
    accepted = round(ROUNDS * sum(ACCEPTED_AT[:length]))
    return ObservedAnswer(
        server="spec",
        request_id=f"p{number}",
        tokens=1 + ROUNDS + accepted,
        decode_s=ROUNDS * (FIXED_S + TOKEN_S * length),
        rounds=ROUNDS,
        drafted=ROUNDS * length,
        accepted=accepted,
        accepted_first=round(ROUNDS * ACCEPTED_AT[0]),
        repeated=0.0,
    )


def cut_short(number: int, length: int) -> ObservedAnswer:
    return ObservedAnswer(
        server="spec",
        request_id=f"p{number}",
        tokens=2,
        decode_s=FIXED_S + TOKEN_S * length,
        rounds=1,
        drafted=length,
        accepted=0,
        probe="length",
    )


def plain(number: int) -> ObservedAnswer:
    return ObservedAnswer(
        server="plain",
        request_id=f"p{number}",
        tokens=31,
        decode_s=30 * PLAIN_S,
        rounds=30,
        drafted=0,
        accepted=0,
    )


def wide(server: str, number: int, width: int) -> ObservedAnswer:
    return ObservedAnswer(
        server=server,
        request_id=f"p{number}",
        tokens=1,
        decode_s=0.0,
        ttft_s=0.05 * (1 + number) + WIDER_S * width,
        probe="width",
        width=width,
    )


def evidence(*servers: str, probes: bool = True, **changes: object) -> Evidence:
    answers = [whole(number) for number in range(8)]
    if probes:
        answers += [cut_short(number, length) for number in range(8) for length in range(LENGTH)]
        answers += [wide(servers[0], number, width) for number in range(8) for width in (1, 3, 5)]
    if "plain" in servers:
        answers += [plain(number) for number in range(8)]
    drafts = 8 * ROUNDS
    fields = {
        "servers": servers,
        "answers": answers,
        "counted": "a test",
        "accepted_at": [share * drafts for share in ACCEPTED_AT],
        "drafts": drafts,
    }
    return Evidence(**{**fields, **changes})  # type: ignore[arg-type]


def test_two_servers_tell_every_part_of_a_round() -> None:
    numbers = figures_of(evidence("plain", "spec")).numbers
    round_s = FIXED_S + TOKEN_S * LENGTH
    length = 1 + sum(ACCEPTED_AT)
    expected = {
        "tokens_per_round": length,
        "tokens_per_round_by_request": length,
        "acceptance_rate": sum(ACCEPTED_AT) / LENGTH,
        "drafted_per_round": LENGTH,
        "round_s": round_s,
        "plain_s": PLAIN_S,
        "undrafted_s": FIXED_S,
        "undrafted_ratio": FIXED_S / PLAIN_S,
        "speedup": PLAIN_S * length / round_s,
        "break_even": round_s / PLAIN_S,
        "drafted_token_s": TOKEN_S,
        "verified_token_s": WIDER_S,
        "draft_token_s": TOKEN_S - WIDER_S,
        "verification_s": PLAIN_S + LENGTH * WIDER_S,
        "drafting_s": LENGTH * (TOKEN_S - WIDER_S),
        "other_s": FIXED_S - PLAIN_S,
        "first_acceptance": 0.8,
        "later_acceptance": (0.6 + 0.2 + 0.1) / (0.8 + 0.6 + 0.2),
    }
    for name, value in expected.items():
        number = getattr(numbers, name)
        assert number is not None, name
        assert number.value == pytest.approx(value), name
        assert number.source, name


def test_the_fastest_length_follows_from_places_and_prices() -> None:
    numbers = figures_of(evidence("plain", "spec")).numbers
    # 1 token: 1.8 / 16 ms; 2: 2.4 / 20 ms; 3: 2.6 / 24 ms; 4: 2.7 / 28 ms; none: 1 / 10 ms.
    assert numbers.best_length is not None
    assert numbers.best_length_gain is not None
    assert numbers.best_length.value == 2
    assert numbers.best_length_gain.value == pytest.approx((2.4 / 20) / (2.7 / 28))


def test_no_length_is_named_where_the_line_leaves_nothing_for_a_round_without_a_draft() -> None:
    short = [cut_short(number, length) for number in range(8) for length in range(LENGTH)]
    steep = {0: 0.0001, 1: 0.003, 2: 0.008, 3: 0.013}
    answers = [structs.replace(one, decode_s=steep[one.drafted or 0]) for one in short]
    answers += [structs.replace(whole(n), decode_s=ROUNDS * 0.018) for n in range(8)]
    answers += [plain(number) for number in range(8)]
    numbers = figures_of(evidence("plain", "spec", answers=answers)).numbers
    assert numbers.drafted_token_s is not None
    assert numbers.drafted_token_s.value * LENGTH > 0.018
    assert numbers.best_length is None


def test_one_server_tells_plain_tokens_by_its_own_rounds_without_a_draft() -> None:
    figures = figures_of(evidence("spec"))
    assert figures.numbers.plain_s is not None
    assert figures.numbers.plain_s.value == pytest.approx(FIXED_S)
    assert "a server without speculation may be faster" in figures.numbers.plain_s.source
    assert figures.numbers.plain_server_s is None
    assert figures.missing["plain_server_s"].startswith("only one server was given")


def test_a_server_whose_rounds_all_draft_alike_tells_no_parts() -> None:
    figures = figures_of(evidence("spec", probes=False))
    assert figures.numbers.plain_s is None
    assert figures.numbers.speedup is None
    assert figures.numbers.drafting_s is None
    assert "all rounds drafted about as many" in figures.missing["drafted_token_s"]
    summary = diagnose(evidence("spec", probes=False))
    assert summary.outcome == "cannot tell"
    assert "no second server was given" in summary.reason
    assert summary.numbers.tokens_per_round is not None


def test_timed_parts_are_taken_as_they_are() -> None:
    answers = [
        ObservedAnswer(
            server="spec",
            request_id=f"p{number}",
            tokens=21,
            decode_s=0.1,
            rounds=10,
            drafted=20,
            accepted=10,
            drafting_s=0.02,
            verification_s=0.07,
        )
        for number in range(6)
    ]
    numbers = figures_of(evidence("spec", answers=answers)).numbers
    parts = [numbers.drafting_s, numbers.verification_s, numbers.other_s]
    assert [part.value if part else None for part in parts] == pytest.approx([0.002, 0.007, 0.001])


@pytest.mark.parametrize(
    ("plain_s", "outcome"), [(0.005, "does not pay"), (0.02, "pays"), (0.0097, "cannot tell")]
)
def test_the_verdict_follows_the_interval(plain_s: float, outcome: str) -> None:
    answers = [whole(number, length=4 - number % 2) for number in range(8)]
    answers += [
        ObservedAnswer("plain", f"p{n}", 31, 30 * plain_s * (1 + 0.02 * n / 8), 30)
        for n in range(8)
    ]
    summary = diagnose(evidence("plain", "spec", answers=answers))
    assert summary.interval is not None
    assert summary.outcome == outcome


def test_a_round_without_a_draft_is_dear_only_by_more_than_prompts_vary_by() -> None:
    def noisy(spread: float) -> Evidence:
        answers = evidence("plain", "spec").answers
        sides = [1 + spread * (int(a.request_id[1:]) % 2) for a in answers]
        return evidence(
            "plain",
            "spec",
            answers=[
                structs.replace(a, decode_s=a.decode_s * side) if a.server == "plain" else a
                for a, side in zip(answers, sides, strict=True)
            ],
        )

    steady, unsteady = (diagnose(noisy(spread)) for spread in (0.01, 0.8))
    rules = [{finding.rule for finding in summary.findings} for summary in (steady, unsteady)]
    assert "costs-when-off" in rules[0]
    assert "costs-when-off" not in rules[1]
    assert unsteady.numbers.undrafted_ratio is None


def test_few_prompts_have_no_verdict_and_drafting_nothing_pays_nothing() -> None:
    few = [a for a in evidence("plain", "spec").answers if a.request_id < "p5"]
    summary = diagnose(evidence("plain", "spec", answers=few))
    assert (summary.outcome, summary.interval) == ("cannot tell", None)
    assert "fewer than 6 prompts" in summary.reason
    idle = [ObservedAnswer("spec", f"p{n}", 31, 0.2, 30, drafted=0, accepted=0) for n in range(8)]
    answers = [*idle, *(plain(number) for number in range(8))]
    summary = diagnose(evidence("plain", "spec", answers=answers, accepted_at=(), drafts=0))
    assert summary.outcome == "cannot tell"
    assert summary.reason.startswith("nothing was drafted")
    assert {"never-drafts"} == {finding.rule for finding in summary.findings}


def test_repeated_windows_are_counted_within_one_answer() -> None:
    assert repeated_share(range(7)) is None
    assert repeated_share(range(40)) == 0
    assert repeated_share([1, 2] * 20) == pytest.approx(1 - 2 / 33)


def test_tokens_behind_the_end_are_counted_in_answers_that_end() -> None:
    ended = [
        ObservedAnswer("spec", f"p{n}", 25, 0.2, 10, drafted=40, accepted=18, ended=n < 3)
        for n in range(6)
    ]
    numbers = figures_of(evidence("spec", answers=ended)).numbers
    assert numbers.unsent_share is not None
    assert numbers.unsent_share.value == pytest.approx(3 / 28)


def test_an_answer_that_came_in_one_piece_is_counted_and_not_timed() -> None:
    answers = [whole(number) for number in range(4)]
    at_once = [structs.replace(answer, decode_s=0.0) for answer in answers[2:]]
    numbers = figures_of(Evidence(servers=["spec"], answers=answers[:2], counted="counts")).numbers
    evidence = Evidence(servers=["spec"], answers=[*answers[:2], *at_once], counted="counts")
    found = figures_of(evidence).numbers
    assert (found.round_s, found.token_s) == (numbers.round_s, numbers.token_s)
    assert found.rounds is not None
    assert found.rounds.value == 4 * ROUNDS
    assert found.first_acceptance is not None
    assert found.first_acceptance.value == pytest.approx(ACCEPTED_AT[0])

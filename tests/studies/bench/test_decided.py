"""Benchmarks that end once they are decided."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import TinyPair, read_object, read_rows, write_rows

from specbench_kit.api import bench
from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.studies.bench.decided import EarlyDecision, count_looks
from specbench_kit.studies.bench.settings import parse_share

PROMPTS = [
    {"id": f"q{number}", "prompt": f"How many are {number} and {number}?"} for number in range(24)
]


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), ("12.5%", 0.125)])
def test_a_share_is_read(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["0%", "five", "100%", "-5%", "2"])
def test_what_is_no_share_is_one_line(text: str) -> None:
    with pytest.raises(
        SkitError,
        match=r"--until-decided takes a difference in speed between 0% and 100%, such as 5%",
    ):
        parse_share(text)


def test_looks_double() -> None:
    assert [count_looks(number) for number in (5, 10, 11, 20, 21, 80, 100)] == [1, 1, 2, 2, 3, 4, 5]


def decide(
    seed: int, speeds: list[float], requests: int = 80, share: float = 0.05, noise: float = 0.1
) -> int:
    """Return after how many requests of each method a benchmark with these speeds is decided; 0 if it is not."""
    rng = np.random.default_rng([seed, requests])
    decision = EarlyDecision(share, requests)
    for number in range(requests):
        if decision.is_made():
            return number
        for name, speed in zip(["autoregressive", "a", "b"], [1.0, *speeds], strict=True):
            seconds = float(rng.lognormal(0, noise) / speed)
            decision.keep(name, RequestRecord(str(number), "", [1], [2], e2e_s=seconds))
    return 0


def test_a_clear_difference_is_decided_at_the_first_look_and_a_small_one_later() -> None:
    assert decide(1, [2.0, 1.5]) == 10
    assert sorted(decide(seed, [1.6, 1.5], requests=640) for seed in range(10))[3] > 20


def test_equal_methods_end_when_they_are_known_to_be() -> None:
    """Noise of 2% shows after a few dozen requests that two methods lie within 5%, and noise of 20% never does."""
    ends = [decide(seed, [1.5, 1.5], noise=0.02) for seed in range(20)]
    assert sum(10 <= end <= 40 for end in ends) >= 18
    assert [decide(seed, [1.5, 1.5], noise=0.2) for seed in range(8)].count(0) >= 7


def test_looking_often_makes_no_more_false_verdicts() -> None:
    """With noise of 10%, equal methods are only decided by a false difference: above 8 of 60 has p < .005 at 5%."""
    ends = [decide(seed, [1.5, 1.5], share=0.001) for seed in range(60)]
    assert sum(end > 0 for end in ends) <= 8


def test_a_resumed_run_counts_what_is_finished_and_looks_no_more_often() -> None:
    """15 requests were finished before: the next look is at 20, and the table has all of them."""
    rng = np.random.default_rng(1)
    decision = EarlyDecision(0.05, 80)

    def timed(number: int, speed: float) -> RequestRecord:
        return RequestRecord(str(number), "", [1], [2], e2e_s=float(rng.lognormal(0, 0.01) / speed))

    speeds = {"autoregressive": 1.0, "a": 2.0, "b": 1.5}
    decision.resume(
        {name: [timed(number, speed) for number in range(15)] for name, speed in speeds.items()}
    )
    decisions = []
    for number in range(15, 21):
        decisions.append(decision.is_made())
        for name, speed in speeds.items():
            decision.keep(name, timed(number, speed))
    assert decisions == [False] * 5 + [True]


def test_a_run_ends_when_it_is_decided_and_is_whole(tiny: TinyPair, tmp_path: Path) -> None:
    """Two lengths differ in every request where drafting is slow, so that the first look decides."""
    prompts = write_rows(tmp_path / "prompts.jsonl", *PROMPTS)
    options: dict[str, Any] = {
        "target": str(tiny.target),
        "draft": str(tiny.draft),
        "deployment": "raspberry-pi",
    }
    result = bench(
        ["fixed-k:k=1", "fixed-k:k=6"],
        str(prompts),
        max_new_tokens=8,
        out=tmp_path,
        until_decided=0.05,
        **options,
    )
    for folder in result.folders:
        run, summary = read_object(folder / "run.json"), read_object(folder / "summary.json")
        done = len(read_rows(folder / "requests.jsonl"))
        assert 10 <= done < len(PROMPTS)
        assert run["decided"] == {"share": 0.05, "requests": done, "planned": len(PROMPTS)}
        assert (run["looks"], summary["partial"]) == (3, False)
        request_ids = [row["request_id"] for row in read_rows(folder / "requests.jsonl")]
        assert request_ids != [prompt["id"] for prompt in PROMPTS[:done]], "prompts are drawn"
    text = result.report(tmp_path / "report", ["md"])[0].read_text(encoding="utf-8")
    assert f"Decided after {done} of {len(PROMPTS)} requests" in text
    assert "PARTIAL RUN" not in text


def test_repeats_and_replays_refuse_it(tiny: TinyPair, tmp_path: Path) -> None:
    with pytest.raises(
        SkitError, match="--until-decided cannot go with --repeats: it goes on with new prompts"
    ):
        bench("fixed-k", target=str(tiny.target), repeats=2, until_decided=0.05, out=tmp_path)

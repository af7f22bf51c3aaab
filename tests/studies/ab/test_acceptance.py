"""Acceptance of two servers: which tokens count, whose is longer, and counts that cannot be right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import read_rows, skit_here, write_prompts
from nightly import nightly_except
from streaming_server import StreamingEngine, streaming_server

from specbench_kit.core.typed_json import JsonObject
from specbench_kit.studies.ab.run import PROBE_TOKENS

Counts = dict[str, float]
PROMPTS = [f"prompt number {number}" for number in (11, 13, 18, 22, 27, 28, 1, 2)]
TOKENS = 24
DRAFTS: dict[str, Any] = {"speculates": True, "drafts_by_model": True}


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.jsonl", PROMPTS)


def compare(first: str, second: str, prompts: Path, *options: object) -> tuple[JsonObject, str]:
    """The only load of a comparison, and the text of its report."""
    common = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        TOKENS,
        "--out",
        prompts.parent / "out",
        "--warm-up",
        0,
    )
    done = skit_here("ab", first, second, *common, "--json", *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return result["summary"]["loads"][0], (Path(result["run_dirs"][0]) / "report.md").read_text()


def acceptance(load: JsonObject) -> JsonObject:
    (entry,) = (entry for entry in load["comparisons"] if entry["figure"] == "acceptance")
    return dict(entry)


def decoded(engine: StreamingEngine) -> tuple[int, int, int]:
    """Rounds with a draft, the tokens that they committed and that were sent, and all that they committed."""
    rounds = [f for prompt in PROMPTS for f in list(engine.decode(prompt, TOKENS))[1:]]
    drafted = [forward for forward in rounds if forward.drafted]
    sent = sum(len(forward.tokens) for forward in drafted)
    return len(drafted), sent, sum(forward.accepted + 1 for forward in drafted)


@pytest.mark.parametrize("kind", ["vllm", "llama-cpp"])
def test_tokens_after_the_end_of_an_answer_do_not_count(kind: str, prompts: Path) -> None:
    """A server counts what its last round accepted behind the end, which 1 + accepted / rounds takes for an answer."""
    ends = {**DRAFTS, "ends_with": "W"}
    with (
        streaming_server(**ends) as (first_address, engine),
        streaming_server(**ends, reports_drafts=False) as (second_address, _),
    ):
        load, report = compare(
            f"told={kind}://{first_address}", f"counted=vllm://{second_address}", prompts
        )
    stated, counted = (load["servers"][name]["speculation"] for name in ("told", "counted"))
    rounds, sent, committed = decoded(engine)
    assert sent < committed  # some answer does end in the middle of a round
    assert (counted["source"], counted["rounds"]) == ("counters", 2 * rounds)
    assert counted["acceptance_length"] == pytest.approx(committed / rounds)
    steps = sum(len(list(engine.decode(prompt, TOKENS))) - 1 for prompt in PROMPTS)
    plain = steps - rounds
    assert counted["tokens_per_round"] == pytest.approx((sent + plain) / rounds)
    assert stated["source"] == "each answer"
    if kind == "llama-cpp":
        assert stated["acceptance_length"] == pytest.approx((sent + plain) / steps)
    else:
        assert sent / rounds <= stated["acceptance_length"] < committed / rounds
    assert "tokens sent per round" in report
    # A length by answers is not held against one by counters.
    assert "acceptance" not in {entry["figure"] for entry in load["comparisons"]}


@pytest.mark.parametrize("reports_drafts", [True, False])
def test_a_longer_acceptance_is_told_with_its_interval(reports_drafts: bool, prompts: Path) -> None:
    options = {**DRAFTS, "reports_drafts": reports_drafts}
    with (
        streaming_server(draft_length=1, **options) as (first_address, _),
        streaming_server(**options) as (second_address, _),
    ):
        load, report = compare(
            f"short=vllm://{first_address}", f"long=vllm://{second_address}", prompts
        )
    entry, lengths = (
        acceptance(load),
        [load["servers"][name]["speculation"] for name in ("short", "long")],
    )
    assert entry["verdict"] == "longer"
    assert entry["units"] == len(PROMPTS)
    assert 1 < entry["interval"][0] < entry["ratio"] < entry["interval"][1]
    assert entry["ratio"] == pytest.approx(
        lengths[1]["acceptance_length"] / lengths[0]["acceptance_length"]
    )
    assert lengths[1]["interval"][0] < lengths[1]["acceptance_length"] < lengths[1]["interval"][1]
    assert {length["source"] for length in lengths} == {
        "each answer" if reports_drafts else "counters"
    }
    assert "or that its rounds commit more tokens" in report


def test_equal_drafts_have_no_longer_acceptance(prompts: Path) -> None:
    with (
        streaming_server(speculates=True) as (first_address, _),
        streaming_server(speculates=True) as (second_address, _),
    ):
        load, _ = compare(
            f"a=llama-cpp://{first_address}", f"b=llama-cpp://{second_address}", prompts
        )
    assert (acceptance(load)["ratio"], acceptance(load)["verdict"]) == (
        pytest.approx(1),
        "no difference shown",
    )


@pytest.mark.parametrize("kind", ["vllm", "llama-cpp"])
def test_a_server_that_never_drafts_has_no_acceptance_to_compare(kind: str, prompts: Path) -> None:
    with (
        streaming_server() as (first_address, _),
        streaming_server(speculates=True) as (second_address, _),
    ):
        load, _ = compare(
            f"plain={kind}://{first_address}",
            f"spec={kind}://{second_address}",
            prompts,
            "--limit",
            2,
        )
    assert load["servers"]["plain"]["speculation"] is None
    assert "acceptance" not in {entry["figure"] for entry in load["comparisons"]}


MISCOUNTS: list[tuple[Callable[[Counts], Counts], str]] = [
    (
        lambda counts: counts | {"accepted_tokens": counts["draft_tokens"]},
        "it accepted every one of",
    ),
    (
        lambda counts: counts | {"accepted_tokens_per_pos": counts["drafts"]},
        "it accepted the first drafted token",
    ),
    (lambda counts: counts | {"accepted_tokens": 2 * counts["draft_tokens"]}, "tokens and drafted"),
    (lambda counts: {name: -count for name, count in counts.items()}, "its counters fell"),
    (
        lambda counts: {name: 9 * count for name, count in counts.items()},
        "as if others used it too",
    ),
]


@pytest.mark.parametrize(
    ("miscount", "words"), nightly_except([MISCOUNTS[0], MISCOUNTS[3]], MISCOUNTS)
)
def test_counters_that_cannot_be_right_are_implausible(
    miscount: Callable[[Counts], Counts], words: str, prompts: Path
) -> None:
    options = {**DRAFTS, "reports_drafts": False}
    with (
        streaming_server(**options) as (first_address, _),
        streaming_server(**options, miscount=miscount) as (second_address, _),
    ):
        load, report = compare(
            f"right=vllm://{first_address}",
            f"wrong=vllm://{second_address}",
            prompts,
            "--repeats",
            3,
        )
    assert load["servers"]["right"]["speculation"]["doubts"] == []
    (doubt,) = load["servers"]["wrong"]["speculation"]["doubts"]
    assert words in doubt
    assert (
        f"IMPLAUSIBLE COUNTS of wrong at concurrency 1: {doubt}. Do not quote its acceptance."
        in report
    )
    verdicts = [
        entry["verdict"] for entry in load["comparisons"] if entry["figure"] == "acceptance"
    ]
    assert verdicts in ([], ["counts are implausible"])


def test_counters_are_read_around_every_turn(prompts: Path) -> None:
    """The probe, and what another client does between two turns of a server, are not counted."""
    with (
        streaming_server(**DRAFTS, reports_drafts=False) as (first_address, engine),
        streaming_server() as (second_address, _),
    ):
        compare(f"a=vllm://{first_address}", f"b=vllm://{second_address}", prompts, "--repeats", 2)
        (path,) = (prompts.parent / "out").glob("*/counters.jsonl")
        rows = read_rows(path)
        assert sorted({(row["repeat"], row["turn"]) for row in rows}) == [
            (r, t) for r in (0, 1) for t in range(8)
        ]
        probe = len(list(engine.decode(PROMPTS[0], PROBE_TOKENS))) - 1
        assert probe > 0
        assert sum(row["counts"]["rounds"] for row in rows) == engine.counts["drafts"] - probe

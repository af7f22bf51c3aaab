"""`skit ab` against real servers of a tiny model."""

import json
import subprocess
from pathlib import Path

import pytest
from command_line import error_line, read_object, read_rows, skit_here, write_prompts
from nightly import nightly_except
from streaming_server import streaming_server
from study_pages import assert_marks_are_rendered

Strings = tuple[str, ...]
PROMPTS = [f"prompt number {number}" for number in (11, 13, 18, 22, 27, 28, 1, 2)]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_prompts(tmp_path / "prompts.jsonl", PROMPTS)


def ab(
    first: str, second: str, prompts: Path, *options: object
) -> subprocess.CompletedProcess[str]:
    out = prompts.parent / "out"
    common = ("--dataset", prompts, "--max-new-tokens", 17, "--out", out, "--warm-up", 1)
    return skit_here("ab", first, second, *common, *options)


def folder_of(prompts: Path) -> Path:
    (folder,) = (prompts.parent / "out").glob("*-ab-*")
    return folder


def test_two_servers_are_compared_at_every_load(prompts: Path) -> None:
    with (
        streaming_server() as (first_address, _),
        streaming_server(speculates=True) as (second_address, _),
    ):
        done = ab(
            f"plain=vllm://{first_address}",
            f"spec=vllm://{second_address}",
            prompts,
            "--concurrency",
            "1,2",
            "--json",
            "--strict",
        )
    assert done.returncode == 0, done.stderr
    folder = folder_of(prompts)
    summary = json.loads(done.stdout)["summary"]
    assert summary == read_object(folder / "summary.json")
    assert (summary["partial"], summary["planned"], summary["finished"]) == (False, 64, 64)
    assert [load["load"] for load in summary["loads"]] == ["concurrency 1", "concurrency 2"]
    alone, two_at_once = summary["loads"]
    assert (alone["turns"], alone["turn_requests"]) == (8, 1)
    assert (two_at_once["turns"], two_at_once["turn_requests"]) == (4, 2)
    assert alone["outputs"]["gate"] == "identical"
    assert alone["outputs"]["both"] == {"compared": 16, "identical": 16}
    assert alone["outputs"]["repeated"] == {
        name: {"compared": 8, "identical": 8} for name in ("plain", "spec")
    }
    assert alone["servers"]["plain"]["speculation"] is None
    assert alone["servers"]["spec"]["speculation"]["source"] == "each answer"
    assert alone["servers"]["spec"]["speculation"]["acceptance_length"] > 1
    assert [entry["figure"] for entry in alone["comparisons"]] == [
        "throughput",
        "ttft",
        "tpot",
        "e2e",
    ]
    assert {entry["verdict"] for entry in two_at_once["comparisons"]} == {"too few prompts to tell"}
    assert "4 turns of 2" in done.stderr
    shown = done.stderr[
        done.stderr.index("End to end, ") : done.stderr.index("report: ")
    ].splitlines()
    assert (
        "/report.html (as text: report.md)"
        in done.stderr[done.stderr.index("report: ") :].splitlines()[0]
    )
    assert max(map(len, shown)) <= 80
    for title in ("tokens/s", "TTFT P50", "TPOT P50", "end to end P50", "acceptance"):
        assert sum(title in line for line in shown) == 2, title
    assert "of the same turns at both servers, in a typical turn; a P50" in " ".join(
        " ".join(shown).split()
    )
    report = (folder / "report.md").read_text()
    assert (
        report.index("End to end, `spec` against `plain`")
        < report.index("plots/ratios.png")
        < report.index("## ")
    )
    assert "| sampling | greedy |" in report
    assert f"skit ab plain=vllm://{first_address} spec=vllm://{second_address}" in report
    page = (folder / "report.html").read_text()
    assert "<svg" in page
    for load in ("1", "2"):
        section = page.partition(f"<h3>Concurrency {load}</h3>")[2]
        assert section.lstrip().startswith(
            '<div class="scroll" tabindex="0"><table class="numbers stacked">'
        )
    assert '<th scope=row data-title="load"></th>' not in page
    assert_marks_are_rendered(folder)


def test_a_single_pair_of_outputs_is_not_called_all_pairs(prompts: Path) -> None:
    with streaming_server() as (first_address, _), streaming_server() as (second_address, _):
        ab(
            f"A=vllm://{first_address}",
            f"B=vllm://{second_address}",
            prompts,
            "--limit",
            1,
            "--repeats",
            1,
        )
    assert "The one pair of outputs is identical." in (folder_of(prompts) / "report.md").read_text()


def test_requests_alternate_one_by_one(prompts: Path) -> None:
    with streaming_server() as (first_address, _), streaming_server() as (second_address, _):
        ab(f"A=vllm://{first_address}", f"B=vllm://{second_address}", prompts, "--repeats", 2)
    rows = read_rows(folder_of(prompts) / "answers.jsonl")
    order = "".join(row["key"]["server"] for row in rows)
    assert order == "ABBA" * 4 + "BAAB" * 4
    ids = [row["key"]["request_id"] for row in rows[:16]]
    assert ids[::2] == ids[1::2]
    sent = [row["sent_s"] for row in rows]
    assert sent == sorted(sent)


def test_open_arrivals_are_the_same_for_both(prompts: Path) -> None:
    with streaming_server() as (first_address, _), streaming_server() as (second_address, _):
        done = ab(
            f"A=vllm://{first_address}",
            f"B=vllm://{second_address}",
            prompts,
            "--rate",
            50,
            "--turn",
            4,
            "--repeats",
            1,
        )
    assert done.returncode == 0, done.stderr
    rows = read_rows(folder_of(prompts) / "answers.jsonl")
    due: dict[str, list[float]] = {}
    for server in "AB":
        own = [row for row in rows if row["key"]["server"] == server and row["turn"] == 1]
        due[server] = [row["sent_s"] - row["late_s"] for row in own]
    gaps = [[moment - times[0] for moment in times] for times in due.values()]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.02)
    assert gaps[0][-1] > 0
    summary = read_object(folder_of(prompts) / "summary.json")
    assert [entry["figure"] for entry in summary["loads"][0]["comparisons"]] == [
        "ttft",
        "tpot",
        "e2e",
    ]


def test_other_tokens_are_shown_and_cannot_win(prompts: Path) -> None:
    with (
        streaming_server(slow_s=0.01) as (first_address, _),
        streaming_server(wrong=True) as (second_address, _),
    ):
        done = ab(f"plain=vllm://{first_address}", f"other=vllm://{second_address}", prompts)
    assert done.returncode == 0
    (load,) = read_object(folder_of(prompts) / "summary.json")["loads"]
    assert load["outputs"]["gate"] == "different"
    assert "faster" not in {entry["verdict"] for entry in load["comparisons"]}
    divergence = load["outputs"]["divergences"][0]
    first, second = (
        next(
            row["answer"]["token_ids"]
            for row in read_rows(folder_of(prompts) / "answers.jsonl")
            if (row["key"]["server"], row["key"]["request_id"]) == (name, divergence["request_id"])
        )
        for name in ("plain", "other")
    )
    position = divergence["position"]
    assert first[:position] == second[:position]
    assert first[position] != second[position]
    assert "OUTPUTS DIFFER" in (folder_of(prompts) / "report.md").read_text()
    assert_marks_are_rendered(folder_of(prompts))


def test_goodput_counts_the_tokens_of_requests_that_met_their_targets(prompts: Path) -> None:
    with (
        streaming_server() as (first_address, _),
        streaming_server(slow_s=0.02) as (second_address, _),
    ):
        ab(
            f"A=vllm://{first_address}",
            f"B=vllm://{second_address}",
            prompts,
            "--ttft-slo",
            "10s",
            "--tpot-slo",
            "15ms",
            "--limit",
            2,
        )
    (load,) = read_object(folder_of(prompts) / "summary.json")["loads"]
    figures = load["servers"]["B"]
    assert (figures["goodput"], figures["attainment"]) == (0.0, 0.0)
    page = (folder_of(prompts) / "report.md").read_text()
    assert "| goodput | met the SLO (TTFT up to 10.0 s, TPOT up to 15.0 ms) |" in page
    assert "| SLO | TTFT up to 10.0 s, TPOT up to 15.0 ms |" in page
    assert figures["throughput"] > 0


def test_a_key_is_read_from_the_environment_and_is_in_no_file(
    prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIT_API_KEY_SPEC", "sesame-1234")
    with (
        streaming_server() as (first_address, _),
        streaming_server(key="sesame-1234") as (second_address, _),
    ):
        done = ab(
            f"plain=vllm://{first_address}", f"spec=vllm://{second_address}", prompts, "--limit", 2
        )
        monkeypatch.delenv("SKIT_API_KEY_SPEC")
        refused = ab(
            f"plain=vllm://{first_address}", f"spec=vllm://{second_address}", prompts, "--limit", 1
        )
    assert done.returncode == 0, done.stderr
    folder = folder_of(prompts)  # the refused run left none
    assert "SKIT_API_KEY" in error_line(refused)
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(b"sesame" in text for text in texts)


CONDITIONS = [
    ("identical<1", 0),
    ("failed>=0", 1),
    ("speedup.high>0", 1),
    ("itl.p99>1000s", 0),
    ("acceptance_rate>0", 2),
]


@pytest.mark.parametrize(
    ("condition", "code"),
    nightly_except(
        [("identical<1", 0), ("speedup.high>0", 1), ("acceptance_rate>0", 2)], CONDITIONS
    ),
)
def test_a_condition_decides_the_exit_code(condition: str, code: int, prompts: Path) -> None:
    # Without a pause an answer may arrive whole, and then there is no time between its tokens.
    with (
        streaming_server(slow_s=0.005) as (first_address, _),
        streaming_server(slow_s=0.005) as (second_address, _),
    ):
        done = ab(
            f"A=vllm://{first_address}",
            f"B=vllm://{second_address}",
            prompts,
            "--repeats",
            1,
            "--fail-if",
            condition,
        )
    assert done.returncode == code, done.stderr
    assert ("failed: concurrency 1: " in done.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("servers", "options", "message"),
    [
        (("a=vllm://h:1",), (), "name two servers, not 1"),
        (("a=vllm://h:1", "a=vllm://h:2"), (), "both servers are called a"),
        (("a=vllm://h:1", "b=llm://h:2"), (), "unknown kind of server 'llm'"),
        (("a=vllm://h:1", "b=file.json"), (), "two servers or two files"),
        (("a=vllm://h:1", "b=vllm://h:2"), ("--concurrency", "1,1"), "a load is given twice"),
        (("a=vllm://h:1", "b=vllm://h:2"), ("--concurrency", "0"), "whole numbers from 1 up"),
        (("a=vllm://h:1", "b=vllm://h:2"), ("--concurrency", "1", "--rate", "2"), "not both"),
        (
            ("a=vllm://h:1", "b=vllm://h:2"),
            ("--ttft-slo", "soon"),
            "--ttft-slo takes a time above 0",
        ),
        (
            ("a=vllm://h:1", "b=vllm://h:2"),
            ("--ttft-slo", "200"),
            "--ttft-slo 200 states no unit: write 200ms or 200s",
        ),
        (
            ("a=vllm://h:1", "b=vllm://h:2"),
            ("--tpot-slo", "50"),
            "--tpot-slo 50 states no unit: write 50ms or 50s",
        ),
        (
            ("a=vllm://h:1", "b=vllm://h:2"),
            ("--fail-if", "ttft.p99>200"),
            "--fail-if 'ttft.p99>200' states no unit: write 200ms or 200s",
        ),
        (("a=vllm://h:1", "b=vllm://h:2"), ("--fail-if", "speed<1"), "unknown metric 'speed'"),
        (("a=vllm://h:1", "b=vllm://h:2"), ("--fail-if", "failed.low<1"), "failed has no interval"),
        (("a=vllm://h:1", "b=vllm://h:2"), ("--fail-if", "ttft<1"), "ttft needs one of ttft.mean"),
        (("a=chat://h:1", "b=vllm://h:2"), ("--ignore-eos",), "cannot be told to go on"),
    ],
)
def test_bad_options_are_one_line(
    servers: tuple[str, ...], options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = skit_here("ab", *servers, *options, "--out", tmp_path / "out", "--limit", 1)
    assert message in error_line(done)
    assert not (tmp_path / "out").exists()

"""What is told before a ratio: other lengths, retries with their reasons, a busy client; and in which words."""

import asyncio
from math import ceil
from pathlib import Path

import pytest
from command_line import READINGS, error_line, skit_here, write_rows
from msgspec.structs import replace
from streaming_server import streaming_server

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import last_part
from specbench_kit.live.engines.address import parse_server
from specbench_kit.live.engines.answers import AnswerKey, AnswerRecord, Burst, StreamedAnswer
from specbench_kit.live.engines.client import StreamClient
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, TOO_FEW
from specbench_kit.reports.document import Paragraph, Table
from specbench_kit.runs.machine.limits import MachineReadings
from specbench_kit.studies.ab import report
from specbench_kit.studies.ab.comparison import Plan, summarise
from specbench_kit.studies.ab.report import _marks
from specbench_kit.studies.ab.run import STRETCH_S, Driver, busy_at_start, describe_server
from specbench_kit.studies.ab.settings import AbSettings
from specbench_kit.studies.ab.store import AnswerStore
from specbench_kit.studies.ab.summary import AbSummary

LOAD = "concurrency 1"


def record(server: str, number: int, tokens: int, *reasons: str) -> AnswerRecord:
    bursts = [Burst(0.01 * position, 1) for position in range(1, tokens + 1)]
    answer = StreamedAnswer("a" * tokens, bursts, "one per chunk", "stop")
    key = AnswerKey(LOAD, server, f"p{number}", 0)
    return AnswerRecord(
        key, number, float(number), answer, None, len(reasons) + 1, 0.0, list(reasons)
    )


def summary(*records: AnswerRecord) -> AbSummary:
    return summarise(Plan(("plain", "spec"), [LOAD], planned=len(records)), records)


@pytest.mark.parametrize("tokens", [1, 8, 31])
def test_answers_of_different_lengths_come_before_any_ratio(tokens: int) -> None:
    records = [
        record(server, n, 16 if server == "plain" else tokens)
        for server in ("plain", "spec")
        for n in range(8)
    ]
    line = report.headline(summary(*records))
    assert line.startswith(
        f"Answers of different lengths at {LOAD}: {tokens} tokens on average from `spec`, 16 from"
    )
    assert line.index("(0 of 8 pairs are equally long)") < line.index(
        "End to end, `spec` against `plain`"
    )


def test_answers_of_one_length_are_not_mentioned() -> None:
    records = [record(server, number, 16) for server in ("plain", "spec") for number in range(8)]
    comparison = summary(*records)
    assert comparison.loads[0].lengths is not None
    assert comparison.loads[0].lengths.equal == 8
    assert report.headline(comparison).startswith("End to end")


def test_retries_are_told_with_how_many_had_which_reason() -> None:
    busy, cut = "/v1/completions answered 503: busy", "the stream ended before the answer did"
    records = [
        record("plain", 0, 4),
        record("spec", 0, 4, busy, cut),
        record("plain", 1, 4),
        record("spec", 1, 4, busy),
    ]
    (line,) = [line for line in report.cautions(summary(*records)) if "again" in line]
    assert line == f"Sent again: 2 requests to spec at {LOAD} (2 as {busy}; 1 as {cut})."


@pytest.mark.parametrize("both_fail", [False, True])
def test_answers_to_requests_that_failed_at_the_other_server_are_told(both_fail: bool) -> None:
    failing = ("plain", "spec") if both_fail else ("spec",)
    records = [
        replace(found, answer=None, error="lost") if server in failing and number == 3 else found
        for server in ("plain", "spec")
        for number in range(8)
        for found in [record(server, number, 16)]
    ]
    (line,) = [
        line for line in report.cautions(summary(*records)) if line.startswith("FAILED REQUESTS")
    ]
    assert (
        "own throughput and percentiles hold its answers to requests that failed at the other"
        in line
    ) != both_fail


@pytest.mark.parametrize(
    ("turns", "share"),
    [
        ([(0.009, 0.01)], 0.0),
        ([(0.009, 0.01)] * 3, 0.0),
        ([(0.9 * STRETCH_S, STRETCH_S)], 0.9),
        ([(0.02, 0.01), (0.1 * STRETCH_S, STRETCH_S)], pytest.approx(0.12 / 1.01, abs=0.01)),
        ([(0.45 * STRETCH_S, 0.5 * STRETCH_S)] * 2, 0.9),
    ],
)
def test_a_client_is_busy_by_stretches_that_are_long_enough_to_matter(
    turns: list[tuple[float, float]], share: float
) -> None:
    servers = ("a=vllm://127.0.0.1:9", "b=vllm://127.0.0.1:10")
    settings = AbSettings(servers=servers, dataset="gsm8k", data_dir=None, out=Path("results"))
    driver = Driver(settings, [StreamClient(parse_server(server)) for server in servers], [])
    for process_s, wall_s in turns:
        driver.note_busy(process_s, wall_s)
    assert driver.busy_share == share


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/models/q15.gguf", "q15.gguf"),
        ("C:\\models\\q15.gguf", "q15.gguf"),
        ("models/q15.gguf", "q15.gguf"),
        ("/srv/models/Qwen2.5/", "Qwen2.5"),
        ("Qwen/Qwen2.5-Coder-1.5B", "Qwen/Qwen2.5-Coder-1.5B"),
        ("tiny", "tiny"),
        ("", ""),
    ],
)
def test_a_file_is_called_by_the_last_part_of_its_path(name: str, shown: str) -> None:
    assert last_part(name) == shown


def test_a_server_is_asked_for_a_file_and_described_without_its_folder() -> None:
    async def asked_and_described(address: str) -> tuple[str, str | None]:
        client = StreamClient(parse_server(f"a=vllm://{address}#/srv/models/q15.gguf"))
        description = await describe_server(client)
        await client.close()
        return client.dialect.model_name, description.model

    with streaming_server() as (address, _):
        names = asyncio.run(asked_and_described(address))
    assert names == ("/srv/models/q15.gguf", "q15.gguf")


def test_other_programs_beside_a_comparison_are_told_and_servers_that_answer_are_none() -> None:
    busy = MachineReadings(cpus=2, load=(5.04, 3.0))
    (line,) = busy_at_start([MachineReadings(cpus=2, load=(0.1, 0.2)), busy])
    assert line.startswith("BUSY MACHINE: the load average was 5.0 on 2 processors when this began")
    for quiet in (
        MachineReadings(cpus=2, load=(0.4, 5.0)),
        MachineReadings(cpus=8, load=(5.0, 5.0)),
        MachineReadings(),
    ):
        assert busy_at_start([quiet]) == []


def test_terminal_and_page_tell_of_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = tmp_path / "busy.json"
    readings.write_text('{"cpu_share": 1, "spread": 1, "steal": 0.3, "load": 999}')
    monkeypatch.setenv(READINGS, str(readings))
    prompts = write_rows(
        tmp_path / "prompts.jsonl", {"id": "a", "prompt": "Who?"}, {"id": "b", "prompt": "Why?"}
    )
    with streaming_server() as (first, _), streaming_server() as (second, _):
        servers = (f"A=vllm://{first}", f"B=vllm://{second}")
        done = skit_here(
            "ab", *servers, "--dataset", prompts, "--max-new-tokens", 4, "--out", tmp_path / "out"
        )
    assert done.returncode == 0, done.stderr
    (page,) = (tmp_path / "out").glob("*/report.md")
    for text in (" ".join(done.stdout.split()), page.read_text()):
        assert text.index("DISTURBED MACHINE: the host withheld 30.0%") < text.index("End to end")
        assert "BUSY MACHINE: the load average was 999.0 on " in text


@pytest.mark.parametrize(
    "kinds", [("vllm", "vllm-chat"), ("chat", "completions"), ("vllm", "completions")]
)
def test_servers_that_treat_prompts_differently_are_told_before_any_request(
    kinds: tuple[str, str], tmp_path: Path
) -> None:
    prompts = write_rows(
        tmp_path / "prompts.jsonl", {"id": "a", "prompt": "Who?"}, {"id": "b", "prompt": "Why?"}
    )
    in_template = {"vllm-chat": "spec", "chat": "plain"}
    line = (
        "PROMPTS DIFFER: outputs will differ, since the servers treat a prompt differently: plain"
    )
    is_told = any(kind in in_template for kind in kinds)
    with streaming_server() as (first, _), streaming_server() as (second, _):
        servers = (f"plain={kinds[0]}://{first}", f"spec={kinds[1]}://{second}")
        done = skit_here(
            "ab", *servers, "--dataset", prompts, "--max-new-tokens", 4, "--out", tmp_path / "out"
        )
    assert done.returncode == 0, done.stderr
    (page,) = (tmp_path / "out").glob("*/report.md")
    said = " ".join(done.stdout.split())
    # Once before the requests, and once among the cautions of the result.
    assert said.count(line) == (2 if is_told else 0)
    assert page.read_text().count(line) == is_told
    for kind in kinds:
        if kind in in_template:
            assert f"{in_template[kind]} ({kind}) answers it in the model's chat template" in said
            assert said.index("PROMPTS DIFFER") < said.index("End to end")


def test_other_treatment_of_prompts_is_told_although_a_server_answers_nothing(
    tmp_path: Path,
) -> None:
    prompts = write_rows(tmp_path / "prompts.jsonl", {"id": "a", "prompt": "Who?"})
    with streaming_server() as (first, _), streaming_server(refuses=1) as (second, engine):
        servers = (f"plain=vllm://{first}", f"spec=chat://{second}")
        done = skit_here(
            "ab", *servers, "--dataset", prompts, "--retries", 0, "--out", tmp_path / "out"
        )
    assert "busy: try later" in error_line(done)
    assert len(engine.requests) == 1, "the first one"
    assert "PROMPTS DIFFER" in done.stdout


def with_end_to_end(typical: float, interval: list[float] | None, verdict: str) -> AbSummary:
    """A comparison of 8 turns of one request whose ratio end to end came out so."""
    found = summary(
        *(record(server, number, 16) for server in ("plain", "spec") for number in range(8))
    )
    (load,) = found.loads
    changed = replace(
        load.comparisons[-1],
        figure="e2e",
        typical=typical,
        typical_interval=interval,
        verdict=verdict,
    )
    return replace(found, loads=[replace(load, comparisons=[changed])])


def test_where_no_verdict_is_reached_the_prompts_that_would_give_one_are_named() -> None:
    """The interval of 8 turns reaches twice as far as the ratio lies from 1: of 4 times as many it would reach 1 just.

    To find the difference in four of five cases takes (1 + .842 / 1.96) squared as many.
    """
    (line,) = report.what_would_tell(with_end_to_end(1.05, [1.05**-1, 1.05**3], NO_DIFFERENCE))
    needed = ceil(8 * 4 * (1 + 0.8416 / 1.96) ** 2)
    assert (
        line
        == f"At {LOAD} about {needed} prompts would tell `spec` and `plain`, 5.0% apart in a typical turn."
    )
    (line,) = report.what_would_tell(with_end_to_end(0.892, [0.8, 1.01], NO_DIFFERENCE))
    assert line.endswith("10.8% apart in a typical turn."), "as 0.892x says, which stands beside it"
    (line,) = report.what_would_tell(with_end_to_end(1.0, [0.9, 1.1], NO_DIFFERENCE))
    assert line.endswith("are too close for any number of prompts.")
    (line,) = report.what_would_tell(with_end_to_end(1.5, None, TOO_FEW))
    assert line == f"At {LOAD} a verdict takes 9 prompts or more.", "8 of them gave none"
    few = with_end_to_end(1.5, None, TOO_FEW)
    (load,) = few.loads
    few = replace(few, loads=[replace(load, comparisons=[replace(load.comparisons[0], units=2)])])
    assert report.what_would_tell(few) == [f"At {LOAD} a verdict takes 6 prompts or more."]
    assert report.what_would_tell(with_end_to_end(1.5, [1.4, 1.6], FASTER)) == []


def test_the_page_begins_with_its_sentence_and_shows_verdicts_before_numbers() -> None:
    """A phone shows the first three columns; numbers beside the line of equal servers stand on paper of their own."""
    from matplotlib.figure import Figure

    few = with_end_to_end(1.0, None, TOO_FEW)
    document = report.build(report.AbDescription(), few)
    first = document.blocks[0]
    assert isinstance(first, Paragraph)
    assert first.text == f"**{report.headline(few)}**"
    (table,) = report.verdicts(few)
    assert isinstance(table, Table)
    assert table.titles[:2] == ["metric", "verdict"]
    axes = Figure().subplots()
    report.ratios(few).draw(axes)
    (number,) = axes.texts
    assert number.get_text() == "1.00x"
    assert number.get_bbox_patch() is not None


def test_marks_of_the_axis_are_few_and_one_of_them_is_1() -> None:
    for low, high in ((0.5, 1.9), (0.99, 1.01), (1.2, 4.0), (0.3, 1.0)):
        marks = _marks(min(low, 1.0), high)
        assert 1 in marks
        assert 3 <= len(marks) <= 9
        assert marks[0] <= low
        assert marks[-1] >= high


def test_a_damaged_run_in_the_folder_does_not_hide_that_there_is_nothing_to_resume(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "20260101T000000Z-ab-x-00000000"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    with pytest.raises(
        SkitError, match="holds no unfinished run with these settings: start one without --resume"
    ):
        AnswerStore.resume(tmp_path, ("a", "b"), {"config": 1})

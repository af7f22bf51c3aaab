"""Dialogues of several turns: each turn is a request, which follows the server's own answers."""

import subprocess
from pathlib import Path

import pytest
from command_line import read_object, read_rows, skit_here, write_rows
from streaming_server import streaming_server

from specbench_kit.live.engines.base import dialects
from specbench_kit.live.engines.received import ReceivedStream

TURNS = [[f"prompt number {number}", "go on", "and then"] for number in (11, 13, 18, 22, 27, 28)]
SYSTEM = "Be brief."
"""What the system says in the third dialogue."""


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [{"id": f"p{number}", "turns": turns} for number, turns in enumerate(TURNS)]
    rows[2]["system"] = SYSTEM
    return write_rows(tmp_path / "prompts.jsonl", *rows)


def ab(
    first: str, second: str, prompts: Path, *options: object
) -> subprocess.CompletedProcess[str]:
    out = prompts.parent / "out"
    common = (
        "--dataset",
        prompts,
        "--max-new-tokens",
        5,
        "--out",
        out,
        "--warm-up",
        0,
        "--repeats",
        1,
    )
    return skit_here("ab", first, second, *common, *options)


def folder_of(prompts: Path) -> Path:
    (folder,) = (prompts.parent / "out").glob("*-ab-*")
    return folder


def answers(folder: Path, server: str) -> dict[tuple[str, int], str]:
    rows = [row for row in read_rows(folder / "answers.jsonl") if row["key"]["server"] == server]
    return {
        (row["key"]["request_id"], row["key"]["dialogue_turn"]): row["answer"]["text"]
        for row in rows
    }


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_every_turn_follows_the_answers_of_its_own_server(kind: str, prompts: Path) -> None:
    with (
        streaming_server() as (first_address, first_engine),
        streaming_server(wrong=True) as (second_address, second_engine),
    ):
        done = ab(
            f"a={kind}://{first_address}",
            f"b={kind}://{second_address}",
            prompts,
            "--concurrency",
            2,
            "--json",
        )
    assert done.returncode == 0, done.stderr
    folder, body_key = folder_of(prompts), "messages" if kind == "chat" else "prompt"
    for server, engine in (("a", first_engine), ("b", second_engine)):
        own, requests = answers(folder, server), [body[body_key] for _, body in engine.requests[1:]]
        expected = []
        for number, turns in enumerate(TURNS):
            texts = [
                text
                for turn, ask in enumerate(turns)
                for text in (ask, own[f"p{number}", turn].strip())
            ]
            for turn in range(3):
                spoken = texts[: 2 * turn + 1]
                roles = ("user", "assistant") * 3
                messages = [
                    {"role": role, "content": text}
                    for role, text in zip(roles, spoken, strict=False)
                ]
                if number == 2:
                    messages, spoken = (
                        [{"role": "system", "content": SYSTEM}, *messages],
                        [SYSTEM, *spoken],
                    )
                expected.append(messages if kind == "chat" else "\n\n".join(spoken))
        assert sorted(map(str, requests)) == sorted(map(str, expected))
    assert answers(folder, "a") != answers(folder, "b")


def test_a_dialogue_is_one_unit_and_turns_after_a_difference_are_not_compared(
    prompts: Path,
) -> None:
    with (
        streaming_server() as (first_address, _),
        streaming_server(wrong=True) as (second_address, _),
    ):
        done = ab(f"a=vllm-chat://{first_address}", f"b=vllm-chat://{second_address}", prompts)
    assert done.returncode == 0, done.stderr
    folder = folder_of(prompts)
    summary = read_object(folder / "summary.json")
    (load,) = summary["loads"]
    assert (summary["planned"], summary["finished"], summary["partial"]) == (36, 36, False)
    assert (load["turns"], load["turn_requests"]) == (6, 1)
    # An answer that arrives in one piece has no time per output token.
    assert {entry["units"] for entry in load["comparisons"] if entry["figure"] != "tpot"} == {6}
    first, second = answers(folder, "a"), answers(folder, "b")
    compared = 0
    for number in range(6):
        equal_turns = [first[f"p{number}", turn] == second[f"p{number}", turn] for turn in range(3)]
        compared += 3 if all(equal_turns) else equal_turns.index(False) + 1
    assert load["outputs"]["both"]["compared"] == compared < 18
    assert "6 dialogues of 18 turns, each a request" in (folder / "report.md").read_text()


def test_equal_servers_agree_in_every_turn(prompts: Path) -> None:
    with (
        streaming_server() as (first_address, _),
        streaming_server(speculates=True) as (second_address, _),
    ):
        ab(f"a=vllm-chat://{first_address}", f"b=vllm-chat://{second_address}", prompts)
    (load,) = read_object(folder_of(prompts) / "summary.json")["loads"]
    assert load["outputs"]["both"] == {"compared": 18, "identical": 18}


def test_turns_after_a_lost_one_are_not_asked_and_count_as_failed(prompts: Path) -> None:
    # The first request is the probe, the next three are the first dialogue's.
    with (
        streaming_server() as (first_address, _),
        streaming_server(breaks_at={3}) as (second_address, engine),
    ):
        ab(
            f"a=vllm-chat://{first_address}",
            f"b=vllm-chat://{second_address}",
            prompts,
            "--retries",
            0,
        )
    folder = folder_of(prompts)
    errors = {
        (row["key"]["request_id"], row["key"]["dialogue_turn"]): row["error"]
        for row in read_rows(folder / "answers.jsonl")
        if row["error"]
    }
    assert errors == {
        ("p0", 1): "the stream ended before the answer did",
        ("p0", 2): "not asked, as turn 2 of its dialogue has no answer",
    }
    assert len(engine.requests) == 1 + 18 - 1
    summary = read_object(folder / "summary.json")
    assert (summary["partial"], summary["failed"], summary["finished"]) == (False, 2, 34)


def test_the_next_turn_repeats_no_reasoning() -> None:
    received, dialect = ReceivedStream(), dialects.get("chat")()
    for delta in (
        '{"reasoning_content": "Hm, "}',
        '{"reasoning_content": "so ", "content": "It"}',
        '{"content": " is."}',
    ):
        received.add(dialect.read(f'{{"choices": [{{"delta": {delta}}}]}}'), 0.1)
    assert received.answer().text == "Hm, so It is."
    assert received.reply == "It is."

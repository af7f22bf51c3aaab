"""Answers that should be JSON: what is valid, and whether two servers differ in it."""

import json
from pathlib import Path

import pytest
from command_line import error_line, read_object, skit_here, write_rows
from streaming_server import StreamingEngine, streaming_server

from specbench_kit.core.errors import SkitError
from specbench_kit.core.json_schema import JsonSchema
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.tool_calls import Tools
from specbench_kit.decoding.constraint import parse_constraint
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.engines.answers import (
    AnswerCall,
    AnswerKey,
    AnswerRecord,
    Burst,
    StreamedAnswer,
)
from specbench_kit.live.engines.base import Generation, StreamEvent, dialects
from specbench_kit.live.engines.received import ReceivedStream
from specbench_kit.reports.render_markdown import render
from specbench_kit.studies.ab.comparison import Plan, summarise
from specbench_kit.studies.ab.report import AbDescription, build, headline
from specbench_kit.studies.ab.summary import AbSummary
from specbench_kit.studies.ab.validity import (
    LESS_VALID,
    chance_of_equals,
    outcome_of,
    outcome_of_calls,
    schemas_of,
    share_interval,
)

SCHEMA = '{"type": "object", "required": ["a"]}'
GOOD, BAD = '{"a": 1}', '{"a": 1'


def answer(text: str, finish: str = "stop", reply: str | None = None) -> StreamedAnswer:
    return StreamedAnswer(text, [Burst(0.1, 3)], "token ids", finish, reply=reply)


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (answer(f" {GOOD}\n"), "valid"),
        (answer(f"let me think{GOOD}", reply=GOOD), "valid"),
        (answer("[1]"), "other JSON"),
        (answer(BAD), "broken"),
        (answer(BAD, "length"), "cut"),
        (answer(GOOD, "length"), "valid"),
        (answer(f"```json\n{GOOD}\n```"), "fenced"),
        (answer(f"```\n{BAD}\n```"), "broken"),
        (answer(f"Here it is: {GOOD}"), "broken"),
    ],
)
def test_an_answer_is_judged_by_its_reply_as_a_whole(given: StreamedAnswer, outcome: str) -> None:
    assert outcome_of(given, JsonSchema(SCHEMA)) == outcome


def records_of(*texts: tuple[str, str], repeats: int = 1) -> list[AnswerRecord]:
    """The answers of both servers to as many prompts."""
    return [
        AnswerRecord(AnswerKey("load", name, f"p{number}", repeat), number, number, answer(text))
        for number, pair in enumerate(texts)
        for name, text in zip(("plain", "spec"), pair, strict=True)
        for repeat in range(repeats)
    ]


def summary_of(records: list[AnswerRecord], prompts: int) -> AbSummary:
    schemas = {f"p{number}": SCHEMA for number in range(prompts)}
    return summarise(Plan(("plain", "spec"), ["load"], len(records), schemas=schemas), records)


def test_a_server_whose_answers_break_is_told() -> None:
    texts = [(GOOD, BAD)] * 8 + [(GOOD, GOOD)] * 8
    summary = summary_of(records_of(*texts, repeats=2), 16)
    load = summary.loads[0]
    plain, spec = (load.servers[name].validity for name in ("plain", "spec"))
    assert plain is not None
    assert spec is not None
    assert (plain.answers, plain.prompts, plain.valid, spec.valid) == (32, 16, 32, 16)
    assert spec.valid_interval == pytest.approx([0.280, 0.720], abs=1e-3)
    assert load.validity is not None
    assert (load.validity.first_only, load.validity.second_only) == (8, 0)
    # Of 2**8 ways round, two are as extreme; repeats of a prompt are no evidence of their own.
    assert load.validity.chance == pytest.approx(2 / 2**8)
    assert load.validity.verdict == LESS_VALID
    sentence = (
        "Valid by their JSON schema at load: 50.0% (28.0% to 72.0%) of the answers of `spec`, 100.0% (80.6% to "
        "100.0%) of those of `plain`: less often valid"
    )
    assert sentence in headline(summary)
    page = render(build(AbDescription(), summary))
    assert "FEWER VALID ANSWERS at load" in page
    assert page.index("## Are the answers valid JSON?") < page.index("| `plain` | 32 |")


@pytest.mark.parametrize(
    ("texts", "verdict"),
    [
        ([(GOOD, BAD)] * 5, "too few prompts to tell"),
        ([(GOOD, BAD), (BAD, GOOD)] * 4, "no difference shown"),
        ([(GOOD, GOOD)] * 8, "no difference shown"),
    ],
)
def test_without_evidence_no_difference_is_called(
    texts: list[tuple[str, str]], verdict: str
) -> None:
    entry = summary_of(records_of(*texts), len(texts)).loads[0].validity
    assert entry is not None
    assert entry.verdict == verdict


def test_prompts_without_a_schema_are_not_judged() -> None:
    load = summary_of(records_of((GOOD, BAD), (GOOD, BAD)), prompts=1).loads[0]
    assert load.servers["spec"].validity is not None
    assert load.servers["spec"].validity.answers == 1
    nothing = summary_of(records_of((GOOD, BAD)), prompts=0)
    assert nothing.loads[0].validity is None
    assert "valid JSON" not in render(build(AbDescription(), nothing))


def test_the_interval_of_a_share_is_wilsons() -> None:
    # Newcombe (1998), table I: 81 of 263, and 0 of 20.
    assert share_interval(81 / 263, 263) == pytest.approx([0.2553, 0.3662], abs=1e-4)
    assert share_interval(0.0, 20) == pytest.approx([0.0, 0.1611], abs=1e-4)


def test_equal_servers_are_called_different_in_one_of_twenty_runs_at_most() -> None:
    import numpy as np

    random = np.random.default_rng(1)
    runs = random.integers(0, 2, (200, 2, 24)).astype(float)
    shown = sum(chance_of_equals(second - first) < 0.05 for first, second in runs)
    assert shown <= 20


PROMPTS = [Prompt("a", "x", ("say",), schema=SCHEMA), Prompt("b", "x", ("say",))]


def test_a_constraint_needs_a_schema_of_every_prompt_and_own_ones_are_used_without() -> None:
    assert schemas_of(None, PROMPTS) == ({"a": SCHEMA}, [])
    assert list(schemas_of(parse_constraint("json-schema:{}"), PROMPTS)[0]) == ["a", "b"]
    with pytest.raises(SkitError, match="prompt 'b' has no field 'schema'"):
        schemas_of(parse_constraint("dataset"), PROMPTS)
    unread = [Prompt("c", "x", ("say",), schema='{"type": "int"}')]
    schemas, (line,) = schemas_of(None, unread)
    assert schemas == {}
    assert line.startswith("NOT JUDGED: 1 JSON schemas are not read; prompt 'c'")
    with pytest.raises(SkitError, match="prompt 'c': a JSON schema has a fault at type"):
        schemas_of(parse_constraint("dataset"), unread)


def test_thoughts_and_calls_of_tools_are_kept_apart_from_the_reply() -> None:
    received = ReceivedStream()
    received.add(StreamEvent(reasoning="hm ", token_ids=[1], tokens=1), 0.1)
    received.add(StreamEvent(text=GOOD, token_ids=[2], tokens=1), 0.2)
    assert (received.answer().text, received.answer().reply) == (f"hm {GOOD}", GOOD)
    plain = ReceivedStream()
    plain.add(StreamEvent(text=GOOD, token_ids=[2], tokens=1), 0.2)
    assert plain.answer().reply is None


@pytest.mark.parametrize(
    ("kind", "version", "path"),
    [
        ("chat", "", ("response_format", "json_schema", "schema")),
        ("llama-cpp-chat", "", ("response_format", "json_schema", "schema")),
        ("vllm-chat", "0.32.0", ("response_format", "json_schema", "schema")),
        ("sglang-chat", "", ("response_format", "json_schema", "schema")),
        ("llama-cpp", "", ("json_schema",)),
        ("vllm", "0.32.0", ("structured_outputs", "json")),
        ("vllm", "0.10.2", ("guided_json",)),
        ("tgi", "", ("parameters", "grammar", "value")),
    ],
)
def test_a_request_states_the_schema_as_its_server_takes_it(
    kind: str, version: str, path: tuple[str, ...]
) -> None:
    dialect = dialects.get(kind)()
    dialect.version = version
    assert dialect.takes_schema
    value: JsonObject = dialect.body(Generation("say", 5, Sampler(), 1, "l", schema=SCHEMA))
    without = dialect.body(Generation("say", 5, Sampler(), 1, "l"))
    assert path[-1] not in json.dumps(without)
    for name in path:
        value = value[name]
    assert value == json.loads(SCHEMA)


def test_sglangs_own_route_takes_the_schema_as_a_text() -> None:
    body = dialects.get("sglang")().body(Generation("say", 5, Sampler(), 1, "l", schema=SCHEMA))
    assert json.loads(body["sampling_params"]["json_schema"]) == json.loads(SCHEMA)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [
        {"id": f"p{number}", "prompt": f"prompt number {number}", "schema": {"type": "object"}}
        for number in range(6)
    ]
    return write_rows(tmp_path / "prompts.jsonl", *rows)


def run(prompts: Path, kind: str, *options: object) -> tuple[JsonObject, StreamingEngine, str]:
    out = prompts.parent / "out"
    common = ("--dataset", prompts, "--max-new-tokens", 4, "--out", out, "--warm-up", 0)
    with streaming_server() as (first, engine), streaming_server() as (second, _):
        done = skit_here(
            "ab", f"a={kind}://{first}", f"b={kind}://{second}", *common, "--repeats", 1, *options
        )
    assert done.returncode == 0, done.stderr
    (folder,) = out.glob("*-ab-*")
    return read_object(folder / "summary.json"), engine, (folder / "report.md").read_text()


def test_answers_of_servers_are_judged_by_the_prompts_schemas(prompts: Path) -> None:
    summary, engine, page = run(prompts, "chat")
    assert all("response_format" not in body for _, body in engine.requests)
    (load,) = summary["loads"]
    for name in ("a", "b"):
        assert load["servers"][name]["validity"]["answers"] == 6
        assert load["servers"][name]["validity"]["cut"] == 6
    assert load["validity"]["verdict"] == "no difference shown"
    assert "Requests stated no schema of the answer" in page
    assert "CUT ANSWERS: 6 of 6 answers of a" in page


def test_a_server_is_asked_to_write_by_the_constraint(prompts: Path) -> None:
    _, engine, page = run(prompts, "chat", "--constraint", "json-schema:{}", "--send-constraint")
    sent = [body["response_format"]["json_schema"]["schema"] for _, body in engine.requests]
    assert sent == [{}] * 7  # the first asks if the server understands
    assert "The servers were asked to write by the schema." in page
    assert "| JSON schema | json-schema {} |" in page


def test_what_cannot_be_sent_or_judged_is_refused_before_anything_is_asked(prompts: Path) -> None:
    servers = ("a=completions://127.0.0.1:1", "b=completions://127.0.0.1:2", "--dataset", prompts)
    constraint = ("--constraint", "dataset", "--send-constraint")
    assert "whose requests state no schema" in error_line(skit_here("ab", *servers, *constraint))
    lark = skit_here("ab", *servers, "--constraint", "regex:[a-z]")
    assert "answers are held against a JSON schema" in error_line(lark)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}


def called(*calls: tuple[str, str], text: str = "", finish: str = "tool_calls") -> StreamedAnswer:
    parts = [AnswerCall(name, arguments) for name, arguments in calls]
    return StreamedAnswer(text, [Burst(0.1, 3)], "token ids", finish, reply=text, calls=parts)


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (called(("f", GOOD)), "valid"),
        (called(("f", GOOD), ("f", GOOD)), "valid"),
        (called(("f", "{}")), "other JSON"),
        (called(("g", GOOD)), "other JSON"),
        (called(("f", BAD)), "broken"),
        (called(("f", BAD), finish="length"), "cut"),
        (called(text="No call is needed."), None),
        # A server leaves a call that it cannot read in the text.
        (called(text='<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>'), "broken"),
        (called(text='{"name": "f", "arguments": {"a": 1}}'), "valid"),
        (called(text='{"name": "f", "arguments": {}}'), "other JSON"),
        (called(("f", GOOD), text='{"name": "f", "argum'), "broken"),
    ],
)
def test_calls_are_judged_by_the_tools_of_their_conversation(
    given: StreamedAnswer, outcome: str | None
) -> None:
    assert outcome_of_calls(given, Tools([TOOL])) == outcome


def test_a_call_that_arrives_in_parts_is_put_together() -> None:
    dialect = dialects.get("chat")()
    received = ReceivedStream()
    deltas: list[JsonObject] = [
        {"role": "assistant", "content": None},
        {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "g", "arguments": "{}"}}]},
    ]
    for number, delta in enumerate(deltas):
        event = dialect.read(json.dumps({"choices": [{"index": 0, "delta": delta}]}))
        received.add(event, number / 10)
    answer = received.answer()
    assert answer.calls == [AnswerCall("f", GOOD), AnswerCall("g", "{}")]
    assert answer.text == 'f{"a": 1}g{}'
    assert answer.reply == ""


def conversation(tmp_path: Path) -> Path:
    call = {"function": {"name": "f", "arguments": GOOD}}
    messages = [
        {"role": "user", "content": "do it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done"},
    ]
    rows = [{"id": f"p{n}", "messages": messages, "tools": [TOOL]} for n in range(2)]
    return write_rows(tmp_path / "prompts.jsonl", *rows)


def test_a_chat_gets_tools_and_the_recorded_messages(tmp_path: Path) -> None:
    summary, engine, _ = run(conversation(tmp_path), "chat")
    bodies = [body for _, body in engine.requests[1:]]
    assert [body["tools"] for body in bodies] == [[TOOL]] * 4
    assert [len(body["messages"]) for body in bodies] == [1, 3, 1, 3]
    assert bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == GOOD
    # The tiny model calls nothing.
    assert summary["loads"][0]["servers"]["a"]["validity"] is None


def test_a_server_that_continues_texts_gets_tools_as_texts(tmp_path: Path) -> None:
    _, engine, _ = run(conversation(tmp_path), "completions")
    prompts = [body["prompt"] for _, body in engine.requests[1:]]
    assert all("You can call these functions" in prompt for prompt in prompts)
    assert prompts[1].endswith('"arguments": {"a": 1}}\n\nResult: done')

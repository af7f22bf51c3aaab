"""Prompts become requests: templates, turns, and answers that later turns are asked after."""

from copy import copy
from typing import TYPE_CHECKING

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.datasets.base import Prompt
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request
from specbench_kit.studies.conversations import (
    Conversation,
    ConversationScript,
    max_conversation_tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


QUESTION = Prompt("q", "maths", ("How many?",))
DIALOGUE = Prompt("d", "chat", ("Who?", "And why?", "Really?"))


def ask(conversation: Conversation) -> Request:
    request = conversation.next_request()
    assert request is not None
    return request


def record(request: Request, text: str) -> RequestRecord:
    return RequestRecord(request.id, request.category, list(request.prompt_ids), text=text)


def texts(tokenizer: "PreTrainedTokenizerBase", requests: list[Request]) -> dict[str, str]:
    return {request.id: tokenizer.decode(request.prompt_ids) for request in requests}


def test_a_chat_prompt_goes_through_the_template_once(tokenizer: "PreTrainedTokenizerBase") -> None:
    conversation = Conversation(QUESTION, tokenizer, 7)
    request = ask(conversation)
    assert (request.id, request.category, request.max_new_tokens, request.reference) == (
        "q",
        "maths",
        7,
        (),
    )
    assert tokenizer.decode(request.prompt_ids) == "<|begin|>user: How many?\nassistant: "
    assert request.prompt_ids.count(tokenizer.bos_token_id) == 1
    assert conversation.next_request() is None


def test_a_text_to_continue_goes_in_as_it_is(tokenizer: "PreTrainedTokenizerBase") -> None:
    request = ask(Conversation(Prompt("t", "text", ("Once upon",), chat=False), tokenizer, 7))
    assert list(request.prompt_ids) == tokenizer("Once upon")["input_ids"]


def test_later_turns_hold_all_answers_so_far(tokenizer: "PreTrainedTokenizerBase") -> None:
    conversation = Conversation(DIALOGUE, tokenizer, 7)
    requests = []
    for answer in (" Me.", "Because.", "Yes."):
        requests.append(ask(conversation))
        conversation.answer(answer)
    assert texts(tokenizer, requests) == {
        "d/1": "<|begin|>user: Who?\nassistant: ",
        "d/2": "<|begin|>user: Who?\nassistant: Me.\nuser: And why?\nassistant: ",
        "d/3": "<|begin|>user: Who?\nassistant: Me.\nuser: And why?\nassistant: Because.\nuser: Really?\nassistant: ",
    }
    assert conversation.next_request() is None


def test_the_system_speaks_before_the_first_turn(tokenizer: "PreTrainedTokenizerBase") -> None:
    conversation = Conversation(
        Prompt("d", "chat", ("Who?", "Why?"), system="Be short."), tokenizer, 7
    )
    ask(conversation)
    conversation.answer("Me.")
    expected_text = (
        "<|begin|>system: Be short.\nuser: Who?\nassistant: Me.\nuser: Why?\nassistant: "
    )
    assert tokenizer.decode(ask(conversation).prompt_ids) == expected_text


def test_without_a_template_turns_are_paragraphs(tokenizer: "PreTrainedTokenizerBase") -> None:
    plain = copy(tokenizer)
    plain.chat_template = None
    conversation = Conversation(DIALOGUE, plain, 7)
    ask(conversation)
    conversation.answer("Me.")
    assert plain.decode(ask(conversation).prompt_ids) == "Who?\n\nMe.\n\nAnd why?"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system\nprompt') }}",
        "{% for %}",
        "{{ messages[9].content }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 'x' * (1 << 70) }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_chat_template_that_fails_is_one_line(
    template: str, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    hostile = copy(tokenizer)
    hostile.chat_template = template
    with pytest.raises(SkitError, match="the model's chat template fails on prompt 'q'") as caught:
        ask(Conversation(QUESTION, hostile, 7))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("prompt", [QUESTION, DIALOGUE])
def test_room_is_kept_for_answers_whose_text_takes_more_tokens_than_they_had(
    prompt: Prompt, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    conversation = Conversation(prompt, tokenizer, 10)
    garbage = tokenizer.decode([tokenizer.convert_tokens_to_ids("ÿ")] * 10)
    longest = 0
    for _ in prompt.turns:
        longest = len(ask(conversation).prompt_ids) + 10
        conversation.answer(garbage)
    assert len(tokenizer(garbage)["input_ids"]) == 30
    assert max_conversation_tokens(prompt, tokenizer, 10) == longest


def test_a_script_asks_a_turn_only_after_the_answer_before_it(
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    script = ConversationScript(
        [Conversation(prompt, tokenizer, 7) for prompt in (DIALOGUE, QUESTION)], {}
    )
    first, question = script.take()
    assert (first.id, question.id) == ("d/1", "q")
    assert list(script.take()) == []
    script.finish(record(question, "Four."))
    assert list(script.take()) == []
    script.finish(record(first, "Me."))
    (second,) = script.take()
    assert second.id == "d/2"
    assert "assistant: Me.\n" in tokenizer.decode(second.prompt_ids)


def test_a_resumed_script_goes_on_after_the_recorded_answers(
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    finished = {
        "d/1": RequestRecord("d/1", "chat", [], text="Me."),
        "q": RequestRecord("q", "maths", []),
    }
    script = ConversationScript(
        [Conversation(prompt, tokenizer, 7) for prompt in (DIALOGUE, QUESTION)], finished
    )
    (second,) = script.take()
    assert texts(tokenizer, [second]) == {
        "d/2": "<|begin|>user: Who?\nassistant: Me.\nuser: And why?\nassistant: "
    }
    script.finish(record(second, "Because."))
    assert [request.id for request in script.take()] == ["d/3"]


def test_a_script_of_finished_conversations_asks_nothing(
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    finished = {name: RequestRecord(name, "chat", []) for name in ("d/1", "d/2", "d/3")}
    assert list(ConversationScript([Conversation(DIALOGUE, tokenizer, 7)], finished).take()) == []


CALLS = Prompt(
    "t",
    "tools",
    ("Add 1 and 2.", "3"),
    system="Be exact.",
    tools='[{"type": "function", "function": {"name": "add"}}]',
    script=(
        '[{"role": "user", "content": "Add 1 and 2."}]',
        '[{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", '
        '"arguments": {"a": 1, "b": 2}}}]}, {"role": "tool", "content": "3"}]',
    ),
)


def test_a_recorded_conversation_follows_its_own_calls_and_results(
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    conversation = Conversation(CALLS, tokenizer, 7)
    first = ask(conversation)
    conversation.answer("something else")
    second = ask(conversation)
    assert conversation.next_request() is None
    texts_of_turns = texts(tokenizer, [first, second])
    assert list(texts_of_turns) == ["t/1", "t/2"]
    offered, again = texts_of_turns.values()
    assert 'You can call these functions:\n{"name": "add"}' in offered
    assert again.startswith(offered)
    assert "something else" not in again
    assert again.endswith(
        '{"name": "add", "arguments": {"a": 1, "b": 2}}\nuser: Result: 3\nassistant: '
    )
    assert max_conversation_tokens(CALLS, tokenizer, 7) == len(second.prompt_ids) + 7


def test_a_template_that_knows_tools_gets_them_as_they_are(
    tokenizer: "PreTrainedTokenizerBase",
) -> None:
    knowing = copy(tokenizer)
    knowing.chat_template = (
        "{% for tool in tools %}<{{ tool.function.name }}>{% endfor %}{% for message in messages %}"
        "[{{ message.role }}{% for call in message.tool_calls %} {{ call.function.arguments.b }}{% endfor %}]"
        "{% endfor %}"
    )
    conversation = Conversation(CALLS, knowing, 7)
    requests = [ask(conversation), ask(conversation)]
    assert list(texts(knowing, requests).values()) == [
        "<add>[system][user]",
        "<add>[system][user][assistant 2][tool]",
    ]

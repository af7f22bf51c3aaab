"""Requests made of prompts: chat templates, token ids, and the turns of a dialogue."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.typed_json import JsonObject
from specbench_kit.datasets.base import Prompt
from specbench_kit.datasets.tool_calls import Tools
from specbench_kit.datasets.tool_messages import plain_messages
from specbench_kit.decoding.constraint import Constraint
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request
from specbench_kit.metrics.tool_calls import ToolAnswers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER_GROWTH = 3
"""Tokens that one generated token can take in the next prompt: half a character may be shown as
three bytes.
"""


class Conversation:
    """The turns of one prompt; each later turn follows the answer that the same method gave to the
    turn before.

    Every answer follows the `constraint`, if there is one.
    """

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: "PreTrainedTokenizerBase",
        max_new_tokens: int,
        constraint: Constraint | None = None,
    ) -> None:
        self.prompt = prompt
        self._constraint = constraint
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens
        self._messages: list[JsonObject] = (
            [{"role": "system", "content": prompt.system}] if prompt.system else []
        )
        self._tools: list[JsonObject] = json.loads(prompt.tools) if prompt.tools else []
        self._turn = 0

    def next_request(self) -> Request | None:
        """Return the request of the next turn, or None after the last turn."""
        if self._turn == len(self.prompt.turns):
            return None
        if self.prompt.script:
            self._messages += json.loads(self.prompt.script[self._turn])
        else:
            self._messages.append({"role": "user", "content": self.prompt.turns[self._turn]})
        self._turn += 1
        is_dialogue = len(self.prompt.turns) > 1
        request_id = f"{self.prompt.id}/{self._turn}" if is_dialogue else self.prompt.id
        templated = self.prompt.chat and bool(self._tokenizer.chat_template)
        text = (
            self._templated()
            if templated
            else "\n\n".join(message["content"] for message in self._plain_messages())
        )
        # verbose=False: a prompt that is too long is recorded as failed, so the library need not
        # warn of it.
        token_ids = self._tokenizer(text, add_special_tokens=not templated, verbose=False)[
            "input_ids"
        ]
        return Request(
            request_id,
            self.prompt.category,
            tuple(token_ids),
            self._max_new_tokens,
            dialogue=self.prompt.dialogue or (self.prompt.id if is_dialogue else ""),
            constraint=self._constraint,
        )

    def answer(self, text: str) -> None:
        """Add the answer to the last turn; a recorded conversation goes on with its own."""
        if not self.prompt.script:
            self._messages.append({"role": "assistant", "content": text.strip()})

    def _plain_messages(self) -> Sequence[JsonObject]:
        """Return the messages for a template that knows no tools."""
        if not (self._tools or self.prompt.script):
            return self._messages
        return plain_messages(self._messages, self._tools)

    def _templated(self) -> str:
        knows_tools = "tools" in str(self._tokenizer.chat_template)
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(self._messages if knows_tools else self._plain_messages()),
                    tools=self._tools if knows_tools and self._tools else None,
                    tokenize=False,
                    add_generation_prompt=True,
                )
            )
        except (
            Exception
        ) as error:  # a template is a program written by the model's maker and may raise anything
            without = "remove its system message, or " if self.prompt.system else ""
            raise SkitError(
                f"the model's chat template fails on prompt '{self.prompt.id}' ({first_line(error)}): correct it, or "
                f'{without}give "chat": false in a prompt file of your own'
            ) from error


def max_conversation_tokens(
    prompt: Prompt, tokenizer: "PreTrainedTokenizerBase", max_new_tokens: int
) -> int:
    """Return an upper bound of the tokens of a whole conversation, answers included."""
    conversation = Conversation(prompt, tokenizer, max_new_tokens)
    length = 0
    while request := conversation.next_request():
        length = len(request.prompt_ids)
        conversation.answer("")
    if prompt.script:
        return length + max_new_tokens  # answers are not repeated in later prompts
    return length + max_new_tokens * (1 + ANSWER_GROWTH * (len(prompt.turns) - 1))


def tool_answers(
    prompts: Sequence[Prompt], tokenizer: "PreTrainedTokenizerBase"
) -> ToolAnswers | None:
    """Return what reads the answers in conversations with tools; None if no prompt has tools."""
    tools = {
        prompt.dialogue or prompt.id: Tools(json.loads(prompt.tools))
        for prompt in prompts
        if prompt.tools
    }
    return ToolAnswers(tools, lambda ids: str(tokenizer.decode(ids))) if tools else None


class ConversationScript:
    """All conversations of one method, which hands out each request as soon as it can be
    submitted.
    """

    def __init__(
        self, conversations: Sequence[Conversation], finished: Mapping[str, RequestRecord]
    ) -> None:
        self._open: dict[str, Conversation] = {}
        self._ready: list[Request] = []
        for conversation in conversations:
            self._advance(conversation, finished)

    def take(self) -> Iterator[Request]:
        """Yield the requests that became ready since the last call."""
        ready = self._ready
        self._ready = []
        yield from ready

    def finish(self, record: RequestRecord) -> None:
        """Add the answer to a request; the dialogue's next turn, if any, becomes ready."""
        conversation = self._open.pop(record.request_id)
        conversation.answer(record.text)
        self._advance(conversation, {})

    def _advance(self, conversation: Conversation, finished: Mapping[str, RequestRecord]) -> None:
        request = conversation.next_request()
        while request is not None and request.id in finished:
            conversation.answer(finished[request.id].text)
            request = conversation.next_request()
        if request is not None:
            self._open[request.id] = conversation
            self._ready.append(request)

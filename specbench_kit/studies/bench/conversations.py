"""From prompts to requests: chat templates, tokens, and the turns of a dialogue."""

from collections.abc import Iterator, Mapping
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line
from specbench_kit.datasets.base import Prompt
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.session import Request

ANSWER_GROWTH = 3
"""Tokens that a generated token may come to in the next prompt: half a character is shown as one of three bytes."""


class Conversation:
    """One prompt's turns; each later turn is asked after the answer that the same method gave."""

    def __init__(self, prompt: Prompt, tokenizer: Any, max_new_tokens: int) -> None:
        self.prompt = prompt
        self._tokenizer, self._max_new_tokens = tokenizer, max_new_tokens
        self._messages: list[dict[str, str]] = []
        self._asked = 0

    def next_request(self) -> Request | None:
        """The next turn, or None after the last."""
        if self._asked == len(self.prompt.turns):
            return None
        self._messages.append({"role": "user", "content": self.prompt.turns[self._asked]})
        self._asked += 1
        return Request(self._request_id(), self.prompt.category, tuple(self._encode()), self._max_new_tokens)

    def answer(self, text: str) -> None:
        """Take note of what was said to the last turn."""
        self._messages.append({"role": "assistant", "content": text.strip()})

    def _request_id(self) -> str:
        return self.prompt.id if len(self.prompt.turns) == 1 else f"{self.prompt.id}/{self._asked}"

    def _templated(self) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(self._messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's maker and fails in its own ways
            raise SkitError(
                f"the model's chat template fails on prompt '{self.prompt.id}' ({first_line(error)}): correct it, or "
                'give "chat": false in a prompt file of your own'
            ) from error

    def _encode(self) -> list[int]:
        tokenizer, templated = self._tokenizer, self.prompt.chat and bool(self._tokenizer.chat_template)
        text = self._templated() if templated else "\n\n".join(message["content"] for message in self._messages)
        # verbose=False: a prompt that is too long is recorded, so the library need not warn of it
        return list(tokenizer(text, add_special_tokens=not templated, verbose=False)["input_ids"])


def most_tokens(prompt: Prompt, tokenizer: Any, max_new_tokens: int) -> int:
    """Tokens that a conversation can come to, answers included."""
    conversation, length = Conversation(prompt, tokenizer, max_new_tokens), 0
    while request := conversation.next_request():
        length = len(request.prompt_ids)
        conversation.answer("")
    return length + max_new_tokens * (1 + ANSWER_GROWTH * (len(prompt.turns) - 1))


class ConversationScript:
    """All conversations of one method: hands out the requests that can be asked now."""

    def __init__(self, conversations: list[Conversation], finished: Mapping[str, RequestRecord]) -> None:
        self._asking: dict[str, Conversation] = {}
        self._ready: list[Request] = []
        for conversation in conversations:
            self._advance(conversation, finished)

    def take(self) -> Iterator[Request]:
        """The requests that became askable since the last call."""
        ready, self._ready = self._ready, []
        yield from ready

    def finish(self, record: RequestRecord) -> None:
        """A request was answered: its dialogue's next turn, if any, becomes askable."""
        conversation = self._asking.pop(record.request_id)
        conversation.answer(record.text)
        self._advance(conversation, {})

    def _advance(self, conversation: Conversation, finished: Mapping[str, RequestRecord]) -> None:
        request = conversation.next_request()
        while request is not None and request.id in finished:
            conversation.answer(finished[request.id].text)
            request = conversation.next_request()
        if request is not None:
            self._asking[request.id] = conversation
            self._ready.append(request)

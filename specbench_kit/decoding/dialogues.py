"""Recognises which requests are turns of one dialogue."""

from collections.abc import Sequence
from typing import NamedTuple

SAMPLE = 8
"""Tokens of an answer that are looked for in the next turn's prompt."""


class _Turn(NamedTuple):
    dialogue: int
    prompt: Sequence[int]
    answer: Sequence[int | None]


class Dialogues:
    """Numbers dialogues: their turns are no independent samples, and are on one side of a split.

    A request may name its dialogue. Otherwise turn n of dialogue D is called D/n, its prompt begins
    as that of turn n - 1 does, and holds the answer to it. All of that must hold, since a single
    prompt may be called D/n too, and prompts with examples begin alike.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._named: dict[str, int] = {}
        self._count = 0

    def index(
        self,
        request_id: str,
        prompt: Sequence[int],
        answer: Sequence[int | None],
        dialogue: str = "",
    ) -> int:
        """Return the number of a request's dialogue, from 0 on; turns come in order."""
        name, _, turn = request_id.rpartition("/")
        previous = self._turns.get(f"{name}/{int(turn) - 1}") if turn.isdecimal() else None
        if dialogue:
            number = self._named.setdefault(dialogue, self._count)
        elif previous is not None and _goes_on(previous, prompt):
            number = previous.dialogue
        else:
            number = self._count
        self._count = max(self._count, number + 1)
        self._turns[request_id] = _Turn(number, prompt, answer)
        return number


def _goes_on(turn: _Turn, prompt: Sequence[int]) -> bool:
    """Return True if a prompt may be the next turn's.

    At least half of the earlier prompt opens it, since templates may end the two differently, and
    part of the answer follows: templates may leave out the beginning of an answer, where the model
    thinks, and its end token.
    """
    before = turn.prompt
    shared = next(
        (i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before)
    )
    if 2 * shared < len(before) or len(prompt) <= len(before):
        return False
    # Prompts whose tokens were replaced have one token for all turns of a dialogue, and no answer
    # is in them.
    if len({*before, *prompt}) == 1:
        return True
    answer = turn.answer[1:-1]
    samples = [list(answer[:SAMPLE]), list(answer[-SAMPLE:])]
    follows = list(prompt[shared:])
    return any(
        follows[i : i + len(sample)] == sample for sample in samples for i in range(len(follows))
    )

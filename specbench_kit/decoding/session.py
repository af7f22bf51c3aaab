"""One running request: its tokens, its limits, and the one rule for where it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench_kit.decoding.constraint import Constraint, GrammarState
from specbench_kit.decoding.records import FinishReason, RequestRecord
from specbench_kit.decoding.sampling import RequestRandom


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to decode.

    `reference` is the target's answer, for methods that may read it, and `dialogue` names the dialogue of which the
    prompt is a turn. A `constraint` is the grammar that the output has to follow.
    """

    id: str
    category: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    reference: tuple[int, ...] = ()
    dialogue: str = ""
    constraint: Constraint | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A request in the batch.

    `tokens` is prompt and output. The last token is in no KV cache yet: the next forward begins with it.
    """

    request: Request
    random: RequestRandom
    eos_ids: frozenset[int]
    arrival_s: float
    """When the request was submitted, which is when a slot of the batch became free for it."""
    record: RequestRecord
    tokens: list[int] = field(init=False)
    finish_reason: FinishReason | None = None
    grammar: GrammarState | None = field(init=False)
    """Where the output stands in its grammar; None without one."""

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        constraint = self.request.constraint
        self.grammar = None if constraint is None else constraint.state()

    @property
    def produced(self) -> int:
        """The number of output tokens so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    def forced_after(self, tokens: Sequence[int]) -> list[int]:
        """Return the run of tokens that the grammar forces behind the committed ones and `tokens`,
        up to the end of the output or its limit: each is the only one that is allowed in its place.
        """
        room = self.request.max_new_tokens - self.produced
        path = list(tokens)
        ended = not self.eos_ids.isdisjoint(path)
        while self.grammar is not None and not ended and len(path) < room:
            token = self.grammar.only(path)
            if token is None:
                break
            path.append(token)
            ended = token in self.eos_ids
        return path[len(tokens) :]

    def commit(self, tokens: Sequence[int]) -> int:
        """Append tokens that are known to be right up to end-of-sequence or the length limit, and return how many
        were appended.
        """
        room = self.request.max_new_tokens - self.produced
        committed = list(tokens[:room])
        if not self.eos_ids.isdisjoint(committed):
            end = next(i for i, token in enumerate(committed) if token in self.eos_ids)
            del committed[end + 1 :]
            self.finish_reason = "eos"
        elif len(committed) == room:
            self.finish_reason = "length"
        self.tokens.extend(committed)
        if self.grammar is not None:
            self.grammar.advance(committed)
        return len(committed)

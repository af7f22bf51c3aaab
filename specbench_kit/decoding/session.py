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
    skip_forced: bool = False
    """True if a token that is the only one that the grammar allows joins the output without being
    verified.
    """
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

    def skipped_after(self, tokens: Sequence[int]) -> list[int]:
        """Return the run of tokens that join the output behind the committed ones and `tokens`
        without being verified, up to the end of the output or its limit.

        Each is the only one that the grammar allows in its place. There are none unless forced
        tokens are skipped.
        """
        if not self.skip_forced:
            return []
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

    def up_to_end(self, tokens: Sequence[int]) -> list[int]:
        """Return those of the next tokens that belong to the output: up to end-of-sequence or the
        length limit.
        """
        taken = list(tokens[: self.request.max_new_tokens - self.produced])
        end = next((i for i, token in enumerate(taken) if token in self.eos_ids), len(taken))
        return taken[: end + 1]

    def commit(self, tokens: Sequence[int]) -> int:
        """Append tokens that are known to be right up to end-of-sequence or the length limit, and return how many
        were appended.
        """
        room = self.request.max_new_tokens - self.produced
        committed = self.up_to_end(tokens)
        if committed and committed[-1] in self.eos_ids:
            self.finish_reason = "eos"
        elif len(committed) == room:
            self.finish_reason = "length"
        self.tokens.extend(committed)
        if self.grammar is not None:
            self.grammar.advance(committed)
        return len(committed)

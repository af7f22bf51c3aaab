"""Grammars that outputs have to follow: a JSON schema, a regular expression or a Lark grammar.

A `GrammarSpec` is what a user names, a `Constraint` what the library llguidance makes of it for one
tokenizer, and a `GrammarState` where one request stands in it. Nothing here knows how tokens are
drafted or accepted.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.extras import missing_module_line
from specbench_kit.core.plain_text import first_line
from specbench_kit.decoding.records import Outcome

if TYPE_CHECKING:  # the options of a command need none of these, and one is optional
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer
    from numpy.typing import NDArray

GrammarKind = Literal["json-schema", "regex", "lark"]
LIBRARY = "llguidance"
"""The optional package that says what a grammar allows."""
BY_PROMPT = "dataset"
"""Stands for a grammar of each prompt's own."""
OPTION = "--constraint"
HASH_DIGITS = 16
Allowed: TypeAlias = "NDArray[np.bool_] | None"
"""For each token of the tokenizer, if it may come next; None where nothing is forbidden."""


@dataclass(frozen=True)
class GrammarSpec:
    """A grammar by its kind and its text, or `dataset`, which has no text."""

    kind: GrammarKind | Literal["dataset"]
    text: str = ""

    @property
    def spec(self) -> str:
        """Return the text that `parse_constraint` reads as this grammar, without any file."""
        return f"{self.kind}:{self.text}" if self.text else self.kind

    @property
    def hash(self) -> str:
        """Return a hash of kind and text (16 hexadecimal digits)."""
        return hashlib.sha256(self.spec.encode()).hexdigest()[:HASH_DIGITS]


def joint_hash(grammars: Iterable[GrammarSpec]) -> str:
    """Return a hash of the grammars of a run, in order (16 hexadecimal digits)."""
    text = " ".join(grammar.hash for grammar in grammars)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def require_library(spec: GrammarSpec | None, where: str = OPTION) -> None:
    """Raise SkitError, which names the extra, if a grammar is asked for and its library is
    missing.
    """
    if spec is not None and find_spec(LIBRARY) is None:
        raise SkitError(f"{where}: {missing_module_line(LIBRARY)}")


def parse_constraint(text: str, where: str = OPTION) -> GrammarSpec:
    """Return the grammar that `json-schema:FILE`, `regex:TEXT`, `lark:FILE` or `dataset` names.

    In place of a file the text may hold the schema or the grammar itself. Raise SkitError, which
    begins with `where`, for another kind, and for a file that cannot be read.
    """
    if text == BY_PROMPT:
        return GrammarSpec("dataset")
    kind, _, rest = text.partition(":")
    require(
        kind in get_args(GrammarKind) and bool(rest),
        f"{where} takes json-schema:FILE, regex:TEXT, lark:FILE or {BY_PROMPT}, not '{text}'",
    )
    if kind == "json-schema":
        return schema_spec(rest if rest.lstrip().startswith("{") else _read(kind, rest, where))
    if kind == "lark" and "\n" not in rest and not rest.startswith("start:"):
        rest = _read(kind, rest, where)
    return GrammarSpec(cast("GrammarKind", kind), rest)


def read_spec(text: str) -> GrammarSpec:
    """Return the grammar of a text that `GrammarSpec.spec` wrote.

    Unlike `parse_constraint` it opens no file, whatever the text is: it may come from another
    machine. Raise SkitError for any other text.
    """
    kind, _, rest = text.partition(":")
    require(
        kind in get_args(GrammarKind) and bool(rest),
        f"a grammar begins with {', '.join(get_args(GrammarKind))} and a colon",
    )
    return (
        schema_spec(rest) if kind == "json-schema" else GrammarSpec(cast("GrammarKind", kind), rest)
    )


def schema_spec(schema: str | Mapping[str, Any]) -> GrammarSpec:
    """Return the grammar of a JSON schema, whose text is written in one way whatever its spaces."""
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
    except (json.JSONDecodeError, RecursionError) as error:
        raise SkitError(f"a JSON schema is not valid JSON: {first_line(error)}") from error
    require(isinstance(parsed, dict), f"a JSON schema is an object, not a {type(parsed).__name__}")
    return GrammarSpec("json-schema", json.dumps(parsed, ensure_ascii=False, separators=(",", ":")))


def _read(kind: str, name: str, where: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise SkitError(f"{where} {kind}: cannot read '{name}': {reason}") from error


def library_text(spec: GrammarSpec) -> str:
    """Return a grammar as llguidance takes it."""
    from llguidance import LLMatcher

    makers: dict[str, Callable[[str], str]] = {
        "json-schema": lambda schema: LLMatcher.grammar_from_json_schema(schema),
        "regex": lambda regex: LLMatcher.grammar_from_regex(regex),
        "lark": lambda grammar: LLMatcher.grammar_from_lark(grammar),
    }
    return makers[spec.kind](spec.text)


class Grammars:
    """Makes constraints for one tokenizer; each grammar is compiled once.

    `eos_ids` end an output, which a grammar allows where it may end. Raise SkitError for a
    tokenizer that the library cannot read.
    """

    def __init__(self, tokenizer: Any, eos_ids: Iterable[int]) -> None:
        from llguidance.hf import from_tokenizer

        self.eos_ids = frozenset(eos_ids)
        require(
            bool(self.eos_ids), "--constraint: the model has no end token, so no output could end"
        )
        try:
            self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, eos_token=sorted(self.eos_ids))
        except Exception as error:  # a tokenizer of any kind, which the library parses anew
            raise SkitError(
                f"--constraint: llguidance cannot read this tokenizer ({first_line(error)}): use another target"
            ) from error
        self._constraints: dict[GrammarSpec, Constraint] = {}

    def compile(self, spec: GrammarSpec, where: str = OPTION) -> "Constraint":
        """Return the constraint of a grammar; raise SkitError, which begins with `where`, for a
        wrong one.
        """
        from llguidance import LLMatcher

        if spec not in self._constraints:
            matcher = LLMatcher(self._tokenizer, library_text(spec), log_level=0)
            if matcher.is_error():
                raise SkitError(f"{where}: not a valid {spec.kind}: {reason_of(matcher)}")
            self._constraints[spec] = Constraint(
                spec, matcher, self.eos_ids, self._tokenizer.vocab_size
            )
        return self._constraints[spec]

    def forget(self, spec: GrammarSpec) -> None:
        """Free the constraint of a grammar; requests that follow it go on."""
        self._constraints.pop(spec, None)


def reason_of(matcher: "LLMatcher") -> str:
    """Return what is wrong with a grammar, in one line; empty if nothing is."""
    return _reason(matcher.get_error())


def _reason(message: str) -> str:
    """Return the line of a message of the library that says what is wrong, without its drawing."""
    lines = message.strip().splitlines() or [""]
    stated = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (stated or lines)[0].strip()


@dataclass(frozen=True, eq=False)
class Constraint:
    """A grammar that is ready for requests.

    `vocabulary` is the number of tokens that the tokenizer knows.
    """

    spec: GrammarSpec
    beginning: "LLMatcher"
    eos_ids: frozenset[int]
    vocabulary: int

    def state(self) -> "GrammarState":
        """Return the state of a request that has no output yet."""
        return GrammarState(self)

    def allowed_along(self, output_ids: Sequence[int]) -> Iterator[Allowed]:
        """Yield what the grammar allows before each token of an output."""
        state = self.state()
        for end in range(len(output_ids)):
            yield state.allowed(output_ids[:end])

    def outcome(self, output_ids: Sequence[int]) -> Outcome:
        """Return what the grammar says of a whole output, read anew from its beginning."""
        matcher = self.beginning.deep_copy()
        text, ended = list(output_ids), False
        if text and text[-1] in self.eos_ids:
            text, ended = text[:-1], True
        if not all(_consume(matcher, self, token) for token in text):
            return "invalid"
        if matcher.is_accepting():
            return "valid"
        return "invalid" if ended else "cut"


def spec_of(constraint: Constraint | None) -> GrammarSpec | None:
    """Return the grammar of a constraint, if there is one."""
    return None if constraint is None else constraint.spec


def _consume(matcher: "LLMatcher", constraint: Constraint, token: int) -> bool:
    """Advance by a token, and return whether the grammar allows it; end tokens are no text."""
    known = 0 <= token < constraint.vocabulary and token not in constraint.eos_ids
    return known and matcher.try_consume_tokens([token]) == 1


class GrammarState:
    """Where one request stands in its grammar: behind its committed tokens, and below them
    anywhere in a draft.

    A `path` are the tokens from the committed ones down to a place in the draft.
    """

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self._matcher = constraint.beginning.deep_copy()
        self._below: list[int] = []
        """The tokens below the committed ones that the matcher has consumed."""
        self._ended = False
        self._found: dict[tuple[int, ...], Allowed] = {}
        """What was allowed after paths of this round: draft and target ask for the same ones."""

    def allowed(self, path: Sequence[int]) -> Allowed:
        """Return what may follow the path; None where the path itself is not allowed or has
        ended, so that nothing below it can be accepted.
        """
        key = tuple(path)
        if key not in self._found:
            self._found[key] = self._mask() if self._go(key) else None
        return self._found[key]

    def allows(self, path: Sequence[int], token: int) -> bool:
        """Return whether a token may follow the path; True of one below what is not allowed."""
        allowed = self.allowed(path)
        return allowed is None or (token < len(allowed) and bool(allowed[token]))

    def only(self, path: Sequence[int]) -> int | None:
        """Return the token that has to follow the path, if the grammar allows a single one."""
        allowed = self.allowed(path)
        return int(allowed.argmax()) if allowed is not None and allowed.sum() == 1 else None

    def forced(self, path: Sequence[int]) -> list[int]:
        """Return the tokens that have to follow the path, as the tokenizer writes that text."""
        if self.allowed(path) is None:
            return []
        if (token := self.only(path)) is not None:
            return [token]
        self._go(path)
        return list(self._matcher.compute_ff_tokens())

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on by committed tokens; the last one may end the output."""
        ended = bool(tokens) and tokens[-1] in self.constraint.eos_ids
        text = tokens[:-1] if ended else tokens
        if not self._go(text):
            raise SkitError(f"the grammar refused a token that it had allowed{self._problem()}")
        self._back_to(len(text))
        self._below = []
        self._found = {}
        self._ended = ended

    def _go(self, path: Sequence[int]) -> bool:
        """Bring the matcher to the end of a path; return False if the grammar does not lead
        there.
        """
        if self._ended:
            return False
        common = 0
        while common < min(len(path), len(self._below)) and path[common] == self._below[common]:
            common += 1
        self._back_to(common)
        for token in path[common:]:
            if not _consume(self._matcher, self.constraint, token):
                if self._matcher.is_error():
                    raise SkitError(f"the grammar cannot be followed{self._problem()}")
                return False
            self._below.append(token)
        return True

    def _back_to(self, depth: int) -> None:
        if len(self._below) > depth:
            self._matcher.rollback(len(self._below) - depth)
            del self._below[depth:]

    def _mask(self) -> "NDArray[np.bool_]":
        import numpy as np

        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        stuck = self._matcher.get_error().startswith("NoExtension")
        if self._matcher.is_error() and not stuck:
            raise SkitError(f"the grammar cannot be followed{self._problem()}")
        size = self.constraint.vocabulary
        allowed = np.unpackbits(bits, count=size, bitorder="little").astype(np.bool_)
        allowed[[token for token in self.constraint.eos_ids if token < size]] = (
            self._matcher.is_accepting()
        )
        require(
            bool(allowed.any()) and not stuck,
            "the grammar leads to a place where no token of the vocabulary goes on: change the grammar",
        )
        return allowed

    def _problem(self) -> str:
        reason = reason_of(self._matcher)
        return f": {reason}" if reason else ""

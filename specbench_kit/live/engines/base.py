"""The contract of an adapter: what the target says after every token of a draft, asked over HTTP."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import httpx

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import first_line
from specbench_kit.core.registry import Registry
from specbench_kit.decoding.sampling import Sampler

WAIT_S = 120.0


class ScoringRequest(NamedTuple):
    """A text, a chain drafted after it, and how the target chooses; `seeds[i]` is for the token after i of the chain.

    The seed belongs to a token's place in the output, so that plain decoding with the same seeds draws the same.
    """

    text: Sequence[int]
    chain: Sequence[int]
    sampler: Sampler
    seeds: Sequence[int]

    @property
    def prefixes(self) -> list[list[int]]:
        """The text with none, one, ... all of the chain."""
        return [[*self.text, *self.chain[:count]] for count in range(len(self.chain) + 1)]


class EngineAdapter(ABC):
    """One server; found in this package or through entry points of the group `specbench_kit.live.engines`."""

    supports_sampling: ClassVar[bool] = True
    """Whether it can be asked for tokens that are drawn, too."""

    def __init__(self, base: str) -> None:
        try:
            self._client = httpx.Client(base_url=base, timeout=WAIT_S)
        except httpx.InvalidURL as error:
            raise SkitError(f"{base} is no address: {first_line(error)}; give ENGINE://HOST:PORT") from error
        self._base = base

    @abstractmethod
    def target_tokens(self, asked: ScoringRequest) -> list[int]:
        """The target's token after the text, and after each token of the chain."""

    def model(self) -> tuple[str, int | None]:
        """What it calls its model, and how many tokens that reads, if it says so."""
        entry = self.get("/v1/models")["data"][0]
        return str(entry["id"]), entry.get("max_model_len")

    def tokenize(self, text: str) -> list[int] | None:
        """Its own token ids of a text; None where it cannot be asked."""
        return None

    def close(self) -> None:
        """Let go of it."""
        self._client.close()

    def get(self, path: str) -> Any:
        """A JSON answer."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The same to a question."""
        return self._ask("POST", path, body)

    def _ask(self, kind: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            found = self._client.request(kind, path, json=body)
            found.raise_for_status()
            return found.json()
        except httpx.HTTPStatusError as error:
            told = first_line(ValueError(error.response.text[:200] or error.response.reason_phrase))
            raise SkitError(f"{self._base}{path} answered {error.response.status_code}: {told}") from error
        except (httpx.HTTPError, ValueError) as error:
            raise SkitError(f"{self._base}{path} gave no answer: {first_line(error)}") from error


engines: Registry[type[EngineAdapter]] = Registry("engine", "specbench_kit.live.engines")


def unexpected_answer(base: str, reason: str) -> SkitError:
    """An answer of another form than this adapter knows."""
    return SkitError(f"{base} answered in a form that is not known here: {reason}; is it the engine that was named?")


def best_token(scores: Mapping[str, Any]) -> int:
    """Of scores by token the best."""
    return int(max(scores, key=lambda token: scores[token]["logprob"]))

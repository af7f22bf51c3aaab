"""The grammars of a benchmark's prompts: one for all, or each prompt's own."""

from collections.abc import Iterable, Sequence

from specbench_kit.core.errors import SkitError, require
from specbench_kit.datasets.base import LoadedDataset, Prompt
from specbench_kit.decoding.constraint import (
    BY_PROMPT,
    LIBRARY,
    Allowed,
    Constraint,
    Grammars,
    GrammarSpec,
    joint_hash,
    schema_spec,
    spec_of,
)
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.models.pair import Pair


class PromptGrammars:
    """Which grammar the outputs of each prompt follow; `spec` None is none.

    All are compiled at once, so that a wrong one is known before anything is decoded.
    """

    def __init__(
        self, spec: GrammarSpec | None, datasets: Sequence[LoadedDataset], pair: Pair
    ) -> None:
        self._spec = spec
        self._grammars = None if spec is None else Grammars(pair.tokenizer, pair.eos_ids)
        self._of_request: dict[tuple[str, str], Constraint] = {}
        for dataset in datasets if spec is not None else ():
            for prompt in dataset.prompts:
                if (constraint := self.of(prompt)) is not None:
                    self._of_request |= {
                        (dataset.digest, name): constraint for name in _request_ids(prompt)
                    }

    @property
    def libraries(self) -> tuple[str, ...]:
        """Return the optional package that decides what is allowed, if anything is asked for."""
        return () if self._spec is None else (LIBRARY,)

    def of(self, prompt: Prompt) -> Constraint | None:
        """Return the grammar of a prompt's outputs."""
        if self._grammars is None or self._spec is None:
            return None
        return self._grammars.compile(_spec_of(self._spec, prompt), _where(self._spec, prompt))

    def allowed(self, digest: str, record: RequestRecord) -> list[Allowed]:
        """Return what the grammar of a request allowed before each token of its output.

        `digest` is that of the request's dataset.
        """
        constraint = self._of_request.get((digest, record.request_id))
        if constraint is None:
            return [None] * len(record.output_ids)
        return list(constraint.allowed_along(record.output_ids))

    def spec_of(self, digest: str, record: RequestRecord) -> GrammarSpec | None:
        """Return the grammar of a request; `digest` is that of its dataset."""
        return spec_of(self._of_request.get((digest, record.request_id)))

    @property
    def specs(self) -> list[GrammarSpec]:
        """Return all grammars, each once."""
        return list(dict.fromkeys(constraint.spec for constraint in self._of_request.values()))

    def describe(self, prompts: Iterable[Prompt]) -> dict[str, str]:
        """Return what a run records beside the option: a hash of the grammars of its prompts."""
        if self._spec is None:
            return {}
        by_prompt = self._spec.kind == BY_PROMPT
        grammars = (
            [_spec_of(self._spec, prompt) for prompt in prompts] if by_prompt else [self._spec]
        )
        return {"constraint_hash": joint_hash(grammars)}


def _where(spec: GrammarSpec, prompt: Prompt) -> str:
    return (
        f"--constraint {BY_PROMPT}: prompt '{prompt.id}'"
        if spec.kind == BY_PROMPT
        else "--constraint"
    )


def _spec_of(spec: GrammarSpec, prompt: Prompt) -> GrammarSpec:
    """Return the grammar of a prompt; raise SkitError where it should have its own and has none."""
    if spec.kind != BY_PROMPT:
        return spec
    where = _where(spec, prompt)
    require(
        bool(prompt.schema), f"{where} has no field 'schema': give every prompt its JSON schema"
    )
    try:
        return schema_spec(prompt.schema)
    except SkitError as error:
        raise SkitError(f"{where}: {error}") from error


def _request_ids(prompt: Prompt) -> list[str]:
    turns = len(prompt.turns)
    return [prompt.id] if turns == 1 else [f"{prompt.id}/{turn}" for turn in range(1, turns + 1)]

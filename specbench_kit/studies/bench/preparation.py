"""The steps before a bench, in the order of their types: the pair's models, the methods that are
prepared with them, and the prompts that these methods may decode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specbench_kit.core.errors import require
from specbench_kit.core.repeated_prompts import passes_for
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import require_stages
from specbench_kit.methods.base import Method
from specbench_kit.methods.selection import longest_draft
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.models.catalogue import ModelSource, locate
from specbench_kit.models.draft_library import HEAD, find_draft, is_missing_draft, is_missing_head
from specbench_kit.models.pair import Pair
from specbench_kit.studies.bench.choice import chosen, usable
from specbench_kit.studies.bench.grammars import PromptGrammars
from specbench_kit.studies.bench.measured_environment import MeasuredEnvironment
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.bench.unseen_prompts import DraftFolders, without_seen
from specbench_kit.studies.conversations import max_conversation_tokens

RequireVerifiable = Callable[[Method, Sampler], None]
"""Raises SkitError for a method that the target, where it is, cannot verify."""


def sampler_of(settings: BenchSettings) -> Sampler:
    """Return the sampler of the target's tokens."""
    return Sampler(settings.temperature, settings.top_p, settings.top_k)


def needed_models(settings: BenchSettings) -> list[str]:
    """Return the names of the models that the methods draft with.

    The draft model or head of a method that was not named itself may be missing; the method is then
    left out later.
    """
    target = locate(settings.target, "target")
    needed = {
        model: None
        for spec, named in chosen(settings).items()
        for model in _method(spec, settings).drafting.models
        if named or not _is_missing(model, settings.draft, target)
    }
    return list(needed)


@dataclass(frozen=True)
class PreparedMethods:
    """The `methods` that can run here, by spec; `left_out` says why others of `all` cannot.

    `lanes` are the methods that take turns: `methods`, after the baseline if it is wanted or some
    method reads it. With a control, plain decoding takes a second turn, beside itself: where time
    is measured and compared.
    """

    methods: dict[str, Method]
    left_out: dict[str, str]
    lanes: dict[str, Method]
    has_control: bool

    @property
    def turns(self) -> int:
        """Return how many batches are in flight: each lane's stays while others have their turn."""
        return len(self.lanes) + self.has_control


def prepare_methods(
    settings: BenchSettings,
    datasets: Sequence[LoadedDataset],
    pair: Pair,
    measured: MeasuredEnvironment,
    require_verifiable: RequireVerifiable,
) -> PreparedMethods:
    """Prepare the chosen methods with the pair's models, for requests of these datasets."""

    def prepare(spec: str) -> Method:
        method = _method(spec, settings)
        _require_models(method, settings, pair)
        _require_options(method, settings, datasets)
        require_verifiable(method, sampler_of(settings))
        longest = longest_draft(chosen(settings))
        method = method.prepare(
            replace(measured.environment_of(method.drafting), longest_draft=longest)
        )
        if settings.deployment is not None:
            require_stages(method, settings.deployment)
        return method

    methods, left_out = usable(settings, prepare)
    needs_baseline = settings.baseline or any(method.needs_reference for method in methods.values())
    lanes = ({BASELINE: parse_method(BASELINE)} if needs_baseline else {}) | methods
    is_measured = settings.deployment is None
    has_control = is_measured and settings.baseline and len(lanes) > 1
    return PreparedMethods(methods, left_out, lanes, has_control)


def _require_models(method: Method, settings: BenchSettings, pair: Pair) -> None:
    """Raise SkitError, with the way to get it, for a model that a method lacks."""
    for name in method.drafting.models:
        if name.startswith(HEAD):
            pair.require_head(name)
        elif name == DRAFT and pair.draft is None:
            find_draft(settings.draft, pair.target.source)


def _require_options(
    method: Method, settings: BenchSettings, datasets: Sequence[LoadedDataset]
) -> None:
    """Raise SkitError for a method that cannot go together with an option."""
    for dataset in datasets:
        method.drafting.require_new_prompts(
            passes_for(len(dataset.prompts), settings.fewest_requests)
        )
    require(
        settings.lossy is None or method.pipeline is None,
        f"{method.display_name}: a pipeline has no lossy verification: leave out --lossy",
    )
    require(
        settings.constraint is None or method.pipeline is None,
        f"{method.display_name}: a pipeline is not masked by a grammar: leave out --constraint",
    )
    require(
        settings.constraint is not None or not method.drafting.needs_grammar,
        f"drafter '{method.drafting.spec}' drafts what a grammar forces: add --constraint",
    )
    require(
        settings.deployment is not None or not method.drafting.modelled,
        f"drafter '{method.drafting.display_name}' has no time of its own: add --deployment NAME, which models it",
    )


@dataclass(frozen=True)
class BenchPrompts:
    """The datasets as they are decoded: without the prompts that methods were trained on, as far as
    these are left out. `given` are the same datasets with all prompts.

    `drafts` are the folders of the draft model and of heads, by name. `longest` is an upper bound
    of the tokens of a conversation, answers and the draft in flight included.
    """

    given: Sequence[LoadedDataset]
    datasets: list[LoadedDataset]
    drafts: DraftFolders
    grammars: PromptGrammars
    longest: int

    @property
    def largest(self) -> int:
        """Return the number of prompts of the largest dataset."""
        return max(len(dataset.prompts) for dataset in self.datasets)


def select_prompts(
    settings: BenchSettings, given: Sequence[LoadedDataset], pair: Pair, prepared: PreparedMethods
) -> BenchPrompts:
    """Return the prompts of the given datasets that the prepared methods decode."""
    methods = prepared.methods.values()
    drafts = {
        name: model.source.folder
        for name, model in pair.loaded.items()
        if name == DRAFT or name.startswith(HEAD)
    }
    datasets = [
        without_seen(dataset, methods, settings, drafts).repeated(settings.fewest_requests)
        for dataset in given
    ]
    grammars = PromptGrammars(settings.constraint, datasets, pair)
    longest = max(
        max_conversation_tokens(prompt, pair.tokenizer, settings.max_new_tokens)
        for dataset in datasets
        for prompt in dataset.prompts
    )
    in_flight = max((method.pipeline.nodes for method in methods if method.pipeline), default=0)
    return BenchPrompts(given, datasets, drafts, grammars, longest + in_flight)


def _method(spec: str, settings: BenchSettings) -> Method:
    """Return the method of a spec with the drafter that the target allows: some take its head if it
    has one.
    """

    def exists(model: str) -> bool:
        # The hidden states that a head reads do not leave another engine.
        if settings.server is not None and "://" in settings.server and model.startswith(HEAD):
            return False
        return not _is_missing(model, settings.draft, locate(settings.target, "target"))

    method = parse_method(spec)
    drafting = method.drafting
    resolved = drafting.resolved(exists)
    return method if resolved == drafting else replace(method, drafter=resolved.spec)


def _is_missing(model: str, draft: str, target: ModelSource) -> bool:
    """Return whether the target has no such head, or no draft model of its own where `--draft`
    names none.
    """
    return is_missing_draft(draft, target) if model == DRAFT else is_missing_head(model, target)

"""The resources that the benchmarks of one command share: a pair of models, prepared methods, and
room for them all.

Prompts that a method was trained on are left out of its datasets, or counted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from specbench_kit.core.errors import MethodError, SkitError, require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.repeated_prompts import passes_for
from specbench_kit.datasets.base import RESERVED, LoadedDataset
from specbench_kit.datasets.loading import leave_out
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.loop import DecodingSetup, Loop
from specbench_kit.decoding.processes.stages import ProcessStages
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import hidden_states, local_loop, require_stages
from specbench_kit.deployments.description import corners
from specbench_kit.live.assembly import remote_loop, streamed_loop
from specbench_kit.live.pair import load_draft_models
from specbench_kit.live.states import NUMBER_BYTES
from specbench_kit.methods.base import Method
from specbench_kit.methods.selection import longest_draft
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.models.catalogue import ModelSource, locate
from specbench_kit.models.draft_library import (
    HEAD,
    find_draft,
    is_missing_draft,
    is_missing_head,
    training_prompts,
)
from specbench_kit.models.pair import Pair, load_pair
from specbench_kit.models.placement import Placement
from specbench_kit.models.runner import Runner
from specbench_kit.profilers.subject import random_model
from specbench_kit.runs import provenance
from specbench_kit.runs.document import HiddenStates, RunFields
from specbench_kit.runs.machine.probe import Probe, probe_here
from specbench_kit.studies.bench.choice import chosen, usable
from specbench_kit.studies.bench.grammars import PromptGrammars, require_library
from specbench_kit.studies.bench.judges import AllowedAlong, LocalOutputJudge, ServedOutputJudge
from specbench_kit.studies.bench.measured_environment import MeasuredEnvironment
from specbench_kit.studies.bench.settings import BenchSettings
from specbench_kit.studies.conversations import max_conversation_tokens

if TYPE_CHECKING:
    from specbench_kit.live.servers import ServerConnection


class Workbench:
    """Models, methods and datasets, ready to decode.

    `methods` are those that can run here, by spec; `left_out` says why others of `all` cannot. `lanes` are the methods
    that take turns: `methods`, after the baseline if it is wanted or some method reads it. `datasets` are without the
    prompts that methods were trained on, as far as these are left out. `drafts` are the
    folders of the draft model and of heads, by name. `ends` are the ends of the deployment's range, by name.
    """

    def __init__(
        self,
        settings: BenchSettings,
        datasets: Sequence[LoadedDataset],
        report: ProgressCallback = lambda *_: None,
        probe: Probe | None = None,
    ) -> None:
        for dataset in datasets:
            settings.require_answers_in(dataset)
        require_library(settings.constraint)
        self.settings = settings
        self._given = datasets
        self.probe = probe or probe_here()
        self.server, self.pair = _load(settings)
        self.models = self.pair.describe(provenance.hash_model)
        self.ends = dict(corners(settings.deployment)) if settings.deployment else {}
        self.measured = MeasuredEnvironment(settings, self.pair, self.models, report, self.probe)
        self.methods, self.left_out = usable(settings, self._prepare)
        needs_baseline = settings.baseline or any(
            method.needs_reference for method in self.methods.values()
        )
        self.lanes = ({BASELINE: parse_method(BASELINE)} if needs_baseline else {}) | self.methods
        self.drafts = {
            name: model.source.folder
            for name, model in self.pair.loaded.items()
            if name == DRAFT or name.startswith(HEAD)
        }
        self.datasets = [
            without_seen(dataset, self.methods.values(), settings, self.drafts).repeated(
                settings.fewest_requests
            )
            for dataset in datasets
        ]
        self.grammars = PromptGrammars(settings.constraint, self.datasets, self.pair)
        longest = self._longest(self.datasets)
        self.runners = self._make_runners(self.datasets, longest)
        self.notes = [note for note in (self.pair.context_note(longest),) if note]
        self.output_judge: LocalOutputJudge | ServedOutputJudge = (
            ServedOutputJudge(self.server.target.bitwise, self.server.judge)
            if self.server is not None
            else LocalOutputJudge(self.pair, self.runners["target"], self._allowed())
        )
        self.stages = self._start_stages() if settings.launch == "processes" else None
        self.broken: dict[str, MethodError] = {}
        """The first error of each method whose policy failed; the others went on."""

    def _allowed(self) -> AllowedAlong | None:
        return None if self.settings.constraint is None else self.grammars.allowed

    def seen_notes(self) -> list[str]:
        """Return for each dataset that lost prompts how many and which, and the methods that were
        trained on them.
        """
        notes = []
        for given, dataset in zip(self._given, self.datasets, strict=True):
            left_out = frozenset(dataset.left_out)
            names = [prompt.id for prompt in given.pool if prompt.fingerprint in left_out]
            if not names:
                continue
            trained = [
                spec
                for spec, method in self.methods.items()
                if any(seen & left_out for seen, _ in _training_prompts(method, self.drafts))
            ]
            prompts = "prompt" if len(names) == 1 else "prompts"
            ids = "id" if len(names) == 1 else "ids"
            which = ", ".join(names[:NAMED_PROMPTS]) + (", ..." if names[NAMED_PROMPTS:] else "")
            models = "predictor or draft" if len(trained) == 1 else "predictors or drafts"
            notes.append(
                f"{dataset.name}: drawn without {len(names)} {prompts} ({ids} {which}) that the {models} of "
                f"{', '.join(trained[:NAMED_PROMPTS])}{', ...' if trained[NAMED_PROMPTS:] else ''} "
                f"learned from"
            )
        return notes

    def require_whole(self) -> None:
        """Raise MethodError for all policies that failed."""
        if self.broken:
            went_on = (
                "" if self.broken.keys() >= self.methods.keys() else "; the other methods went on"
            )
            causes = [
                error.__cause__
                for error in self.broken.values()
                if isinstance(error.__cause__, Exception)
            ]
            cause = (
                ExceptionGroup("policies failed", causes)
                if len(causes) > 1
                else next(iter(causes), None)
            )
            raise MethodError("; ".join(map(str, self.broken.values())) + went_on) from cause

    def failures(self) -> dict[str, str]:
        """Return why the policy of a method failed, by spec."""
        return {spec: str(error) for spec, error in self.broken.items()}

    @property
    def sampler(self) -> Sampler:
        """Return the sampler of the target's tokens."""
        return Sampler(self.settings.temperature, self.settings.top_p, self.settings.top_k)

    @property
    def worker_clock(self) -> Callable[[], float] | None:
        """Return a function that reads the processor seconds of the pipeline's processes.

        None if they cannot be observed: another program started them, or a server works for this
        process.
        """
        if self.server is not None:
            return None
        if self.stages is None:
            return lambda: 0.0
        return self.probe.children_s if self.stages.are_children else None

    @property
    def has_control(self) -> bool:
        """Return whether plain decoding takes a second turn, beside itself: where time is measured
        and compared.
        """
        is_measured = self.settings.deployment is None
        return (
            is_measured
            and self.settings.baseline
            and BASELINE in self.lanes
            and len(self.lanes) > 1
        )

    def loop(self, method: Method, started_s: float = 0.0) -> Loop:
        """Return a decoding loop of the method whose clock starts at `started_s`."""
        settings = self.settings
        server = self.server
        if server is not None and method.pipeline is None and not method.uses_drafter:
            return self._streamed(server, "", started_s)
        if server is not None:
            from specbench_kit.live.servers import VerifierSetup

            return remote_loop(
                method,
                self.runners,
                lambda clock: server.verifier(
                    VerifierSetup(
                        self.sampler,
                        settings.seed,
                        clock,
                        method.drafting.layers(self.runners),
                        method.ahead,
                    )
                ),
                self._setup(started_s).within(self._remote_capacity(server)),
            )
        return local_loop(
            method,
            self.runners["target"],
            self.runners.get("draft"),
            others={name: self.runners[name] for name in self.pair.others},
            setup=self._setup(started_s),
            deployment=settings.deployment,
            ends=list(self.ends.values()),
            stages=self.stages,
        )

    def _setup(self, started_s: float) -> DecodingSetup:
        settings = self.settings
        return DecodingSetup(
            sampler=self.sampler,
            seed=settings.seed,
            eos_ids=self.pair.eos_ids,
            batch_size=settings.batch_size,
            started_s=started_s,
            draft_top_n=settings.draft_top_n,
            lossy=settings.lossy,
        )

    def server_only_loop(self, spec: str, started_s: float = 0.0) -> Loop | None:
        """Return the loop over responses that the server decodes by itself with a method; None if
        it does not.
        """
        if self.server is None:
            return None
        draft = self.models.get("draft")
        offered = self.server.offered(parse_method(spec), draft.hash if draft else None)
        return None if offered is None else self._streamed(self.server, offered, started_s)

    def _streamed(self, server: "ServerConnection", method: str, started_s: float) -> Loop:
        stream = server.stream(self.sampler, self.settings.seed, method)
        return streamed_loop(stream, self._setup(started_s).within(self._remote_capacity(server)))

    def _remote_capacity(self, server: "ServerConnection") -> int:
        return min([server.target.context, *(runner.capacity for runner in self.runners.values())])

    def describe_hidden_states(self, method: Method) -> RunFields:
        """Return the part `hidden_states` of `run.json` if verdicts carry hidden states over a
        link.
        """
        if self.server is not None:
            layers = tuple(method.drafting.layers(self.runners))
            sent = HiddenStates(layers, NUMBER_BYTES * self.server.target.hidden_size * len(layers))
            return {"hidden_states": structs.asdict(sent)} if layers else {}
        if self.settings.deployment is None:
            return {}
        states = hidden_states(
            method, self.settings.deployment, self.runners["target"], self.runners
        )
        return (
            {"hidden_states": structs.asdict(states)} if states and states.bytes_per_token else {}
        )

    def close(self) -> None:
        """End the processes of a pipeline and the connection to a server."""
        if self.server is not None:
            self.server.close()
        if self.stages is not None:
            self.stages.close()

    def _prepare(self, spec: str) -> Method:
        method = _method(spec, self.settings)
        for name in method.drafting.models:
            if name.startswith(HEAD):
                self.pair.require_head(name)
            elif name == DRAFT and self.pair.draft is None:
                find_draft(self.settings.draft, self.pair.target.source)
        for dataset in self._given:
            method.drafting.require_new_prompts(
                passes_for(len(dataset.prompts), self.settings.fewest_requests)
            )
        require(
            self.settings.lossy is None or method.pipeline is None,
            f"{method.display_name}: a pipeline has no lossy verification: leave out --lossy",
        )
        require(
            self.settings.constraint is None or method.pipeline is None,
            f"{method.display_name}: a pipeline is not masked by a grammar: leave out --constraint",
        )
        require(
            self.settings.constraint is not None or not method.drafting.needs_grammar,
            f"drafter '{method.drafting.spec}' drafts what a grammar forces: add --constraint",
        )
        require(
            self.settings.deployment is not None or not method.drafting.modelled,
            f"drafter '{method.drafting.display_name}' has no time of its own: add --deployment NAME, which models it",
        )
        if self.server is not None:
            self.server.require_verifiable(method, self.sampler)
        longest = longest_draft(chosen(self.settings))
        method = method.prepare(
            replace(self.measured.environment_of(method.drafting), longest_draft=longest)
        )
        if self.settings.deployment is not None:
            require_stages(method, self.settings.deployment)
        return method

    def _longest(self, datasets: Sequence[LoadedDataset]) -> int:
        """Return an upper bound of the tokens of a conversation, answers and the draft in flight
        included.
        """
        longest = max(
            max_conversation_tokens(prompt, self.pair.tokenizer, self.settings.max_new_tokens)
            for dataset in datasets
            for prompt in dataset.prompts
        )
        in_flight = max(
            (method.pipeline.nodes for method in self.methods.values() if method.pipeline),
            default=0,
        )
        return longest + in_flight

    def _make_runners(self, datasets: Sequence[LoadedDataset], longest: int) -> dict[str, Runner]:
        """Return runners with slots for all methods: a method's batch stays in flight during the
        turns of others.
        """
        largest = max(len(dataset.prompts) for dataset in datasets)
        slots = min(self.settings.batch_size, largest) * (len(self.lanes) + self.has_control)
        return self.pair.all_runners(slots, longest)

    def _start_stages(self) -> ProcessStages:
        """Start the processes that all methods with a pipeline share; this works since the methods
        take turns.
        """
        counts = {method.pipeline.stages for method in self.methods.values() if method.pipeline}
        if not counts and any(method.overlaps for method in self.methods.values()):
            counts = {1}  # the whole target in one process, while this process drafts
        if len(counts) != 1:
            stages = (
                f"these have {' and '.join(map(str, sorted(counts)))}"
                if counts
                else "none of these has any"
            )
            raise SkitError(f"--launch processes needs methods with one number of stages: {stages}")
        capacity = self.runners["target"].capacity
        slots = self.settings.batch_size * (len(self.lanes) + self.has_control)
        sizes = {"slots": slots, "capacity": capacity, "vocabulary": self.pair.vocabulary}
        return ProcessStages(counts.pop(), self.pair.target, sizes)


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


def _load(settings: BenchSettings) -> "tuple[ServerConnection | None, Pair]":
    """Load the target, or connect to its server, and load the models that the methods draft with.

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
    if settings.server is not None:
        from specbench_kit.live.pair import load_heads  # needs the extra `live`
        from specbench_kit.live.server_address import ServerAddress
        from specbench_kit.live.servers import connect

        kind = {"device": settings.device, "dtype": settings.dtype, "executor": settings.executor}
        drafts = load_draft_models(settings.draft, list(needed), target, **kind)
        address = ServerAddress(settings.server, settings, settings.link, settings.server_silence)
        try:
            server = connect(address, drafts)
        except SkitError as error:
            if not settings.resume:
                raise
            raise SkitError(
                f"{error}; skit report shows what is finished, without the server"
            ) from error
        names = [name for name in needed if name.startswith(HEAD)]
        heads = load_heads(
            names, server.target, target, device=settings.device, dtype=settings.dtype
        )
        return server, drafts.with_target(server.target, heads)
    pair = load_pair(
        settings.target,
        settings.draft if DRAFT in needed else None,
        others=[name for name in needed if name != DRAFT],
        device=settings.device,
        dtype=settings.dtype,
        executor=settings.executor,
        placement=Placement(settings.device_map, settings.max_memory),
        # What a deployment models takes no time of this machine.
        random_model=random_model if settings.deployment is None else None,
    )
    return None, pair


def _is_missing(model: str, draft: str, target: ModelSource) -> bool:
    """Return whether the target has no such head, or no draft model of its own where `--draft`
    names none.
    """
    return is_missing_draft(draft, target) if model == DRAFT else is_missing_head(model, target)


DraftFolders = Mapping[str, Path]
"""Folders of the draft model and of heads, by their names among the models."""


NAMED_PROMPTS = 3
"""Prompts and methods that a line names; more are counted."""


def without_seen(
    dataset: LoadedDataset, methods: Iterable[Method], settings: BenchSettings, drafts: DraftFolders
) -> LoadedDataset:
    """Return the dataset without the prompts that any of its methods was trained on.

    Prompts of a reserved split are always left out, all others only with `exclude_seen`. What one
    method has seen is left out for all methods, since they are compared on the same prompts.
    """
    sources = [source for method in methods for source in _training_prompts(method, drafts)]
    left_out = [prompts for prompts, reserved in sources if settings.exclude_seen or reserved]
    return leave_out(dataset, frozenset().union(*left_out), settings.limit, settings.seed)


def count_seen(dataset: LoadedDataset, method: Method, drafts: DraftFolders) -> int:
    """Count the prompts of a dataset that the method was trained on."""
    seen = frozenset[str]().union(*(prompts for prompts, _ in _training_prompts(method, drafts)))
    return sum(prompt.fingerprint in seen for prompt in dataset.prompts)


def _training_prompts(
    method: Method, drafts: DraftFolders
) -> Iterator[tuple[frozenset[str], bool]]:
    """Yield fingerprints of training prompts, and True if they come from a split that is reserved
    for training.
    """
    yield method.trained_on, method.trained_on_reserved
    for name in method.drafting.models:
        if name in drafts:
            prompts, part = training_prompts(drafts[name])
            yield prompts, part == RESERVED

"""A method inside an engine: its draft models are loaded for the engine's target, and it leaves a
run when it ends.

The run is a folder like that of a benchmark.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from multiprocessing.util import Finalize
from pathlib import Path

import torch
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.description import DatasetDescription
from specbench_kit.decoding.boundary import CheckedPolicy
from specbench_kit.decoding.constraint import Constraint, Grammars, GrammarSpec, joint_hash
from specbench_kit.decoding.drafting.base import DRAFT, Capability
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments import loading
from specbench_kit.deployments.assembly import round_drafter, round_policy
from specbench_kit.deployments.placing import environment
from specbench_kit.engines.options import CONSTRAINT, EngineFacts, EngineOptions
from specbench_kit.engines.speculator import ENDLESS, EngineClock, Limits, Overhead, Speculator
from specbench_kit.methods.base import Environment, Latencies, Method
from specbench_kit.methods.spec import describe_method, parse_method
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.models.catalogue import ModelSource, from_pretrained, locate
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.draft_library import HEAD, find_draft
from specbench_kit.models.executors.base import make_executor, name_of
from specbench_kit.models.pair import SLACK, LoadedModel, load_apart, load_draft_tokenizer
from specbench_kit.models.runner import Runner
from specbench_kit.models.vocabulary_map import unshared
from specbench_kit.predictors.library import PairHashes
from specbench_kit.runs import provenance
from specbench_kit.runs.directory import RunDirectory
from specbench_kit.runs.document import RunFields

GIB = 1 << 30
REMEMBERED = 1 << 18
"""Tokens of finished outputs that a look-up drafter keeps: a server runs for long, and a look-up
reads them all.
"""
CLOSING = 10
"""The priority of closing among what a process does at its end."""


@dataclass(frozen=True, slots=True)
class _Models:
    """The draft models by name, the tokens that they must not produce, and the hashes of target and
    draft.
    """

    loaded: Mapping[str, LoadedModel]
    masked: tuple[int, ...]
    hashes: PairHashes

    def runners(self, facts: EngineFacts, kv_bytes: float) -> dict[str, Runner]:
        """Return a runner per model with as many slots as the engine has rows, or as many as the
        memory allows.
        """
        runners = {}
        for name, model in self.loaded.items():
            capacity = min(facts.context + SLACK, model.context)
            vocabulary = min(facts.vocabulary, int(model.text_config.vocab_size))
            executor = make_executor(model.shell, 1, capacity, vocabulary)
            fitting = int(kv_bytes / len(self.loaded) / max(1, executor.kv_bytes(1, capacity)))
            slots = max(1, min(facts.batch_size, fitting))
            runners[name] = Runner(executor.with_slots(slots, capacity))
            runners[name].masked = self.masked
        return runners


class EngineDrafter:
    """A method inside an engine: its speculator, and the run that it leaves when the process
    ends.
    """

    def __init__(self, facts: EngineFacts, options: EngineOptions) -> None:
        method = checked_method(options.method, facts)
        require(
            options.constraint is not None or not method.drafting.needs_grammar,
            f"drafter '{method.drafting.spec}' drafts what a grammar forces: name it in {CONSTRAINT}",
        )
        models = _load_models(method, facts, options)
        runners = models.runners(facts, options.kv_gib * GIB)
        method = method.prepare(_environment(options, facts, models.hashes))
        clock = EngineClock(
            next((runner.device for runner in runners.values()), torch.device("cpu"))
        )
        # Sampled drafts would need the engine to know the draft model's probabilities: it takes the
        # tokens alone.
        drafter = round_drafter(
            method, runners, clock, DecodingSetup(capacity=facts.context), REMEMBERED
        )
        slots = min([facts.batch_size, *(runner.executor.slots for runner in runners.values())])
        limits = Limits(
            facts.longest_draft,
            slots,
            eager=not runners,
            eos_ids=frozenset() if options.ignore_eos else facts.eos_ids,
            max_new_tokens=options.max_new_tokens or ENDLESS,
            constraint=_constraint(facts, options),
        )
        policy = CheckedPolicy(round_policy(method), method.display_name, clock)
        description = _describe(facts, options, method, models, runners)
        self._facts = facts
        self.speculator = Speculator(
            policy, drafter, clock, limits, lambda record: self.recorder.add(record)
        )
        out = options.out if facts.recorded else None
        self.recorder = RunRecorder(out, description, options.records, self.speculator.overhead)
        for line in _remarks(method, facts, slots):
            _say(line)
        # Runs at the end of this process even where the engine has made it by multiprocessing,
        # which skips atexit.
        self._finalizer = Finalize(self, self.close, exitpriority=CLOSING)

    def close(self) -> Path | None:
        """Finish all requests, complete the run and return its folder; say what drafting took."""
        self._finalizer.cancel()
        self.speculator.close()
        folder = self.recorder.close()
        if self._facts.recorded:
            _say(self.speculator.overhead.line(self._facts.engine))
        if folder is not None:
            _say(f"run: {folder}")
        return folder


def checked_method(spec: str, facts: EngineFacts) -> Method:
    """Return the method of a spec; SkitError if it needs what the engine does not give to a
    drafter.
    """
    method = parse_method(spec)
    name = method.display_name
    engine = facts.engine
    require(
        method.pipeline is None,
        f"{name} fills a pipeline, and {engine} decodes in rounds: name another method",
    )
    require(
        method.required_capability < Capability.TREES,
        f"{name} drafts trees, and {engine} verifies chains alone: name a method such as fixed-k, threshold or suffix",
    )
    require(
        not method.overlaps,
        f"{name} drafts while the target verifies, and {engine} calls its drafter only afterwards",
    )
    require(
        not method.needs_reference, f"{name} reads the target's answer, which only a benchmark has"
    )
    if any(model.startswith(HEAD) for model in method.drafting.models):
        raise SkitError(
            f"{name} drafts with a head, which reads the target's hidden states, and {engine} does not hand these to "
            "a drafter of one's own: choose a draft model, suffix or prompt-lookup"
        )
    return method


def _load_models(method: Method, facts: EngineFacts, options: EngineOptions) -> _Models:
    target = locate(facts.target, "target")
    sources = {
        name: find_draft(options.draft, target) if name == DRAFT else locate(name, "draft")
        for name in method.drafting.models
    }
    masked = set[int]()
    if sources:
        tokenizer = from_pretrained(AutoTokenizer, target)
        for source in sources.values():
            own = load_draft_tokenizer(source, target)
            masked |= set(unshared(tokenizer, own, (target.label, source.label)))
    loaded = {
        name: load_apart(source, target, device=options.device, dtype=options.dtype)
        for name, source in sources.items()
    }
    draft = _hash(sources[DRAFT]) if DRAFT in sources else ""
    return _Models(loaded, tuple(sorted(masked)), PairHashes(_hash(target), draft))


def _constraint(facts: EngineFacts, options: EngineOptions) -> Constraint | None:
    """Return the grammar that requests are expected to follow, for the target's tokenizer."""
    grammar = options.grammar
    if grammar is None:
        return None
    tokenizer = from_pretrained(AutoTokenizer, locate(facts.target, "target"))
    eos_ids = facts.eos_ids or {tokenizer.eos_token_id} - {None}
    return Grammars(tokenizer, eos_ids).compile(grammar, CONSTRAINT)


def _hash(source: ModelSource) -> str:
    """Return the hash of a model's files; its name if the engine has them elsewhere than on this
    machine's disk.
    """
    try:
        return provenance.hash_model(source.folder)
    except SkitError:
        return source.label


def _environment(options: EngineOptions, facts: EngineFacts, hashes: PairHashes) -> Environment:
    """Return what a method may plan with: latencies come from a deployment alone, as no profile
    knows the engine.
    """
    deployment = loading.load(options.deployment)
    known = environment(hashes, deployment)

    def latencies() -> Latencies:
        if deployment is None:
            raise SkitError(
                f"{options.method} plans with the latencies of {facts.engine}: describe them in a deployment file, "
                "and name it in SKIT_DEPLOYMENT"
            )
        return known.latencies()._replace(link=None)  # the drafter runs inside the engine

    return replace(known, latencies=latencies, modelled=False, server_decodes=False)


def _describe(
    facts: EngineFacts,
    options: EngineOptions,
    method: Method,
    models: _Models,
    runners: Mapping[str, Runner],
) -> RunFields:
    """Return the content of `run.json`; null stands for what an engine does not tell its
    drafter.
    """
    target = locate(facts.target, "target")
    return {
        **describe_method(options.method, method),
        "dataset": stated(DatasetDescription(name=options.dataset, source="engine")),
        "models": stated(
            {
                "target": ModelDescription(name=target.label, hash=models.hashes.target),
                **{
                    name: model.describe(provenance.hash_model)
                    for name, model in models.loaded.items()
                },
            }
        ),
        "config": {
            "max_new_tokens": options.max_new_tokens,
            "batch_size": facts.batch_size,
            "temperature": None,
            "device": facts.device,
            "dtype": facts.dtype,
            "executors": {name: name_of(runner.executor) for name, runner in runners.items()},
            "longest_draft": facts.longest_draft,
            **_describe_grammar(options.grammar),
            "baseline": False,
        },
        "engine": {"name": facts.engine, "version": facts.version},
        "time_kind": "measured",
        **provenance.collect(sys.argv),
    }


def _describe_grammar(grammar: GrammarSpec | None) -> dict[str, str | bool]:
    if grammar is None:
        return {}
    # The engine verifies every token.
    return {
        "constraint": grammar.spec,
        "constraint_hash": joint_hash([grammar]),
        "skip_forced": False,
    }


def _remarks(method: Method, facts: EngineFacts, slots: int) -> list[str]:
    lines = [f"{method.display_name} drafts in {facts.engine} {facts.version}"]
    if (longest := method.longest_draft or 0) > facts.longest_draft:
        lines.append(
            f"drafts have up to {longest} tokens, and {facts.engine} takes {facts.longest_draft} of them"
        )
    if slots < facts.batch_size:
        lines.append(
            f"there is draft KV for {slots} of {facts.batch_size} requests, and the others are decoded without drafts: "
            "raise SKIT_KV_GIB, or lower the engine's context length"
        )
    return lines


def _say(line: str) -> None:
    print(f"skit: {line}", file=sys.stderr, flush=True)


ID_BYTES = 8


def request_id(prompt_ids: list[int]) -> str:
    """Return the id of a request, which an engine does not name: a hash of its prompt's tokens."""
    return blake2b(repr(prompt_ids).encode(), digest_size=ID_BYTES).hexdigest()


@dataclass
class RunRecorder:
    """Writes the first `most` requests to a run directory in `out`; does nothing without one.

    The folder is made with the first request, so that an engine that is never used leaves nothing.
    """

    out: Path | None
    description: RunFields
    most: int
    overhead: Overhead
    recorded: int = 0
    _run: RunDirectory | None = None
    _repeats: Counter[str] = field(default_factory=Counter)
    _process: int = field(default_factory=os.getpid)

    def add(self, record: RequestRecord) -> None:
        """Add a finished request; a prompt that comes again is another repeat of the same
        request.
        """
        if self.out is None or self.recorded >= self.most:
            return
        record.request_id = request_id(record.prompt_ids)
        record.repeat = self._repeats[record.request_id]
        self._repeats[record.request_id] += 1
        if self._run is None:
            self._run = RunDirectory.create(self.out, self.description)
        self._run.append(record)
        self.recorded += 1
        if (
            self.recorded & (self.recorded - 1) == 0
        ):  # after 1, 2, 4, 8, ... requests, should the engine be killed
            self._run.amend(overhead=self.overhead.document())

    def close(self) -> Path | None:
        """Write the summary, which marks the run as complete, and return its folder."""
        # A process that the engine forked inherits the recorder, and must not conclude the run of
        # its parent.
        if self._run is None or os.getpid() != self._process:
            return None
        run = self._run
        records = self._run.records()
        document = run.document
        run.amend(overhead=self.overhead.document(), requests=len(records))
        summary = {
            "method": document.method,
            "partial": False,
            "requests": {"planned": len(records), "finished": len(records), "failed": 0},
            "overlaps": False,
            **summarise_run(
                RequestGroup(records), None, None, requests_per_unit=document.config.batch_size or 1
            ),
            "pipeline": None,
            "lossless": None,
        }
        run.write_summary(summary)
        self._run = None
        return run.path

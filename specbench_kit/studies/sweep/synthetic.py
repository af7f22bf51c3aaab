"""A synthetic pair decoded by any method in the time of a deployment, without prompts, tokenizer or weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from specbench_kit.core.specs import from_options
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import live_engine
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.agreement import Agreement
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Runner
from specbench_kit.models.synthetic import SyntheticModel
from specbench_kit.predictors.library import PairHashes

NO_ANSWERS: Mapping[str, Sequence[int]] = MappingProxyType({})
VOCABULARY = 4096
IN_FLIGHT_TOKENS = 1200
"""Tokens of a slot beyond prompt and output, for drafts that are not yet verified."""


@dataclass(frozen=True, kw_only=True)
class SyntheticPrompts:
    """Random prompts of one length; all answers have one length too, since a synthetic pair never ends one itself."""

    requests: int = 8
    prompt_tokens: int = 128
    output_tokens: int = 256
    batch_size: int = 1
    temperature: float = 0.0
    seed: int = 0

    def decode(
        self, spec: str, deployment: Deployment, draft: str, answers: Mapping[str, Sequence[int]] = NO_ANSWERS
    ) -> list[RequestRecord]:
        """Return the records of a method by request id; `draft` is the part of the model's name after `synthetic:`.

        `answers` are the target's by request id, for methods that read them.
        """
        method = parse_method(spec).prepare(environment(PairHashes("synthetic", draft), deployment))
        agreement = from_options("synthetic", Agreement, draft)
        models = SyntheticModel("synthetic", None, VOCABULARY), SyntheticModel(draft, agreement, VOCABULARY)
        size = self.prompt_tokens + self.output_tokens + IN_FLIGHT_TOKENS
        target, drafter = (Runner(make_executor(model, self.batch_size, size, VOCABULARY)) for model in models)
        engine = live_engine(
            method,
            target,
            drafter,
            sampler=Sampler(self.temperature),
            seed=self.seed,
            eos_ids=frozenset(),
            batch_size=self.batch_size,
            deployment=deployment,
        )
        generator = torch.Generator().manual_seed(self.seed)
        prompts = torch.randint(VOCABULARY, (self.requests, self.prompt_tokens), generator=generator).tolist()
        for number, prompt in enumerate(prompts):
            name = f"{number:03}"
            engine.submit(Request(name, "synthetic", tuple(prompt), self.output_tokens, tuple(answers.get(name, ()))))
        records: list[RequestRecord] = []
        with torch.inference_mode():
            while not engine.idle:
                records += engine.step()
        return sorted(records, key=lambda record: record.request_id)

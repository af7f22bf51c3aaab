"""Random prompts for a synthetic pair, and what a method records of them under a deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from specbench_kit.core.specs import from_options
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.placing import environment
from specbench_kit.deployments.prompt_options import PromptOptions
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
class SyntheticPrompts(PromptOptions):
    """Random prompts of one length; all answers have one length too, since a synthetic pair never
    ends one itself.
    """

    def decode(
        self,
        spec: str,
        deployment: Deployment,
        draft: str,
        answers: Mapping[str, Sequence[int]] = NO_ANSWERS,
        *,
        server_decodes: bool = True,
    ) -> list[RequestRecord]:
        """Return the records of a method by request id; `draft` is the part of the model's name
        after `synthetic:`.

        `answers` are the target's by request id, for methods that read them. Without `server_decodes` no method may
        leave rounds to the server's own decoding.
        """
        placed = environment(PairHashes("synthetic", draft), deployment)
        allowed = server_decodes and placed.server_decodes
        method = parse_method(spec).prepare(
            replace(placed, temperature=self.temperature, server_decodes=allowed)
        )
        agreement = from_options("synthetic", Agreement, draft)
        models = (
            SyntheticModel("synthetic", None, VOCABULARY),
            SyntheticModel(draft, agreement, VOCABULARY),
        )
        size = self.prompt_tokens + self.output_tokens + IN_FLIGHT_TOKENS
        target, drafter = (
            Runner(make_executor(model, self.batch_size, size, VOCABULARY)) for model in models
        )
        loop = local_loop(
            method,
            target,
            drafter,
            setup=DecodingSetup(
                sampler=Sampler(self.temperature), seed=self.seed, batch_size=self.batch_size
            ),
            deployment=deployment,
        )
        generator = torch.Generator().manual_seed(self.seed)
        prompts = torch.randint(
            VOCABULARY, (self.requests, self.prompt_tokens), generator=generator
        ).tolist()
        for number, prompt in enumerate(prompts):
            name = f"{number:03}"
            loop.submit(
                Request(
                    name,
                    "synthetic",
                    tuple(prompt),
                    self.output_tokens,
                    tuple(answers.get(name, ())),
                )
            )
        records: list[RequestRecord] = []
        with torch.inference_mode():
            while not loop.idle:
                records += loop.step()
        return sorted(records, key=lambda record: record.request_id)

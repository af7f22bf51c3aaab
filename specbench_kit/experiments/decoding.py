"""Experiments on one server's engine: a synthetic pair decoded by any method, in the time of a deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench_kit.assembly import live_engine
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import load
from specbench_kit.errors import SkitError
from specbench_kit.experiments.serving import Rows, Told
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.summary import summarise_run
from specbench_kit.models.executors.agreement import Agreement
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.runner import Runner
from specbench_kit.models.synthetic import SyntheticModel
from specbench_kit.placing import environment
from specbench_kit.predictors.library import PairHashes
from specbench_kit.specs import from_options

BASELINE = "autoregressive"
VOCABULARY = 4096
ROOM = 1200
"""Tokens of a slot beyond prompt and output, for what is in flight."""


@dataclass(frozen=True)
class Series:
    """One method on one deployment with one pair; `draft` is what follows `synthetic:`."""

    method: str
    deployment: str
    draft: str = ""
    replaced: tuple[str, ...] = ()

    def place(self) -> Deployment:
        """The deployment, whose time it takes."""
        found = load(self.deployment, self.replaced)
        if found is None:
            raise SkitError("an experiment needs latency models: choose a deployment other than local")
        return found


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Series by label, and what all of them are asked."""

    series: Mapping[str, Series]
    ratios: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By label, `of` and `over`: figures of series, as in "specedge/throughput"."""
    requests: int = 8
    prompt_tokens: int = 128
    output_tokens: int = 256
    batch_size: int = 1
    temperature: float = 0.0
    seed: int = 0

    def rows(self, told: Told) -> Rows:
        """The metrics of every series, beside plain decoding on the same deployment."""
        plain: dict[tuple[str, tuple[str, ...]], list[RequestRecord]] = {}
        rows: Rows = []
        for done, (label, one) in enumerate(self.series.items()):
            told(done, len(self.series))
            key = one.deployment, one.replaced
            if key not in plain:
                plain[key] = self.decode(Series(BASELINE, *key[:1], replaced=key[1]))
            records = plain[key] if one.method == BASELINE else self.decode(one)
            found = summarise_run(records, plain[key], describe(one.place()), batch_size=self.batch_size)["overall"]
            rows.append({"series": label, **{name: {"mean": value} for name, value in _numbers(found)}})
        told(len(self.series), len(self.series))
        figures = {row["series"]: row for row in rows}
        return rows + [
            {"series": label, "ratio": {"mean": _ratio(figures, **one)}} for label, one in self.ratios.items()
        ]

    def decode(self, one: Series) -> list[RequestRecord]:
        """All requests by one series."""
        deployment = one.place()
        method = parse_method(one.method).prepare(environment(PairHashes(one.draft, one.draft), deployment))
        agreement = from_options("synthetic", Agreement, one.draft)
        models = SyntheticModel("target", None, VOCABULARY), SyntheticModel("draft", agreement, VOCABULARY)
        size = self.prompt_tokens + self.output_tokens + ROOM
        target, draft = (Runner(make_executor(model, self.batch_size, size, VOCABULARY)) for model in models)
        sampler = Sampler(self.temperature)
        none: frozenset[int] = frozenset()
        shared: Any = {"sampler": sampler, "seed": self.seed, "eos_ids": none, "batch_size": self.batch_size}
        engine = live_engine(method, target, draft, deployment=deployment, **shared)
        for request in self._asked():
            engine.submit(request)
        records: list[RequestRecord] = []
        with torch.inference_mode():
            while not engine.idle:
                records += engine.step()
        return sorted(records, key=lambda record: record.request_id)

    def _asked(self) -> list[Request]:
        generator = torch.Generator().manual_seed(self.seed)
        prompts = torch.randint(VOCABULARY, (self.requests, self.prompt_tokens), generator=generator).tolist()
        return [
            Request(f"{number:03}", "synthetic", tuple(prompt), self.output_tokens)
            for number, prompt in enumerate(prompts)
        ]


def bench(options: Mapping[str, Any], told: Told) -> Rows:
    """What `options` say of `Decoded`."""
    series = {
        label: Series(**{**one, "replaced": tuple(one.get("replaced", ()))}) for label, one in options["series"].items()
    }
    return Decoded(**{**options, "series": series}).rows(told)


def _ratio(figures: Mapping[str, Any], of: str, over: str, factor: float = 1.0) -> float:
    above, below = (figures[label][name]["mean"] for label, name in (one.split("/") for one in (of, over)))
    return float(factor * above / below)


def _numbers(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Also those one level down, as in `tbt_s.mean`."""
    flat = [(name, value) for name, value in found.items() if isinstance(value, int | float)]
    deep = {name: value for name, value in found.items() if isinstance(value, Mapping)}
    return flat + [(f"{a}_{b}", v) for a, inner in deep.items() for b, v in inner.items() if isinstance(v, int | float)]

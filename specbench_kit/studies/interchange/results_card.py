"""A result card as model hubs read them: `results.yaml`, the `model-index` of a model card."""

import json
from typing import TYPE_CHECKING

from specbench_kit.studies.interchange.base import Format, formats
from specbench_kit.studies.interchange.numbers import numbers_of

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

METRIC_NAMES = (
    "speedup",
    "speedup_low",
    "speedup_high",
    "acceptance_length",
    "acceptance_rate",
    "throughput",
    "tpot_mean_s",
)


@formats.register("results-yaml")
class ResultsCard(Format):
    """A card of results; every text is quoted as in JSON, which YAML reads alike."""

    summary = "results.yaml, a card of results as model hubs show them (model-index)"
    tool = "model hubs"

    def write(self, run: "RunDirectory") -> str:
        numbers = numbers_of(run)
        document = run.document
        dataset = _quoted(document.dataset.name)
        models = [model.name or "unnamed" for model in document.models.values() if model]
        lines = [
            "model-index:",
            f"- name: {_quoted(' + '.join(models))}",
            "  results:",
            "  - task:",
        ]
        title = _quoted(f"speculative decoding, {document.method}, {document.time_kind} time")
        lines += ["      type: text-generation", f"      name: {title}"]
        lines += ["    dataset:", f"      type: {dataset}", f"      name: {dataset}"]
        lines.append("    metrics:")
        for name in METRIC_NAMES:
            if name in numbers:
                lines += [f"    - type: {name}", f"      value: {numbers[name]:.6g}"]
        lines += ["    source:", "      name: specbench-kit"]
        return "\n".join(lines) + "\n"


def _quoted(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=True)

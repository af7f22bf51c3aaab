"""vLLM's counters of speculative decoding, as its `/metrics` endpoint gives them to Prometheus."""

from bisect import bisect
from typing import TYPE_CHECKING

from specbench_kit.core.errors import require
from specbench_kit.studies.interchange.base import Format, formats

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

PREFIX = "vllm:spec_decode_num_"
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
"""Characters that Prometheus escapes in the values of labels."""
DESCRIPTIONS = {
    "drafts": "Drafts that were sent for verification.",
    "draft_tokens": "Draft tokens that were sent for verification.",
    "accepted_tokens": "Draft tokens that were accepted.",
    "accepted_tokens_per_pos": "Draft tokens that were accepted, by their position in the draft from 0.",
}


@formats.register("vllm")
class VLLM(Format):
    """vLLM's counters `vllm:spec_decode_num_*_total`, summed over all requests that finished.

    A draft is a round that sent at least one token; in a tree, positions are depths.
    """

    summary = "speculative-decoding counters of vLLM, Prometheus text"
    tool = "vLLM"

    def write(self, run: "RunDirectory") -> str:
        rounds = [
            step
            for record in run.records()
            if record.finish_reason != "error"
            for step in record.rounds
        ]
        submitted: list[int | None] = [step.submitted for step in rounds]
        require(
            None not in submitted,
            "the run does not say how many tokens were submitted, which vLLM's counters count",
        )
        drafts = [step for step in rounds if step.submitted]
        # A pipeline's rounds submit many tokens of one depth: their positions end with the accepted
        # tokens.
        longest = max(
            (step.submitted if not step.steps else step.accepted for step in drafts), default=0
        )
        accepted = sorted(step.accepted for step in drafts)
        counters: dict[str, int | list[int]] = {
            "drafts": len(drafts),
            "draft_tokens": sum(step.submitted for step in drafts),
            "accepted_tokens": sum(accepted),
            # Accepted lengths beyond a position are the last of all in their order.
            "accepted_tokens_per_pos": [
                len(drafts) - bisect(accepted, position) for position in range(longest)
            ],
        }
        target = run.document.models.get("target")
        labels = {"engine": "0", "model_name": str(target and target.name)}
        return "".join(_counter(name, labels, values) for name, values in counters.items())


def _counter(name: str, labels: dict[str, str], values: int | list[int]) -> str:
    """Return one counter with its help and type; a list has a sample per position."""
    full_name = f"{PREFIX}{name}_total"
    samples = (
        [(labels, values)]
        if isinstance(values, int)
        else [
            ({**labels, "position": str(position)}, value) for position, value in enumerate(values)
        ]
    )
    lines = [f"# HELP {full_name} {DESCRIPTIONS[name]}", f"# TYPE {full_name} counter"]
    for sample_labels, value in samples:
        escaped = {label: text.translate(ESCAPES) for label, text in sample_labels.items()}
        pairs = ",".join(f'{label}="{text}"' for label, text in escaped.items())
        lines.append(f"{full_name}{{{pairs}}} {float(value)}")
    return "\n".join(lines) + "\n"

"""Mean acceptance lengths by the number of drafted tokens, as InferenceX publishes them."""

import json
from collections import Counter
from typing import TYPE_CHECKING

from specbench_kit.core.errors import require
from specbench_kit.studies.interchange.base import Format, formats

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

SAME_LENGTH = 0.9
"""The least share of rounds with the most frequent length: the context and a full slot shorten some
drafts.
"""


@formats.register("golden")
class GoldenLengths(Format):
    """The mean acceptance length of a run that drafts one number of tokens in every round.

    As InferenceX counts, it is one more than accepted tokens per draft that was sent, also where
    the end of an answer cuts a round. The 95% interval over prompts, for which that form has no
    place, is a comment.
    """

    summary = "mean acceptance length by drafted tokens, as InferenceX publishes them, YAML"
    tool = "InferenceX"

    def write(self, run: "RunDirectory") -> str:
        import numpy as np

        from specbench_kit.metrics.statistics import interval_of_ratio

        records = [record for record in run.records() if record.finish_reason != "error"]
        lengths: Counter[int] = Counter()
        accepted, sent = np.zeros((2, len(records)))
        for index, record in enumerate(records):
            drafts = [step for step in record.rounds if step.submitted]
            lengths.update(step.submitted for step in drafts)
            accepted[index] = sum(step.accepted for step in drafts)
            sent[index] = len(drafts)
        (drafted, often), *_ = lengths.most_common(1) or [(0, 0)]
        require(
            often > 0 and often >= SAME_LENGTH * lengths.total(),
            "an acceptance length is of one number of drafted tokens, and this run's drafts differ in length: export a "
            "run of fixed-k",
        )
        interval = interval_of_ratio(accepted, sent)
        bounds = f"{1 + interval[0]:.2f} to {1 + interval[1]:.2f}" if interval else "unknown"
        document = run.document
        config = document.config
        target, draft = (
            model.name if (model := document.models.get(role)) else "unnamed"
            for role in ("target", "draft")
        )
        lines = [
            f"# Measured with specbench-kit, {document.method}, draft model {json.dumps(draft)}.",
            f"# dataset: {json.dumps(document.dataset.name)} | requests: {len(records)} | "
            f"temperature: {config.temperature or 0:g} | output_len: {config.max_new_tokens}",
            f"# 95% interval over prompts: {bounds}",
            "# Prompts went through the chat template as it is: a model that thinks by itself has thought,",
            "# and its lengths belong under thinking_on.",
            f"{json.dumps(target)}:",
            "  thinking_off:",
            f"    {drafted}: {1 + accepted.sum() / sent.sum():.2f}",
        ]
        return "\n".join(lines) + "\n"

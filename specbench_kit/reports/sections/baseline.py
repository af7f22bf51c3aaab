"""What the baseline of a run is, in words: autoregressive decoding here, or at the server with its
tokens streamed.
"""

from specbench_kit.metrics.setting import STREAMED, plain_decoding
from specbench_kit.runs.document import RunDocument

WORDS = {
    None: "autoregressive decoding",
    STREAMED: "autoregressive decoding at the server, streamed",
}


def words(run: RunDocument) -> str:
    """Return what a sentence compares the run's speed with."""
    return WORDS[plain_decoding(run)]


def facts(run: RunDocument) -> list[tuple[str, str]]:
    """Return the baselines as rows of a table of facts, if there is a link that they have to
    cross.
    """
    kind = plain_decoding(run) if run.config.baseline else None
    explanation = (
        "the target decodes by itself and pays the link once, for the prompt and the first token"
    )
    rows = [("baseline", f"{kind}: {explanation}")] if kind else []
    if counts := run.server_only:
        same = f"{counts.identical} of {counts.compared} outputs identical"
        rows.append(
            (
                "second baseline",
                f"server-only: draft and target both at the server, streamed; {same}",
            )
        )
    return rows

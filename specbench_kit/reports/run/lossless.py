"""The section on how outputs compare with autoregressive decoding."""

from collections.abc import Sequence

from specbench_kit.metrics.losslessness import CLEARLY_ABOVE
from specbench_kit.reports.document import Block, Blocks, Cell, Heading, Paragraph, Table, paragraphs
from specbench_kit.reports.sections import sampling_check, wording
from specbench_kit.reports.stored import RunFile, Summary
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds

TOKENS = ("method_token", "baseline_token")
LOADED_AS_PUBLISHED = ("float32", "bfloat16", "float16")
"""Formats in which transformers computes with a model that was published in them."""
MOST_ROWS = 20
"""Rows of a list; the number of all others follows it."""


def lossless_section(run: RunFile, summary: Summary) -> Blocks:
    """Return the verdict, with all outputs that diverge and what the judgement of them rests on."""
    sampling, lossless = summary.get("sampling") or {}, summary.get("lossless") or {}
    if sampling.get("rule") == "match":
        lossless = sampling
    blocks: list[Block] = [Heading("Losslessness"), Paragraph(f"**{wording.lossless_sentence(run, summary)}**")]
    if lossless.get("prompt_differs"):
        text = (
            "Not compared, because an earlier output of the same dialogue diverged, so that the prompt differs from "
            f"the baseline's: {lossless['prompt_differs']}."
        )
        blocks.append(Paragraph(text))
    if lossless.get("not_compared"):
        text = f"Requests that did not finish here or in the baseline, not compared: {lossless['not_compared']}."
        blocks.append(Paragraph(text))
    if lossless.get("divergences"):
        header = ("request", "verdict", "position", "method token", "baseline token", "margin", "noise", "control")
        rows: list[list[Cell]] = [
            [
                *(divergence[name] for name in ("request_id", "verdict", "position")),
                *("(ended)" if token is None else str(token) for token in map(divergence.get, TOKENS)),
                *(_short(divergence.get(name)) for name in ("margin", "noise", "control")),
            ]
            for divergence in lossless["divergences"]
        ]
        blocks += capped_table(header, rows)
    blocks += paragraphs(*dict.fromkeys(_reason(entry) for entry in lossless.get("divergences") or ()))
    if scoring := lossless.get("scoring"):
        blocks.append(Paragraph(_scoring_sentence(scoring)))
    if lossless.get("noise") is not None and lossless.get("control") is None:
        text = (
            "A divergence is a tie if the engine's log-probabilities of the two tokens differ by less than twice the "
            f"noise, and an error if by more than {2 * CLEARLY_ABOVE:g} times the noise. Noise: how far the distance "
            "between the two likeliest tokens moves, where outputs agree, when a text is computed as a whole, behind "
            f"the engine's prefix cache, and beside others; at most {lossless['noise']:.2g}."
        )
        blocks.append(Paragraph(text))
    elif lossless.get("noise") is not None:
        text = (
            "A divergence is a tie if the scores of the two tokens differ by less than twice the noise, and each shape "
            "of forward gives the token that it gave in the run. Noise, between autoregressive decoding and the "
            f"verifications: at most {lossless['noise']:.2g}. Control, between autoregressive decoding, the same in a "
            f"batch, and one forward over all tokens: {_short(lossless['control'])}."
        )
        blocks.append(Paragraph(text))
    blocks += paragraphs(_published_format_sentence(run))
    if sampling.get("rule") == "residual":
        blocks.append(sampling_check.tests(sampling))
    return blocks


def _published_format_sentence(run: RunFile) -> str:
    """Return how to compare outputs with transformers' own, if the target computed in another format than published."""
    formats = (run.get("number_formats") or {}).get("target") or {}
    computed, published = formats.get("computed"), formats.get("published")
    if published not in LOADED_AS_PUBLISHED or published == computed or (run.get("config") or {}).get("temperature"):
        return ""
    return (
        f"The target computed in {computed} and was published in {published}, in which transformers loads it by "
        "default: the output of its `generate` may then differ from autoregressive decoding here where two tokens are "
        f"nearly equal. To compare tokens, load it there with `dtype=torch.{computed}`, or run here with "
        f"`--dtype {published}`."
    )


def _reason(divergence: Summary) -> str:
    """Return why a difference could not be judged, or nothing."""
    return f"Not judged, because {divergence['reason']}." if divergence.get("reason") else ""


def _scoring_sentence(scoring: Summary) -> str:
    """Return what the evidence of another process cost it."""
    if not scoring["forwards"]:
        return (
            f"The engine was asked for log-probabilities at {count(scoring['outputs'])} divergences and at places "
            f"before them, which took {seconds(scoring['seconds'])}."
        )
    return (
        f"The server scored {count(scoring['outputs'])} outputs again for this, which took it "
        f"{seconds(scoring['seconds'])} and {count(scoring['forwards'])} forwards; rounds of devices went first."
    )


def _short(number: float | None) -> str:
    return ABSENT if number is None else f"{number:.2g}"


def capped_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[Block]:
    """Return a table of the first rows, followed by the number of all others."""
    more = len(rows) - MOST_ROWS
    return [Table(header, rows[:MOST_ROWS]), *paragraphs(f"and {more} more." if more > 0 else "")]

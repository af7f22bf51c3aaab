"""What a report says of the check that sampled outputs follow the target's distribution."""

from collections.abc import Mapping
from typing import Any

from specbench_kit.reports.writing.formatting import ABSENT, count, share, significant

Fields = Mapping[str, Any]

HEADER = ["test", "drawn", "observed", "expected", "p-value", "power"]


CONSISTENT = {True: "consistent", False: "WRONG", None: "undecided"}


def sentence(sampling: Fields) -> str:
    """The verdict."""
    return (_match if sampling["rule"] == "match" else _residual)(sampling)


def short(sampling: Fields) -> str:
    """The verdict in a narrow table cell."""
    if sampling["rule"] == "match" and sampling["compared"]:
        same = f"{sampling['identical']}/{sampling['compared']}"
        return f"{same}\n{sampling['errors']} WRONG" if sampling["errors"] else same
    return CONSISTENT[sampling["consistent"]]


def rows(sampling: Fields) -> list[tuple[str, ...]]:
    """The tests of residual sampling, below `HEADER`."""
    acceptance, softness, tokens = (sampling[name] for name in ("acceptance", "softness", "tokens"))
    statistic = tokens["chi_square"]
    rates = share(acceptance["rate"]), share(acceptance["expected_rate"])
    return [
        ("acceptance, 1 - total variation", count(acceptance["places"]), *rates, *_strength(acceptance)),
        (
            "which drafted tokens were accepted, score of the rule min(1, p/q)^0.8",
            count(softness["places"]),
            significant(softness["score"]),
            "0",
            *_strength(softness),
        ),
        (
            f"committed tokens in {tokens['classes']} classes of target over draft probability, chi-square",
            count(tokens["drawn"]),
            ABSENT if statistic is None else f"{statistic:.1f}",
            ABSENT if statistic is None else str(tokens["degrees"]),
            *_strength(tokens),
        ),
    ]


def _strength(test: Fields) -> tuple[str, str]:
    p_value = test["p_value"]
    return ABSENT if p_value is None else f"{p_value:.2g}", share(test["power"])


def _match(sampling: Fields) -> str:
    if not sampling["compared"]:
        return "Not checked: no sampled request finished both here and in the baseline."
    equal = (
        f"{sampling['identical']} of {sampling['compared']} sampled outputs equal those of plain decoding with the "
        "same seed, token for token"
    )
    ties = f"; differing by rounding alone: {sampling['ties']}" if sampling["ties"] else ""
    if sampling["errors"]:
        return f"Sampling differs from plain decoding: {equal}; errors: {sampling['errors']}{ties}."
    return f"Sampling is lossless: {equal}{ties}."


def _residual(sampling: Fields) -> str:
    tests = f"acceptance and tokens are tested at {sampling['level']:.1%} against both models' distributions"
    powers = (
        f"power against a softened acceptance {share(sampling['softness']['power'])}, against extra tokens from the "
        f"wrong distribution {share(sampling['tokens']['power'])}"
    )
    verdicts = {
        True: "Sampling is consistent with the target's distribution",
        False: "Sampling does not follow the target's distribution",
        None: "Sampling is undecided, since too little was drawn",
    }
    return f"{verdicts[sampling['consistent']]}: {tests}; {powers}."

"""What reports say of the check that sampled outputs follow the target's distribution."""

from specbench_kit.reports.document import Table
from specbench_kit.reports.stored import Summary
from specbench_kit.reports.writing.formatting import ABSENT, count, share, significant

CONSISTENT = {True: "consistent", False: "WRONG", None: "undecided"}


def sentence(sampling: Summary) -> str:
    """Return the verdict."""
    return (_same_seed if sampling["rule"] == "match" else _distribution)(sampling)


def tests(sampling: Summary) -> Table:
    """Return the statistical tests of residual sampling, one per row."""
    acceptance, softness, tokens = (sampling[name] for name in ("acceptance", "softness", "tokens"))
    statistic = tokens["chi_square"]
    rates = share(acceptance["rate"]), share(acceptance["expected_rate"])
    rows = [
        ("acceptance, 1 - total variation", count(acceptance["places"]), *rates, *_strength(acceptance)),
        (
            "which drafted tokens were accepted, score against the softened rule min(1, p/q)^0.8",
            count(softness["places"]),
            significant(softness["score"]),
            "0",
            *_strength(softness),
        ),
        (
            f"committed tokens in {tokens['classes']} classes of the ratio of target to draft probability, chi-square",
            count(tokens["drawn"]),
            ABSENT if statistic is None else f"{statistic:.1f}",
            ABSENT if statistic is None else str(tokens["degrees"]),
            *_strength(tokens),
        ),
    ]
    return Table(("test", "drawn", "observed", "expected", "p-value", "power"), rows)


def _strength(test: Summary) -> tuple[str, str]:
    p_value = test["p_value"]
    return ABSENT if p_value is None else f"{p_value:.2g}", share(test["power"])


def _same_seed(sampling: Summary) -> str:
    if not sampling["compared"]:
        return "Not checked: no sampled request finished both here and in the baseline."
    equal = (
        f"{sampling['identical']} of {sampling['compared']} sampled outputs equal those of autoregressive decoding "
        "with the same seed, token for token"
    )
    ties = f"; differing only by rounding: {sampling['ties']}" if sampling["ties"] else ""
    ties += f"; differing, cannot be judged: {sampling['unjudged']}" if sampling.get("unjudged") else ""
    if sampling["errors"]:
        return f"Sampling differs from autoregressive decoding: {equal}; errors: {sampling['errors']}{ties}."
    if sampling.get("unjudged"):
        return f"It is not known if sampling is lossless: {equal}{ties}."
    return f"Sampling is lossless: {equal}{ties}."


def _distribution(sampling: Summary) -> str:
    verdict = {
        True: "Sampling is consistent with the target's distribution",
        False: "Sampling does not follow the target's distribution",
        None: "Sampling is undecided: too few tokens were drawn",
    }[sampling["consistent"]]
    level = f"acceptance and tokens are tested at {sampling['level']:.1%} against both models' distributions"
    powers = (
        f"power against a softened acceptance {share(sampling['softness']['power'])}, against bonus tokens from the "
        f"wrong distribution {share(sampling['tokens']['power'])}"
    )
    return f"{verdict}: {level}; {powers}."

"""What a reader must know of a load before its times or their simulation are quoted."""

from collections.abc import Sequence

from specbench_kit.profilers.base import LEAST_SERVED_R2
from specbench_kit.reports.sections import machine
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.profiles import score
from specbench_kit.reports.stored import Row, RunFile
from specbench_kit.reports.writing.formatting import count, share

LATE_S = 0.05
"""If drafts leave later than this after their planned time, the machine is too slow for the load that it generates."""
MOST_APART = 1.25
"""Largest ratio, either way, of measured verification times to those of the profile that passes without a word."""


def load_cautions(run: RunFile, rows: Sequence[Row]) -> list[str]:
    """Return what limits the figures of a load."""
    lines = [*machine.warnings(run), *setting_cautions(run)]
    for row in rows:
        if row["late_s"][1] > LATE_S:
            lines.append(f"LATE DRAFTS at {label(row)}: the machine that generates the load was too slow.")
        answers = row.get("answers") or {}
        if answers.get("degraded") or answers.get("refusals"):
            lines.append(
                f"OVERLOADED at {label(row)}: the server answered {share(answers['degraded'] or 0.0)} of the rounds "
                f"without verifying the draft, and asked {count(answers['refusals'])} times to send it again later."
            )
        if answers.get("differing"):
            lines.append(
                f"OTHER ANSWERS at {label(row)}: {share(answers['differing'])} of the rounds, in "
                f"{share(answers['left_trace'])} of the responses, were not answered as in the trace. Devices followed "
                "the server, and most drafts behind such an answer are wrong."
            )
    return [*lines, *profile_cautions(run, rows)]


def profile_cautions(run: RunFile, rows: Sequence[Row]) -> list[str]:
    """Return what limits the comparison with the profile."""
    lines, profile = [], run.get("profile") or {}
    if disturbed := profile.get("disturbed"):
        lines.append(f"DISTURBED PROFILE: {'; '.join(disturbed)}, while '{profile['name']}' was measured.")
    if (r2 := profile.get("r2")) is not None and r2 < LEAST_SERVED_R2:
        lines.append(poor_fit(r2))
    for row in rows:
        slower = row.get("slower")
        if slower and not 1 / MOST_APART <= slower <= MOST_APART:
            lines.append(
                f"OTHER SPEED at {label(row)}: verifications took {slower:.2f} times as long as by the profile: "
                "measure it again, right before the load."
            )
    return lines


def poor_fit(r2: float | None) -> str:
    """Return the caution about a profile of a server that does not fit its test loads."""
    return (
        f"POOR FIT: R² of the server's profile is {score(r2)} on loads that were not fitted, below "
        f"{LEAST_SERVED_R2:g}: let nothing else run, and measure it again."
    )


def label(row: Row) -> str:
    """Return the name of a row's load."""
    rate = row.get("rate")
    return f"{count(row['devices'])} devices" + ("" if rate is None else f" and {rate:g} requests/s")

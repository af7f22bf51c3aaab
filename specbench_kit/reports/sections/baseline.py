"""What the baseline of a run is, in words: plain decoding here, or at the server with its tokens streamed."""

from specbench_kit.metrics.setting import ROUND_TRIPS, STREAMED, plain_decoding
from specbench_kit.reports.stored import RunFile

WORDS = {
    None: "autoregressive decoding",
    STREAMED: "autoregressive decoding at the server, streamed",
    ROUND_TRIPS: "decoding one token per round trip",
}


def words(run: RunFile) -> str:
    """Return what a sentence compares the run's speed with."""
    return WORDS[plain_decoding(run)]


def facts(run: RunFile) -> list[tuple[str, str]]:
    """Return the baselines as rows of a table of facts, if there is a link that they have to cross."""
    explanations = {
        STREAMED: "the target decodes by itself and pays the link once, for the prompt and the first token",
        ROUND_TRIPS: "every token was asked for over the link",
    }
    kind = plain_decoding(run) if (run.get("config") or {}).get("baseline") else None
    rows = [("baseline", f"{kind}: {explanations[kind]}")] if kind else []
    if counts := run.get("server_only"):
        same = f"{counts['identical']} of {counts['compared']} outputs identical"
        rows.append(("second baseline", f"server-only: draft and target both at the server, streamed; {same}"))
    return rows


def cautions(run: RunFile) -> list[str]:
    """Return a line if the speedups are relative to a baseline that no server has."""
    if plain_decoding(run) != ROUND_TRIPS or not (run.get("config") or {}).get("baseline"):
        return []
    return [
        "ONE TOKEN PER ROUND TRIP: an older kit measured the baseline by asking the server for every token. A server "
        "streams its tokens, so these speedups are too high: run it again."
    ]

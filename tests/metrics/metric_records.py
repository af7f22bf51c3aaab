"""Finished requests, made from their rounds."""

from specbench_kit.decoding.records import RequestRecord, RoundRecord

SECONDS = ("prefill_s", "draft_s", "policy_s", "link_s", "queue_s", "verify_s", "commit_s", "end_s")


def round_of(drafted: int, accepted: int = 0, **seconds: float) -> RoundRecord:
    """All that was drafted was sent, and nothing was cut off."""
    times = dict.fromkeys(SECONDS, 0.0) | seconds
    return RoundRecord(drafted, drafted, accepted, accepted + 1, **times)


def record(request_id: str, *rounds: RoundRecord) -> RequestRecord:
    """Return a request whose times follow from its rounds."""
    tokens = sum(step.committed for step in rounds)
    first_s, last_s = rounds[0].end_s, rounds[-1].end_s
    return RequestRecord(
        request_id,
        "test",
        [1, 2],
        list(range(tokens)),
        ttft_s=first_s,
        e2e_s=last_s,
        tpot_s=(last_s - first_s) / (tokens - 1) if tokens > 1 else None,
        rounds=list(rounds),
    )

"""The frame that answers a draft."""

from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server.rounds import VerifiedRound
from specbench_kit.live.wire import Down, Status


def verdict_frame(verified: VerifiedRound, credit: int) -> Down:
    """Return the answer to a draft that was verified."""
    verdict, pending, batch = verified.verdict, verified.pending, verified.batch
    assert verdict is not None
    return Down(
        verdict=messages.Verdict(
            session=pending.session.name,
            round=pending.number,
            status=Status.DEGRADED if pending.degraded else Status.OK,
            path=verdict.path,
            bonus=verdict.bonus,
            queue_us=round(verified.queue_s * 1e6),
            verify_us=round(batch.verify_s * 1e6),
            expected_us=round(batch.expected_s * 1e6),
            batch_size=batch.size,
            batch_number=batch.number,
            waiting=batch.waiting,
            cached=verified.cached,
            states=verified.states,
            computed=verdict.computed,
            credit=credit,
            padded=verdict.padded,
        )
    )

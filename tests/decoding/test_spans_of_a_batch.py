"""Who is busy when: every span of the batch whose shares test_shares_of_a_batch works out, in milliseconds."""

from dataclasses import replace

from test_shares_of_a_batch import HEADER, SCENE, JudgedThreshold, trace

from specbench_kit.decoding.timeline import Timeline
from specbench_kit.deployments.base import Deployment
from specbench_kit.methods.base import Method
from specbench_kit.methods.spec import parse_method
from specbench_kit.traces.replay import replay
from specbench_kit.traces.trace import RequestTrace

A, B, BOTH = ("a",), ("b",), ("a", "b")
TRACES = trace("a", 4, [1, 0, 0], [0, 0, 0]), trace("b", 9, [2, 0, 0, 1, 0], [3, 0, 0, 1, 0])
ON_SERVER = replace(SCENE, placement="server")
Spans = list[tuple[str, str, int, int, tuple[str, ...]]]


def spans(deployment: Deployment, *traces: RequestTrace, method: Method | None = None) -> Spans:
    timeline = Timeline()
    list(
        replay(
            method or JudgedThreshold(max_draft=3),
            HEADER,
            traces,
            deployment=deployment,
            batch_size=2,
            timeline=timeline,
        )
    )
    return [
        (
            span.resource,
            span.label,
            round(1000 * span.start_s),
            round(1000 * span.end_s),
            span.request_ids,
        )
        for span in timeline.spans
    ]


def test_devices_on_the_edge_work_side_by_side() -> None:
    recorded = spans(SCENE, *TRACES)
    assert recorded[:20] == [
        ("edge/a", "prefill", 0, 12, A),
        ("edge/b", "prefill", 0, 17, B),
        ("edge/a", "draft", 12, 22, A),
        ("edge/b", "draft", 17, 27, B),
        ("edge/a", "policy", 22, 27, A),
        ("edge/b", "policy", 27, 32, B),
        ("edge/b", "draft", 32, 42, B),
        ("edge/b", "policy", 42, 47, B),
        ("edge/b", "draft", 47, 57, B),
        ("edge/b", "policy", 57, 62, B),
        ("server", "verify", 232, 502, BOTH),
        ("link/a", "transfer", 27, 127, A),
        ("server queue/a", "queue", 127, 232, A),
        ("link/a", "transfer", 502, 592, A),
        ("link/b", "transfer", 62, 232, B),
        ("link/b", "transfer", 502, 612, B),
        ("edge/a", "stall", 27, 592, A),
        ("edge/b", "stall", 62, 612, B),
        ("requests/a", "round 1 (+2)", 0, 612, A),
        ("requests/b", "round 1 (+3)", 0, 612, B),
    ]
    assert ("requests/a", "round 2 (+1)", 612, 952, A) in recorded
    assert ("requests/b", "round 2 (+2)", 612, 952, B) in recorded


def test_a_shared_drafter_works_for_all() -> None:
    """Prompts one by one, decisions too; prompts alone cross the link, 4 and 9 tokens, and the answers."""
    recorded = spans(ON_SERVER, *TRACES)
    assert recorded[:14] == [
        ("drafter", "prefill", 0, 12, BOTH),
        ("drafter", "prefill", 12, 29, BOTH),
        ("drafter", "draft", 29, 40, BOTH),
        ("drafter", "policy", 40, 50, BOTH),
        ("drafter", "draft", 50, 60, B),
        ("drafter", "policy", 60, 65, B),
        ("drafter", "draft", 65, 75, B),
        ("drafter", "policy", 75, 80, B),
        ("server", "verify", 220, 490, BOTH),
        ("link/a", "transfer", 50, 140, A),
        ("server queue/a", "queue", 140, 220, A),
        ("link/a", "transfer", 490, 580, A),
        ("link/b", "transfer", 80, 220, B),
        ("link/b", "transfer", 490, 600, B),
    ]
    assert recorded[16:] == [
        ("drafter", "draft", 600, 612, BOTH),  # 2 + 1 tokens
        ("drafter", "policy", 612, 622, BOTH),
        ("drafter", "draft", 622, 632, B),
        ("drafter", "policy", 632, 637, B),
        ("server", "verify", 637, 787, BOTH),
        ("server queue/a", "queue", 622, 637, A),
        ("requests/a", "round 2 (+1)", 600, 787, A),
        ("requests/b", "round 2 (+2)", 600, 787, B),
    ]


def test_who_joins_later_has_asked_before() -> None:
    """The batch goes on at 340 ms: by then the prompt of 4 tokens, 90 ms long, has come up; the answer takes 70 ms."""
    plain = parse_method("autoregressive")
    requests = trace("a", 4, [0], [0]), trace("b", 4, [0] * 3, [0] * 3), trace("c", 4, [0], [0])
    recorded = spans(ON_SERVER, *requests, method=plain)
    assert recorded == [
        ("server", "verify", 90, 270, BOTH),
        ("link/a", "transfer", 0, 90, A),
        ("link/a", "transfer", 270, 340, A),
        ("link/b", "transfer", 0, 90, B),
        ("link/b", "transfer", 270, 340, B),
        ("requests/a", "round 1 (+1)", 0, 340, A),
        ("requests/b", "round 1 (+1)", 0, 340, B),
        ("link/c", "transfer", 250, 340, ("c",)),
        ("link/c", "transfer", 490, 560, ("c",)),
        ("server", "verify", 340, 490, ("b", "c")),
        ("requests/b", "round 2 (+1)", 340, 490, B),
        ("requests/c", "round 1 (+1)", 180, 490, ("c",)),
        ("server", "verify", 490, 600, B),
        ("requests/b", "round 3 (+1)", 490, 600, B),
    ]

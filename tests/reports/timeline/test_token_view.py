"""The token view: what of a round is kept, and pages that are right, safe and in need of nothing."""

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_line import TinyPair, read_rows, skit_here, write_rows
from environments import DEPLOYMENT
from report_builders import make_record, make_round, make_run, run_document
from tiny_models import disturbed, make_requests, make_runner, random_prompts, tiny_llama
from transformers import PreTrainedTokenizerBase

from specbench_kit.datasets.loading import load
from specbench_kit.decoding.detail import DetailCollector, RequestDetail, RoundDetail
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.spec import parse_method
from specbench_kit.reports.timeline.token_view import (
    pages,
    render_index,
    render_page,
    token_text,
    visible,
)
from specbench_kit.studies.bench.conclusion import MAX_PAGES
from specbench_kit.studies.bench.run import Benchmark
from specbench_kit.studies.bench.settings import BenchSettings

SPECS = [
    "autoregressive",
    "fixed-k:k=3",
    "specinfer:branching=2-2-1",
    "specedge:depth=2,budget=8,beams=4,branch=3",
]
VOID = ("meta", "wbr", "br")
RUN = run_document(make_run())


@pytest.fixture(scope="module", params=SPECS)
def decoded(request: pytest.FixtureRequest) -> list[tuple[RequestRecord, RequestDetail]]:
    """Requests and their rounds, in batches of two under a deployment, by a draft that is often right."""
    target = tiny_llama(0)
    runners = make_runner(target, 4, 128), make_runner(disturbed(target, 0.002), 4, 128)
    setup = DecodingSetup(eos_ids=frozenset({5}), batch_size=2)
    engine = local_loop(parse_method(request.param), *runners, deployment=DEPLOYMENT, setup=setup)
    details = DetailCollector()
    engine.on_round = details.note
    for request in make_requests(random_prompts([5, 1, 30, 12], 64), 25):
        engine.submit(request)
    records = []
    while not engine.idle:
        records += engine.step()
    return [(record, details.take(record.request_id)) for record in records]


def page_of(
    record: RequestRecord, detail: RequestDetail, show: Callable[[int], str] = str, prompt: str = ""
) -> str:
    (page,) = pages([record], [detail])
    return render_page(RUN, page, show, prompt)


class Reader(HTMLParser):
    """Checks that tags are closed in order, and gathers elements with their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.found: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        (self.found if tag in VOID else self.open).append(
            (tag, dict(attrs), "" if tag in VOID else [])
        )  # type: ignore[arg-type, attr-defined]

    def handle_endtag(self, tag: str) -> None:
        opened, attrs, texts = self.open.pop()
        assert opened == tag
        self.found.append((tag, attrs, "".join(texts)))

    def handle_data(self, data: str) -> None:
        for _, _, texts in self.open:
            texts.append(data)

    def classes(self, *names: str) -> list[str]:
        """The texts of elements that have all of these classes."""
        return [
            text
            for _, attrs, text in self.found
            if set(names) <= set((attrs.get("class") or "").split())
        ]


def test_details_hold_what_the_records_say(
    decoded: list[tuple[RequestRecord, RequestDetail]],
) -> None:
    for record, detail in decoded:
        committed = []
        for step, tree in zip(record.rounds, detail.rounds, strict=True):
            assert len(tree.submitted) == step.submitted
            assert len(tree.path) == step.accepted
            assert len(tree.tokens) - 1 - tree.inherited == step.drafted
            assert tree.proactive == step.proactive
            assert sum(node <= tree.inherited for node in tree.path) == step.reused
            assert all(0 <= probability <= 1 for probability in tree.probabilities)
            committed += [*(tree.tokens[node] for node in tree.path), tree.bonus][: tree.committed]
        assert committed == record.output_ids
        assert RequestDetail.from_json('{"request_id": "x", "rounds": []}').rounds == []


def test_a_page_shows_every_committed_token_by_its_origin(
    decoded: list[tuple[RequestRecord, RequestDetail]],
) -> None:
    for record, detail in decoded:
        page = Reader(page_of(record, detail))
        (output,) = (text for tag, _, text in page.found if tag == "main")
        assert len(page.classes("round")) == len(record.rounds)
        shown = Counter(
            {kind: len(page.classes("token", kind)) for kind in ("accepted", "reused", "bonus")}
        )
        cut = sum(step.accepted + 1 - step.committed for step in record.rounds)
        assert shown.total() == len(record.output_ids)
        assert shown["bonus"] == len(record.rounds) - (cut > 0)
        committed = [(tree, node) for tree in detail.rounds for node in tree.path[: tree.committed]]
        assert shown["reused"] == sum(node <= tree.inherited for tree, node in committed)
        tokens = [
            text for kind in ("accepted", "reused", "bonus") for text in page.classes("token", kind)
        ]
        assert sorted(tokens) == sorted(map(str, record.output_ids))
        assert output


def test_trees_show_what_was_rejected(decoded: list[tuple[RequestRecord, RequestDetail]]) -> None:
    for record, detail in decoded:
        page = Reader(page_of(record, detail))
        sent, accepted = (
            sum(getattr(step, name) for step in record.rounds) for name in ("submitted", "accepted")
        )
        assert len(page.classes("line", "rejected")) == sent - accepted
        assert (
            len(page.classes("line", "accepted")) + len(page.classes("line", "reused")) == accepted
        )
        assert (
            len(page.classes("line", "bonus"))
            == len(page.classes("line", "root"))
            == len(record.rounds)
        )


def test_some_tokens_are_reused(
    decoded: list[tuple[RequestRecord, RequestDetail]], request: pytest.FixtureRequest
) -> None:
    reused = sum(step.reused for record, _ in decoded for step in record.rounds)
    assert (reused > 0) == ("specedge" in request.node.name)


TREE = RoundDetail(
    tokens=[7, 1, 2, 3, 4, 9, 8],
    parents=[-1, 0, 0, 1, 2, 3, 5],
    probabilities=[1.0, 0.5, 0.25, 0.875, 0.1, 0.3, 0.004],
    submitted=[1, 2, 3],
    path=[1],
    bonus=6,
    committed=2,
    inherited=0,
    proactive=2,
)


def the_page(show: Callable[[int], str] = str, prompt: str = "", **fields: Any) -> str:
    step = make_round(6, submitted=3, accepted=1, proactive=2, **fields)
    return page_of(make_record("q", step), RequestDetail("q", [TREE]), show, prompt)


def test_the_tree_of_a_round_is_indented_text() -> None:
    lines = Reader(the_page()).classes("line")
    assert lines == [
        "• 7 ",
        "  ✓ 1 50%",
        "    + 6 ",
        "    ✗ 3 88%",
        "      » 9 30%",
        "        » 8 0%",
        "  ✗ 2 25%",
        "    ○ 4 10%",
    ]


def test_a_large_tree_is_cut_and_counted() -> None:
    many = 40
    tree = RoundDetail([0] * (many + 1), [-1, *[0] * many], [0.5] * (many + 1), [], [], 1, 1, 0, 0)
    record = make_record("q", make_round(many, submitted=0))
    lines = Reader(page_of(record, RequestDetail("q", [tree]))).classes("line")
    assert len([line for line in lines if "○" in line]) == 12
    assert lines[-1] == "and 28 more that were not committed"


def test_the_heading_says_what_became_of_the_round() -> None:
    page = the_page(committed=1, aligned=True)
    heading = next(text for tag, attrs, text in Reader(page).found if attrs.get("id") == "round-1")
    assert heading == (
        "Round 1: 6 drafted, 3 sent, 1 accepted, 1 committed, the end of the output cut off the rest, "
        "aligned: the next round continues below the guessed bonus token"
    )


def test_rounds_can_be_reached_by_keyboard_and_are_described() -> None:
    page = Reader(the_page())
    rounds = [attrs for _, attrs, _ in page.found if attrs.get("class") == "round"]
    ids = [attrs["id"] for _, attrs, _ in page.found if "id" in attrs]
    assert [attributes["tabindex"] for attributes in rounds] == ["0"]
    assert [attributes["aria-describedby"] for attributes in rounds] == ids


NASTY = "<script>alert('1')</script>&\"\u202e\x00"


def test_text_of_models_and_prompts_is_escaped() -> None:
    record = make_record(
        NASTY, make_round(6, submitted=3, accepted=1, proactive=2), category=NASTY, text=NASTY
    )
    (page,) = pages([record], [RequestDetail(NASTY, [TREE])])
    run = run_document(
        make_run(method=NASTY, dataset={"name": NASTY}, models={"target": {"name": NASTY}})
    )
    for text in (render_page(run, page, lambda _: NASTY, NASTY), render_index(run, [page], 1)):
        tags = {tag for tag, _, _ in Reader(text.replace("\x00", "")).found}
        assert "script" not in tags
        assert "<script" not in text
        assert not re.search(r"\son\w+=", text)
    assert "&lt;script&gt;" in render_page(run, page, lambda _: NASTY, "")


def test_pages_need_no_network_and_no_script() -> None:
    page = the_page()
    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert not re.search(r"https?:|url\(|@import|\bsrc=", page)
    assert {attrs["href"] for tag, attrs, _ in Reader(page).found if tag == "a"} == {"index.html"}
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" a b", "<i>·</i>a<i>·</i>b"),
        ("\n", "<i>⏎</i>"),
        ("\t\r", "<i>⇥</i><i>␍</i>"),
        ("", "<i>∅</i>"),
        ("\u202ex", "<i>\\u202e</i>x"),
        ("a<b&", "a&lt;b&amp;"),
        ("日本", "日本"),
    ],
)
def test_white_space_and_controls_are_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_line_breaks_stay_in_the_output() -> None:
    assert visible("a\nb", breaks=True) == "a<i>⏎</i>\nb"


def test_bytes_that_are_no_character_show_as_the_vocabulary_has_them(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    show = token_text(tokenizer)
    first, *_ = tokenizer("é", add_special_tokens=False)["input_ids"]
    assert show(first) == tokenizer.convert_ids_to_tokens(first) == "Ã"
    assert show(tokenizer(" ", add_special_tokens=False)["input_ids"][0]) == " "
    assert show(tokenizer.eos_token_id) == "<|end|>"


def test_every_request_has_a_file_of_its_own() -> None:
    ids = ["d/1", "d-1", "D/1", "../..", "index", "", "x" * 300]
    records = [make_record(name, make_round()) for name in ids]
    details = [RequestDetail(name, [TREE]) for name in ids]
    names = [page.name for page in pages(records, details)]
    assert names[:6] == [
        "d-1.html",
        "d-1-2.html",
        "d-1-3.html",
        "request.html",
        "index-2.html",
        "request-2.html",
    ]
    assert len(names[6]) < 100
    index = Reader(render_index(RUN, pages(records, details), 9))
    assert [attrs["href"] for tag, attrs, _ in index.found if tag == "a"] == names
    assert any("7 of 9 finished requests have a page." in text for _, _, text in index.found)


def test_requests_without_their_rounds_have_no_page() -> None:
    records = [
        make_record("a", make_round()),
        make_record("b", make_round(), make_round()),
        make_record("c"),
    ]
    assert [page.record.request_id for page in pages(records, [RequestDetail("b", [TREE])])] == []


def prompts(folder: Path, count: int = 3) -> Path:
    return write_rows(
        folder / "prompts.jsonl",
        *({"id": f"q{i}", "prompt": f"How many are {i}?"} for i in range(count)),
    )


def test_a_run_has_pages_if_they_are_asked_for(tiny: TinyPair, tmp_path: Path) -> None:
    rows = prompts(tmp_path)
    shared = [
        "--dataset",
        rows,
        "--max-new-tokens",
        8,
        "--no-baseline",
        "--batch-size",
        2,
        *tiny.options,
    ]
    for name, flags in (("with", ["--token-view"]), ("without", [])):
        done = skit_here(
            "bench", "--method", "specedge:depth=2", *shared, "--out", tmp_path / name, *flags
        )
        assert done.returncode == 0, done.stderr
    (run,), (plain,) = ((tmp_path / name).iterdir() for name in ("with", "without"))
    assert {path.name for path in (run / "tokens").iterdir()} == {
        "index.html",
        "q0.html",
        "q1.html",
        "q2.html",
    }
    assert "](tokens/index.html)" in (run / "report.md").read_text()
    assert not {"tokens", "rounds_detail.jsonl"} & {path.name for path in plain.iterdir()}
    assert "tokens/" not in (plain / "report.md").read_text()
    pair = [read_rows(folder / "requests.jsonl") for folder in (run, plain)]
    assert [row.keys() for row in pair[0]] == [row.keys() for row in pair[1]]
    assert [row["output_ids"] for row in pair[0]] == [row["output_ids"] for row in pair[1]]
    for path in (run / "tokens").iterdir():
        Reader(path.read_text())


def test_pages_of_an_interrupted_run_are_kept(tiny: TinyPair, tmp_path: Path) -> None:
    dataset = load(str(prompts(tmp_path)), data_dir=None, allow_sample=False, limit=None, seed=0)
    shared: dict[str, Any] = {
        "device": "cpu",
        "max_new_tokens": 8,
        "baseline": False,
        "token_view": True,
    }
    settings = BenchSettings(
        ("fixed-k",), str(tiny.target), str(tiny.draft), out=tmp_path / "out", **shared
    )

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    first = Benchmark(settings, dataset)
    with pytest.raises(KeyboardInterrupt):
        first.run(interrupt)
    first.write_results()
    (run,) = (tmp_path / "out").iterdir()
    assert "1 of 1 finished requests" in (run / "tokens/index.html").read_text()
    resumed = Benchmark(
        BenchSettings(**{**{f: getattr(settings, f) for f in settings.__slots__}, "resume": True}),
        dataset,
    )
    resumed.run(lambda _: None)
    resumed.write_results()
    assert "3 of 3 finished requests" in (run / "tokens/index.html").read_text()


def test_only_the_first_requests_have_pages(
    tiny: TinyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_PAGES == 100
    monkeypatch.setattr("specbench_kit.studies.bench.conclusion.MAX_PAGES", 1)
    shared = ["--dataset", prompts(tmp_path), "--max-new-tokens", 4, "--no-baseline", *tiny.options]
    done = skit_here(
        "bench", "--method", "fixed-k", *shared, "--out", tmp_path / "out", "--token-view"
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "out").iterdir()
    assert "1 of 3 finished requests have a page." in (run / "tokens/index.html").read_text()
    assert {path.name for path in (run / "tokens").iterdir()} == {"index.html", "q0.html"}

"""Models in the cache of the Hugging Face hub: revisions, missing and broken files, and what the hub refuses."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import torch
from command_line import PATIENCE_S, TinyPair, copy_model, environment
from http_servers import running
from hub_cache import add_model, delete_blob, offline_cache, split_weights
from huggingface_hub import constants, errors
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.models import catalogue, hub_cache
from specbench_kit.models.catalogue import from_pretrained, locate, locate_tokenizer
from specbench_kit.models.draft_library import trained_folder
from specbench_kit.models.hub_cache import commit_of
from specbench_kit.models.pair import load_model, load_pair
from specbench_kit.predictors.library import PairHashes
from specbench_kit.runs.provenance import hash_model
from specbench_kit.studies.ab import run as ab
from specbench_kit.studies.rerun.run import _with_commit
from specbench_kit.traces.replay import identify_pair

NAME = "someone/tiny"
COMMIT = "1" * 40


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with offline_cache(tmp_path / "cache"):
        yield tmp_path / "cache"


def refusal(name: str) -> str:
    """The one line that refuses a target."""
    with pytest.raises(SkitError) as refused:
        load_model(locate(name, "target"), device="cpu")
    return str(refused.value)


@pytest.mark.parametrize("links", [True, False], ids=["links", "copies"])
@pytest.mark.parametrize("parts", [1, 2], ids=["one file", "several files"])
def test_a_model_in_the_cache_is_the_one_in_the_folder(
    links: bool, parts: int, cache: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    folder = tiny.target if parts == 1 else split_weights(tiny.target, tmp_path / "parts")
    snapshot = add_model(cache, NAME, folder, links=links)
    source = locate(NAME, "target")
    cached, local = (
        load_model(source, device="cpu"),
        load_model(locate(str(tiny.target), "target"), device="cpu"),
    )
    tokens = torch.tensor([[0, 5, 9]])
    assert torch.equal(cached.model(tokens).logits, local.model(tokens).logits)
    assert cached.shell.generation_config.eos_token_id == local.shell.generation_config.eos_token_id
    assert from_pretrained(AutoTokenizer, source).encode("ab") == AutoTokenizer.from_pretrained(
        folder
    ).encode("ab")
    assert cached.describe(hash_model).hash == commit_of(snapshot) == snapshot.name
    assert trained_folder(source, "head").name == "someone--tiny"


def test_weights_that_only_transformers_reads(cache: Path, tiny: TinyPair, tmp_path: Path) -> None:
    """Those in torch's own format, and generation settings in config.json, where older models have them."""
    old = copy_model(tiny.target, tmp_path / "old", eos_token_id=[1, 7])
    (old / "generation_config.json").unlink()
    add_model(cache, "someone/old", old)
    assert load_model(
        locate("someone/old", "target"), device="cpu"
    ).shell.generation_config.eos_token_id == [1, 7]
    torch.save(
        dict(load_model(locate(str(tiny.target), "target")).model.state_dict()),
        old / "pytorch_model.bin",
    )
    (old / "model.safetensors").unlink()
    add_model(cache, "someone/pickled", old)
    loaded = load_model(locate("someone/pickled", "target"), device="cpu")
    assert (
        loaded.model.num_parameters()
        == load_model(locate(str(tiny.target), "target")).model.num_parameters()
    )


def test_a_revision_names_a_branch_or_a_commit(cache: Path, tiny: TinyPair) -> None:
    main = add_model(cache, NAME, tiny.target)
    other = add_model(cache, NAME, tiny.draft, revision="v2")
    for name, snapshot in ((NAME, main), (f"{NAME}@v2", other), (f"{NAME}@{other.name}", other)):
        source = locate(name, "target")
        assert (source.folder.resolve(), source.label) == (snapshot.resolve(), name)
    assert identify_pair(NAME, f"{NAME}@v2") == PairHashes(main.name, other.name)
    assert refusal(f"{NAME}@v3").startswith(
        f"cannot load model '{NAME}@v3': it is not in the hub's cache {cache}"
    )
    for name in (f"{NAME}@", "someone@v2/tiny@v2/x"):
        with pytest.raises(SkitError, match="a hub id like owner/name or owner/name@revision"):
            locate(name, "target")


def test_a_run_is_repeated_with_its_commit_after_the_branch_has_moved(
    cache: Path, tiny: TinyPair
) -> None:
    before = add_model(cache, NAME, tiny.target, revision="before")
    now = add_model(cache, NAME, tiny.draft)
    assert _with_commit(NAME, "target", now.name) == NAME
    assert _with_commit(NAME, "target", f"{now.name}-4bit") == NAME
    assert _with_commit(NAME, "target", before.name) == f"{NAME}@{before.name}"
    assert _with_commit("tiny/draft", "draft", "0" * 64) == "tiny/draft"


def test_the_path_of_a_snapshot_names_the_same_model(cache: Path, tiny: TinyPair) -> None:
    snapshot = add_model(cache, NAME, tiny.target)
    source = locate(str(snapshot), "target")
    assert (source.label, hash_model(source.folder)) == (NAME, snapshot.name)
    assert len(hash_model(tiny.target)) == 64


def test_a_model_that_is_not_in_the_cache_is_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(NAME) == (
        f"cannot load model '{NAME}': it is not in the hub's cache {cache}, and HF_HUB_OFFLINE forbids a download: "
        "unset it, set HF_HUB_CACHE or HF_HOME to where the model is, or name a folder"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(catalogue, "hub_reachable", lambda: False)
    assert refusal(NAME).endswith("and the hub does not answer: try again, or name a folder")


@pytest.mark.parametrize("parts", [1, 2], ids=["one file", "several files"])
@pytest.mark.parametrize("broken", [False, True], ids=["never downloaded", "deleted"])
def test_a_download_that_was_cut_short_names_the_missing_file(
    parts: int, broken: bool, cache: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    folder = tiny.target if parts == 1 else split_weights(tiny.target, tmp_path / "parts")
    missing = max(file.name for file in folder.glob("*.safetensors"))
    snapshot = add_model(cache, NAME, folder, without="" if broken else missing)
    if broken:
        delete_blob(snapshot, missing)
    assert refusal(NAME).startswith(
        f"cannot load model '{NAME}': {snapshot} lacks {missing}, and HF_HUB_OFFLINE"
    )


def test_a_damaged_index_of_weights_is_one_line(
    cache: Path, tiny: TinyPair, tmp_path: Path
) -> None:
    folder = split_weights(tiny.target, tmp_path / "parts")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [')
    add_model(cache, NAME, folder)
    assert "model.safetensors.index.json" in refusal(NAME)
    assert "model.safetensors.index.json" in refusal(str(folder))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            errors.GatedRepoError,
            "its licence has to be accepted: do so on its page of the hub, and log in with",
        ),
        (
            errors.RepositoryNotFoundError,
            "the hub has no such model, or it is private: check its name",
        ),
        (
            errors.RevisionNotFoundError,
            "the hub has no revision 'v2' of it: name a branch, a tag or a commit",
        ),
        (
            errors.RemoteEntryNotFoundError,
            "the hub has no config.json of it: a GGUF file has to be downloaded",
        ),
        (OSError, "a first line"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    error: type[Exception], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Path:
        if error is OSError:
            raise OSError("a first line\nand more")
        raise error("x", response=httpx.Response(403, request=httpx.Request("HEAD", "http://hub")))  # type: ignore[call-arg]

    monkeypatch.setattr(hub_cache, "_snapshot", refuse)
    assert refusal(f"{NAME}@v2").startswith(f"cannot load model '{NAME}@v2': {reason}")


DOWNLOAD = """
import sys
from specbench_kit.core.errors import SkitError
from specbench_kit.models.hub_cache import HubModel
for revision in ("main", "v9"):
    model = HubModel("someone/tiny", revision)
    for step in (model.snapshot, model.with_tokenizer, model.with_weights):
        try:
            print(*sorted(file.name for file in step().iterdir()))
        except SkitError as error:
            print(error)
            break
"""
"""Prints the files that are here after each step of a download."""


@contextmanager
def hub_of(folder: Path) -> Iterator[str]:
    """Yield the address of a server that gives the files of one model as the hub does, at its branch main."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            content = self.content()
            self.send_response(404 if content is None else 200)
            if content is None and "/v9/" in self.path:
                self.send_header("X-Error-Code", "RevisionNotFound")
            elif content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{sha256(content or b"").hexdigest()}"')
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if body:
                self.wfile.write(content or b"")

        def content(self) -> bytes | None:
            if self.path.startswith(f"/api/models/{NAME}/revision/{COMMIT}"):
                names = [{"rfilename": file.name} for file in folder.iterdir()]
                return json.dumps({"id": NAME, "sha": COMMIT, "siblings": names}).encode()
            if self.path.startswith(f"/api/models/{NAME}/tree/{COMMIT}"):
                sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
                listed = [
                    {"type": "file", "path": name, "size": size, "oid": "0" * 40}
                    for name, size in sizes.items()
                ]
                return json.dumps(listed).encode()
            repository, _, rest = self.path.removeprefix("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            file = folder / name
            known = repository == NAME and revision in ("main", COMMIT) and file.is_file()
            return file.read_bytes() if known else None

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.slow
def test_the_hub_is_asked_for_what_is_needed_and_no_more(tiny: TinyPair, tmp_path: Path) -> None:
    """The hub's own client downloads from a server here."""
    hub = split_weights(tiny.target, tmp_path / "hub")
    for name in ("consolidated.safetensors", "model.onnx", "pytorch_model.bin"):
        (hub / name).write_bytes(b"not asked for")
    with hub_of(hub) as address:
        downloading = environment(
            HF_HUB_OFFLINE="0", HF_ENDPOINT=address, HF_HUB_CACHE=str(tmp_path / "cache"), HF_HUB_DISABLE_XET="1",
            no_proxy="127.0.0.1",
        )  # fmt: skip
        script = [sys.executable, "-c", DOWNLOAD]
        done = subprocess.run(
            script, capture_output=True, text=True, env=downloading, check=True, timeout=PATIENCE_S
        )
    config, tokenizer, whole, refused = done.stdout.splitlines()
    parts = {file.name for file in hub.glob("model-*.safetensors")}
    texts = {file.name for file in hub.iterdir() if file.suffix in (".json", ".jinja")}
    assert config == "config.json"
    assert set(tokenizer.split()) == texts
    assert set(whole.split()) == texts | parts
    assert refused.startswith(
        "cannot load model 'someone/tiny@v9': the hub has no revision 'v9' of it"
    )


def test_a_tokenizer_of_the_hub(cache: Path, tiny: TinyPair, tmp_path: Path) -> None:
    add_model(cache, NAME, tiny.target, without="model.safetensors")
    count = ab._token_counter(NAME)
    assert count is not None
    assert count("abc") == 3
    alone = copy_model(tiny.target, tmp_path / "alone")
    for name in ("config.json", "model.safetensors"):
        (alone / name).unlink()
    assert from_pretrained(AutoTokenizer, locate_tokenizer(str(alone))).encode("abc")
    assert locate_tokenizer("bundled") == locate("bundled", "target")
    with pytest.raises(
        SkitError,
        match="--tokenizer no/such cannot be loaded: cannot load model 'no/such': it is not",
    ):
        ab._token_counter("no/such")


def test_drafts_that_belong_to_a_target_read_its_embedding_in_the_cache(
    cache: Path, tiny: TinyPair
) -> None:
    add_model(cache, NAME, tiny.target)
    pair = load_pair(NAME, "early-exit:1", device="cpu")
    assert (
        pair.needed_draft.describe(hash_model).hash
        == f"{commit_of(locate(NAME, 'target').folder)}-exit1"
    )

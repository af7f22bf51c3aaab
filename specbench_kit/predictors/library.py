"""The predictors on this machine, bundled or the user's own, by their headers. Imports nothing
heavy.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.core.typed_json import convert
from specbench_kit.core.user_data import user_folder
from specbench_kit.predictors.thresholds import TunedThreshold

SCHEMA = 1
BUNDLED = Path(__file__).parent / "bundled"
HEADER = "predictor.json"
WEIGHTS = "weights.safetensors"
TRAIN_AGAIN = "train it again with 'skit train-predictor'"


Facts = Mapping[str, object]
"""What a header says of a training or of its quality, for people; `TrainingOrigin` and
`CalibrationMetrics` are the parts that the kit reads.
"""
HeaderDocument = Mapping[str, object]
"""A header as its file holds it, which the hash in it seals as a whole."""
NO_DRAFT_MODEL = "none"
"""Stands for the hash of a draft model if there is none; nothing was ever trained for it."""


@dataclass(frozen=True, slots=True)
class PairHashes:
    """The two models that a predictor was trained for, by content hash (models of the hub: by
    commit).
    """

    target: str
    draft: str

    @property
    def short(self) -> str:
        """Return the part of a folder's name that stands for the pair."""
        return f"{self.target[:12]}-{self.draft[:12]}"


class ScalerHeader(Struct, frozen=True, forbid_unknown_fields=True):
    """The standardisation of the features, in their order."""

    mean: list[float]
    scale: list[float]


class PredictorHeader(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `predictor.json`; see `artefact.Predictor` for the meaning of its fields.

    `weights_sha256` is the hash of the weights' file, `sha256` that of all other fields of the header.
    """

    schema: int
    family: str
    features: tuple[str, ...]
    scaler: ScalerHeader | None
    threshold: float
    max_draft: Annotated[int, Meta(ge=1)]
    operating_rule: str
    points: tuple[TunedThreshold, ...] = ()
    decision_s: float = 0.0
    decision_origin: str = ""
    pair: PairHashes
    recommended: bool
    created: str
    training: Facts
    metrics: Facts
    weights_sha256: str
    sha256: str


class _TrainingDataset(Struct):
    part: str | None = None


class _TrainingConfig(Struct):
    deployment: str | None = None


class TrainingOrigin(Struct):
    """The fields of a predictor's `training` that this kit reads; all others are for people.

    `disturbed` says what disturbed the machine whose times the thresholds were chosen by; such a predictor is used only
    where its folder is named, unless its use was `forced`.
    """

    prompts: list[str] | None = None
    dataset: _TrainingDataset | None = None
    config: _TrainingConfig | None = None
    disturbed: tuple[str, ...] = ()
    forced: bool = False

    @property
    def must_be_named(self) -> bool:
        """True if the predictor is used where its folder is named only."""
        return bool(self.disturbed) and not self.forced


class _Calibration(Struct):
    expected_calibration_error: float | None = None


class CalibrationMetrics(Struct):
    """The fields of a predictor's `metrics` that methods read."""

    classification: _Calibration | None = None


class _ModelName(Struct):
    name: str


class _TrainingPair(Struct):
    models: dict[str, _ModelName]


class _Classification(Struct):
    auc: float


class _ListedMetrics(Struct):
    classification: _Classification


def data_folder() -> Path:
    """Return the folder of the user's own predictors."""
    return user_folder("predictors")


def default_folder(pair: PairHashes, family: str) -> Path:
    """Return the folder in which a predictor of a pair is saved by default."""
    return data_folder() / f"{family}-{pair.short}"


def find(pair: PairHashes, name: str | None = None, *, disturbed: bool = False) -> list[Path]:
    """Return the folders of a pair's predictors, the best choice first; `name` is a family or the
    name of a folder.

    A predictor of a disturbed machine is only found by the name of its folder, unless its use was
    forced or `disturbed` is true. The user's own predictors come before the bundled ones, newer
    before older, and of one training run the recommended one first. A folder that is named after
    the pair but cannot be read comes last, so that `load` reports the reason.
    """
    ranked = [
        (rank, folder)
        for folder in _folders()
        if (rank := _rank(folder, pair, name, disturbed)) is not None
    ]
    return [folder for _, folder in sorted(ranked, key=lambda item: item[0], reverse=True)]


def read_document(folder: Path) -> HeaderDocument:
    """Return the JSON object of a header; raise ValueError if it is missing, damaged or of another
    schema.
    """
    try:
        document = json.loads(read_file(folder / HEADER))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"{HEADER} is not JSON: it was cut short or changed; {TRAIN_AGAIN}"
        ) from error
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("schema"), int)
        or "weights_sha256" not in document
    ):
        raise ValueError(
            f"{HEADER} is not a predictor of this kit: name a folder that 'skit train-predictor' wrote"
        )
    if document["schema"] != SCHEMA:
        raise ValueError(
            f"it has schema {document['schema']}, this kit reads {SCHEMA}: update specbench-kit"
        )
    return document


def parse_header(document: HeaderDocument) -> PredictorHeader:
    """Return the typed header of a JSON object; raise ValueError with the name of the first wrong
    field.
    """
    try:
        return convert(PredictorHeader, document)
    except ValueError as error:
        raise ValueError(f"{HEADER}: {error}; {TRAIN_AGAIN}") from error


def read_file(path: Path) -> bytes:
    """Return a file's content; raise ValueError if it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ValueError(f"{path.name} is missing; {TRAIN_AGAIN}") from error
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({error.strerror})") from error


class ListedPredictor(Struct):
    """A predictor that `skit list predictors` shows."""

    name: str
    summary: str
    family: str
    pair: PairHashes
    recommended: bool
    created: str
    features: list[str]
    threshold: float
    max_draft: int
    operating_rule: str
    auc: float
    models: dict[str, str]
    disturbed: list[str]
    bundled: bool
    folder: str


class UnusablePredictor(Struct):
    """A folder of a predictor that cannot be used, with the reason."""

    name: str
    bundled: bool
    folder: str
    summary: str


def entries() -> list[ListedPredictor | UnusablePredictor]:
    """Return the entries of `skit list predictors`; an unusable one has only its name, its folder
    and the reason.
    """
    return [_entry(folder) for folder in _folders()]


def _folders() -> Iterator[Path]:
    for root in (data_folder(), BUNDLED):
        yield from (header.parent for header in sorted(root.glob(f"*/{HEADER}")))


def _rank(
    folder: Path, pair: PairHashes, name: str | None, disturbed: bool
) -> tuple[bool, bool, str, bool] | None:
    """Return the sort key of a folder, or None if it is for another pair, has another name or must
    be named.
    """
    is_own = folder.parent != BUNDLED
    try:
        header = parse_header(read_document(folder))
        origin = _origin(header)
    except ValueError:
        is_default_name = folder.name == f"{name}-{pair.short}" or (
            name is None and folder.name.endswith(f"-{pair.short}")
        )
        return (False, is_own, "", False) if folder.name == name or is_default_name else None
    if header.pair != pair or name not in (None, header.family, folder.name):
        return None
    if origin.must_be_named and not disturbed and name != folder.name:
        return None
    return True, is_own, header.created, header.recommended


def _origin(header: PredictorHeader) -> TrainingOrigin:
    """Return what the kit reads of a predictor's training; raise ValueError if it has another
    form.
    """
    return convert(TrainingOrigin, header.training)


def _entry(folder: Path) -> ListedPredictor | UnusablePredictor:
    is_bundled = folder.parent == BUNDLED
    try:
        header = parse_header(read_document(folder))
        auc = convert(_ListedMetrics, header.metrics).classification.auc
        names = {
            role: model.name
            for role, model in convert(_TrainingPair, header.training).models.items()
        }
        models = f"{names['target']} with {names['draft']}"
        disturbed = _origin(header).disturbed
    except (KeyError, ValueError) as error:
        return UnusablePredictor(folder.name, is_bundled, str(folder), f"cannot be used: {error}")
    summary = [
        *([f"DISTURBED MACHINE: {'; '.join(disturbed)}"] if disturbed else []),
        f"{header.family} for {models}",
        "bundled" if is_bundled else f"trained {header.created[:10]}",
        f"AUC {auc:.3f}",
        f"drafts of up to {header.max_draft}",
        *(["recommended"] if header.recommended else []),
    ]
    return ListedPredictor(
        name=folder.name,
        summary=", ".join(summary),
        family=header.family,
        pair=header.pair,
        recommended=header.recommended,
        created=header.created,
        features=list(header.features),
        threshold=header.threshold,
        max_draft=header.max_draft,
        operating_rule=header.operating_rule,
        auc=auc,
        models=names,
        disturbed=list(disturbed),
        bundled=is_bundled,
        folder=str(folder),
    )

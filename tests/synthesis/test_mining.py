"""Similar-pair mining against brute force and against planted clusters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_idc.methods.namc.mining import Features, Search, SimilarityRange, SimilarPairs, spectral_clusters
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.stages import MapStage
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.errors import ConfigError

pytest.importorskip("faiss")
pytest.importorskip("sklearn")

pytest.importorskip("cv2")  # here, since importing it changes the environment


class Vectors:
    """Records with given features."""

    def __init__(self, clip: np.ndarray, dino: np.ndarray) -> None:
        self.clip, self.dino = clip, dino

    @property
    def fingerprint(self) -> str:
        return "vectors"

    def __len__(self) -> int:
        return len(self.clip)

    def record(self, index: int) -> Record:
        record = Record(f"v{index}")
        record.put("image", torch.full((3, 2, 2), index % 256, dtype=torch.uint8))
        record.arrays = {"clip": self.clip[index].astype(np.float16), "dino": self.dino[index].astype(np.float16)}
        return record


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def as_it_is(record: Record) -> Record:
    return record


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    rng = np.random.default_rng(3)
    centres = np.repeat(rng.normal(size=(12, 24)), 9, axis=0)
    return Vectors(
        unit(centres + 0.42 * rng.normal(size=centres.shape)), unit(centres + 0.42 * rng.normal(size=centres.shape))
    )


@pytest.mark.slow
def test_mined_pairs_equal_the_equations(vectors: Vectors, tmp_path: Path) -> None:
    run(MapStage(as_it_is), vectors, tmp_path / "features")
    stage = SimilarPairs(str(tmp_path / "features"), neighbours=20)
    store = run(stage, str(tmp_path / "features"), tmp_path / "pairs", batch_size=7)
    found: dict[str, set[str]] = {}
    for record in store:
        if record.dropped is None:
            found.setdefault(record.facts["first"], set()).add(record.facts["second"])
            assert torch.equal(record.image("before"), vectors.record(int(record.facts["first"][1:])).image("image"))
            assert torch.equal(record.image("after"), vectors.record(int(record.facts["second"][1:])).image("image"))
    # by brute force in float64
    expected: dict[str, set[str]] = {}
    clip, dino = (unit(v.astype(np.float16).astype(np.float64)) for v in (vectors.clip, vectors.dino))
    for i in range(len(vectors)):
        sets = []
        for values in (clip, dino):
            similarity = values @ values[i]
            order = [j for j in np.argsort(-similarity) if j != i][:20]
            inside = [j for j in order if 0.78 <= similarity[j] <= 0.95]
            best = max((similarity[j] for j in inside), default=0.0)
            sets.append(set(inside) if best >= 0.80 else set())
        candidates = sorted(sets[0] & sets[1])
        if not candidates:
            continue
        joint = np.concatenate([0.4 * clip, 0.6 * dino], 1)
        labels = spectral_clusters(joint[candidates].astype(np.float32), 3, 0.1, 0)
        joint = unit(joint)
        for label in set(labels.tolist()):
            members = [j for j, own in zip(candidates, labels, strict=True) if own == label]
            expected.setdefault(f"v{i}", set()).add(f"v{max(members, key=lambda j: joint[j] @ joint[i])}")
    assert len(expected) > 40
    same = sum(found.get(name) == targets for name, targets in expected.items())
    assert set(found) == set(expected) and same >= 0.97 * len(
        expected
    )  # k-means may cut a symmetric cluster either way


def test_similarity_windows() -> None:
    window = SimilarityRange()
    ids = np.arange(5)
    assert window.select(ids, np.array([0.99, 0.95, 0.85, 0.78, 0.5])).tolist() == [1, 2, 3]
    assert window.select(ids, np.array([0.99, 0.799, 0.79, 0.78, 0.5])).tolist() == [], "the best one is below .80"
    assert window.select(ids[:0], np.array([])).tolist() == []


@pytest.mark.slow
def test_planted_clusters_are_recovered() -> None:
    rng = np.random.default_rng(0)
    planted = np.repeat([0, 1, 2], 8)
    features = 6.0 * np.eye(3)[planted] + 0.05 * rng.normal(size=(24, 3))
    labels = spectral_clusters(features, 3, 0.1, 0)
    assert len({(a, b) for a, b in zip(planted, labels, strict=True)}) == 3
    assert spectral_clusters(features[:2], 3, 0.1, 0).tolist() == [0, 1], "few candidates are clusters of their own"


def test_approximate_index_recall() -> None:
    rng = np.random.default_rng(5)
    values = unit(np.repeat(rng.normal(size=(200, 32)), 15, axis=0) + 0.3 * rng.normal(size=(3000, 32)))
    blocks = [values[:1000], values[1000:]]
    exact, fast = (Search(blocks, 3000, 32, kind, values.astype(np.float32)) for kind in (True, False))
    queries = exact.vectors(np.arange(0, 3000, 50))
    assert np.allclose(queries, values[::50], atol=1e-3)
    assert np.array_equal(fast.vectors(np.arange(0, 3000, 50)), queries)
    near, far = exact.top(queries, 11)[0], fast.top(queries, 11)[0]
    assert np.mean([len(set(a) & set(b)) / 11 for a, b in zip(near, far, strict=True)]) > 0.9


def test_photographs_are_paired_within_their_class(tmp_path: Path) -> None:
    from lightning_idc.synthesis.sources import SamplePhotos

    photos = SamplePhotos(copies=2)
    store = run(Features(), photos, tmp_path / "features")
    window = SimilarityRange(0.9, 1.01, 0.9, 0.9)  # matches copies, in half precision
    pairs = run(SimilarPairs(str(store.folder), clip=window, dino=window), str(store.folder), tmp_path / "pairs")
    made = [r.facts for r in pairs if r.dropped is None]
    assert {(f["first"].split("#")[0], f["second"].split("#")[0]) for f in made} == {(n, n) for n in photos.names}


@pytest.mark.slow
def test_dropped_records_are_not_paired(vectors: Vectors, tmp_path: Path) -> None:
    def unreadable_or_double(record: Record) -> Record:
        number = int(record.id[1:])
        if number % 9 == 0:
            record.arrays = {}  # as for an image that could not be read
        if number % 9 in (0, 1, 2):
            record.history.append({"stage": "other"})
            record.drop("not wanted")
        return record

    run(MapStage(unreadable_or_double), vectors, tmp_path / "features")
    everything = SimilarityRange(-1.0, 1.1, -1.0, -1.0)
    stage = SimilarPairs(str(tmp_path / "features"), neighbours=107, clip=everything, dino=everything)
    pairs = run(stage, str(tmp_path / "features"), tmp_path / "pairs")
    assert pairs.counts()[1] == {"not wanted": 36}
    made = [record.facts for record in pairs if record.dropped is None]
    assert len(made) == 3 * 72
    assert not {int(facts["second"][1:]) % 9 for facts in made} & {0, 1, 2}


def test_unknown_index_is_an_error() -> None:
    with pytest.raises(ConfigError, match="index is 'exakt'; expected one of auto, exact, approximate"):
        SimilarPairs("features", index="exakt")  # type: ignore[arg-type]


def test_a_store_without_features_says_so(tmp_path: Path) -> None:
    from helpers.toy_stages import Numbers

    run(MapStage(as_it_is), Numbers(4), tmp_path / "plain")
    with pytest.raises(ConfigError, match="Features"):
        Search.from_store(RecordStore(tmp_path / "plain"), "clip", True)

"""Similar-pair mining (NAMC, Appendix D.1): for each image a few others that share its context without being the same.

Two stages: `Features` encodes every image twice, `SimilarPairs` searches, filters, clusters and pairs. The second one
reads its features from the store that the first one left, in blocks, so that its memory is the index, not the images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_idc.synthesis.models.base import ImageEncoder
from lightning_idc.synthesis.models.embedded import PixelEncoder
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore
from lightning_idc.utils.errors import ConfigError, check_choice

VIEWS = ("clip", "dino")
EXACT_UP_TO = 200_000
"""Images up to which all are compared; beyond, an inverted file of half-precision vectors finds the candidates."""
_BLOCK, _SAMPLE = 16_384, 65_536


class Features(PipelineStage):
    """Encodes each image with two encoders; writes the arrays ``clip`` and ``dino`` in half precision.

    NAMC Eq. 3

    Args:
        clip: the paper's is CLIP ViT-L/14.
        dino: the paper's is DINOv2-L.
        seed: see `PipelineStage`.
    """

    reads = ("image",)

    def __init__(self, clip: ImageEncoder | None = None, dino: ImageEncoder | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.clip = clip or PixelEncoder(side=12)
        self.dino = dino or PixelEncoder(side=24)

    def settings(self) -> dict[str, Any]:
        return {"clip": self.clip.settings(), "dino": self.dino.settings()}

    def process(self, records: list[Record]) -> list[Record]:
        images = [record.image("image") for record in records]
        for name, encoder in zip(VIEWS, (self.clip, self.dino), strict=True):
            for record, vector in zip(records, encoder.encode(images), strict=True):
                record.arrays[name] = vector.numpy().astype(np.float16)
        return records


@dataclass(frozen=True, slots=True)
class Window:
    """Which images are neither the same nor too far (Appendix D.1.4).

    Args:
        low: least similarity of a candidate.
        high: greatest similarity of a candidate.
        set_max: a set of candidates counts when its greatest similarity is at least this.
        set_min: and its least similarity is at least this.
    """

    low: float = 0.78
    high: float = 0.95
    set_max: float = 0.80
    set_min: float = 0.78

    def chosen(self, ids: np.ndarray, similarity: np.ndarray) -> np.ndarray:
        """Candidates of one image that pass, in their order; none where the set as a whole does not.

        The paper's wording, "filtering out any sets where the maximum similarity is below tau_max^theta or minimum
        similarity is below tau_min^theta", is taken of the set after the first pair of thresholds.
        """
        inside = (similarity >= self.low) & (similarity <= self.high)
        ids, similarity = ids[inside], similarity[inside]
        if len(ids) == 0 or similarity.max() < self.set_max or similarity.min() < self.set_min:
            return ids[:0]
        return ids


class SimilarPairs(PipelineStage):
    """Pairs each image with the most similar one of each cluster of its candidates.

    NAMC Eq. 12

    Writes one record per pair with the pictures ``before`` and ``after`` and the facts ``first`` and ``second``. As in
    Eq. 12, two images that find each other make two pairs, one each way round. An image without a candidate is dropped.

    Args:
        features: folder of the store that `Features` left; also the source of this stage.
        neighbours: k of the search; the paper does not say.
        clusters: K.
        gamma: of the RBF kernel of the clustering.
        alpha: weight of the CLIP feature in Eq. 8.
        beta: weight of the DINOv2 feature.
        clip: thresholds of the CLIP similarity.
        dino: thresholds of the DINOv2 similarity.
        index: ``exact`` compares all, ``approximate`` searches an inverted file; ``auto`` decides by their number.
        seed: see `PipelineStage`.
    """

    def __init__(
        self,
        features: str,
        neighbours: int = 50,
        clusters: int = 3,
        gamma: float = 0.1,
        alpha: float = 0.4,
        beta: float = 0.6,
        clip: Window | None = None,
        dino: Window | None = None,
        index: Literal["auto", "exact", "approximate"] = "auto",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if neighbours < 1 or clusters < 1:
            raise ConfigError(f"neighbours is {neighbours} and clusters {clusters}; expected at least 1")
        check_choice("index", index, ("auto", "exact", "approximate"))
        self.features = Path(features)
        self.neighbours, self.clusters, self.gamma, self.alpha, self.beta = neighbours, clusters, gamma, alpha, beta
        self.windows = {"clip": clip or Window(), "dino": dino or Window()}
        self.index = index
        self._store: RecordStore | None = None
        self._search: dict[str, Search] = {}

    def settings(self) -> dict[str, Any]:
        windows = {name: [w.low, w.high, w.set_max, w.set_min] for name, w in self.windows.items()}
        return {
            "neighbours": self.neighbours,
            "clusters": self.clusters,
            "gamma": self.gamma,
            "alpha": self.alpha,
            "beta": self.beta,
            "windows": windows,
            "index": self.index,
        }

    def prepare(self, source: RecordSource) -> None:
        self._store = RecordStore(self.features)
        if not isinstance(source, RecordStore) or source.folder.resolve() != self.features.resolve():
            raise ConfigError(f"SimilarPairs reads the records of {self.features}; name the same folder as the source")
        exact = self.index == "exact" or (self.index == "auto" and len(self._store) <= EXACT_UP_TO)
        self._search = {name: Search.over(self._store, name, exact) for name in VIEWS}

    def process(self, records: list[Record]) -> list[Record | list[Record]]:
        """Make a pair of each image with each of its targets.

        NAMC Eq. 11
        """
        rows = np.array([record.origin for record in records])
        # one more than asked for, since every image finds itself
        found = {name: search.top(search.vectors(rows), self.neighbours + 1) for name, search in self._search.items()}
        made: list[Record | list[Record]] = []
        for number, (record, row) in enumerate(zip(records, rows.tolist(), strict=True)):
            candidates = self.candidates(
                row, {name: (ids[number], near[number]) for name, (ids, near) in found.items()}
            )
            if len(candidates) == 0:
                record.drop("no similar image", None, "in both windows")
                made.append(record)
            else:
                made.append([self._pair(record, *target) for target in self.targets(row, candidates)])
        return made

    def candidates(self, row: int, found: dict[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Rows of records that were not dropped and pass both windows, sorted.

        Args:
            row: of the image.
            found: per feature the nearest rows and their similarities, the image itself among them.
        """
        sets = []
        for name, (ids, similarity) in found.items():
            others = (ids != row) & (ids >= 0)
            sets.append(self.windows[name].chosen(ids[others], similarity[others]))
        assert self._store is not None
        dropped, near = self._store.column("dropped"), np.intersect1d(sets[0], sets[1])
        # windows that reach down to 0 let in what is like none
        return np.array([other for other in near.tolist() if dropped[other] is None], np.int64)

    def targets(self, row: int, candidates: np.ndarray) -> list[tuple[int, float]]:
        """The most similar candidate of each cluster with its similarity.

        NAMC Eq. 7
        NAMC Eq. 8
        NAMC Eq. 10
        """
        rows = np.array([row, *candidates])
        weighted = zip(VIEWS, (self.alpha, self.beta), strict=True)
        joint = np.concatenate([weight * self._search[name].vectors(rows) for name, weight in weighted], 1)
        labels = spectral_clusters(joint[1:], self.clusters, self.gamma, self.seed)
        unit = joint / np.linalg.norm(joint, axis=1, keepdims=True)
        similarity = unit[1:] @ unit[0]
        best = [np.flatnonzero(labels == label)[similarity[labels == label].argmax()] for label in np.unique(labels)]
        return [(int(candidates[i]), float(similarity[i])) for i in sorted(best, key=lambda i: -similarity[i])]

    def _pair(self, record: Record, other: int, similarity: float) -> Record:
        assert self._store is not None
        partner = self._store.record(other)
        pair = record.child(f"{partner.id}")
        pair.facts = {"first": record.id, "second": partner.id}
        pair.history[-1]["scores"] = {"similarity": similarity}
        pair.images = {"before": record.encoded("image"), "after": partner.encoded("image")}
        return pair


class Search:
    """Nearest vectors by cosine, and the vectors themselves; in half precision: 2 KB per image and 1,000 dimensions.

    Args:
        vectors: blocks of unit vectors, float ``(n, D)``, read once.
        count: of all of them.
        width: D.
        exact: compare with all; otherwise with the nearest lists of an inverted file.
        sample: vectors that are like the others, to place the lists by.
    """

    def __init__(self, vectors: Iterable[np.ndarray], count: int, width: int, exact: bool, sample: np.ndarray) -> None:
        import faiss

        kind, metric = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        self._coarse: Any = None  # faiss does not keep it alive
        if exact:
            self.index: Any = faiss.IndexScalarQuantizer(width, kind, metric)
        else:
            lists = min(2 ** round(math.log2(4 * math.sqrt(count))), len(sample))
            self._coarse = faiss.IndexFlatIP(width)
            self.index = faiss.IndexIVFScalarQuantizer(self._coarse, width, lists, kind, metric)
            self.index.by_residual = False  # the vectors come back as they are
            self.index.nprobe = max(1, lists // 16)
        self.index.train(sample)
        for block in vectors:
            self.index.add(np.ascontiguousarray(block, np.float32))
        if not exact:
            self.index.make_direct_map()

    @classmethod
    def over(cls, store: RecordStore, name: str, exact: bool) -> Search:
        """Search among the arrays of a store; a record without one, or that was dropped, is like none.

        Raises:
            ConfigError: no record has such an array.
        """
        count = len(store)
        first = next((found for index in range(count) if (found := store.array(index, name)) is not None), None)
        if first is None:
            raise ConfigError(f"{store.folder} holds no features {name!r}; make them with the stage Features")

        dropped = store.column("dropped")

        def row(index: int) -> np.ndarray:
            # among the nearest a dropped copy would take the place of another image
            found = store.array(index, name) if dropped[index] is None else None
            return np.zeros_like(first) if found is None else found

        blocks = (
            np.stack([row(index) for index in range(start, min(start + _BLOCK, count))])
            for start in range(0, count, _BLOCK)
        )
        sampled = np.stack([row(index) for index in range(0, count, max(1, count // _SAMPLE))])
        return cls(blocks, count, len(first), exact, sampled.astype(np.float32))

    def top(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and cosines of the nearest, ``(Q, count)`` each, the nearest first; row -1 where there are no more.

        NAMC Eq. 4
        NAMC Eq. 5
        NAMC Eq. 6
        """
        similarity, ids = self.index.search(np.ascontiguousarray(queries, np.float32), min(count, self.index.ntotal))
        return ids, similarity

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of some rows, float ``(n, D)``."""
        return self.index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))


def spectral_clusters(features: np.ndarray, clusters: int, gamma: float, seed: int) -> np.ndarray:
    """Labels of spectral clustering with the kernel exp(-gamma |x - y|^2).

    NAMC Eq. 9

    Args:
        features: ``(N, D)``; N may be small: then each is a cluster of its own.
        clusters: K.
        gamma: of the kernel.
        seed: of the k-means at its end.
    """
    if len(features) <= clusters:
        return np.arange(len(features))
    from sklearn.cluster import SpectralClustering

    model = SpectralClustering(clusters, affinity="rbf", gamma=gamma, random_state=seed, assign_labels="kmeans")
    return np.asarray(model.fit_predict(features.astype(np.float64)))

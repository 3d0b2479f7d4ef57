"""Similar-pair mining (NAMC, Appendix D.1): pairs each image with a few others of a similar context.

1. :class:`Features` encodes each image with CLIP and DINOv2 (Eq. 3).
2. :meth:`Search.top` searches the nearest neighbours under each encoder (Eq. 4 to 6).
3. :meth:`SimilarPairs.candidates` keeps neighbours within the range of both similarities (D.1.4).
4. :meth:`SimilarPairs.targets` clusters them (Eq. 9) and selects the most similar one of each cluster (Eq. 10).
5. :meth:`SimilarPairs.process` makes a pair with each of them (Eq. 11 and 12).

Step 2 reads the features from the store of step 1 in blocks, so that only the index is in memory.
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
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError

ENCODERS = ("clip", "dino")
EXACT_UP_TO = 200_000
"""Maximum number of images for an exact search; for more, an inverted file of half-precision vectors is used."""
_BLOCK_SIZE, _TRAINING_VECTORS = 16_384, 65_536


class Features(PipelineStage):
    """Encodes each image with two encoders; writes the arrays ``clip`` and ``dino`` in half precision.

    NAMC Eq. 3

    Args:
        clip: image encoder; CLIP ViT-L/14 in the paper.
        dino: image encoder; DINOv2-L in the paper.
        seed: as in `PipelineStage`.
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
        for name, encoder in zip(ENCODERS, (self.clip, self.dino), strict=True):
            for record, vector in zip(records, encoder.encode(images), strict=True):
                record.arrays[name] = vector.numpy().astype(np.float16)
        return records


@dataclass(frozen=True, slots=True)
class SimilarityRange:
    """Range of similarities of candidates, which are neither near-duplicates nor unrelated (Appendix D.1.4).

    Args:
        low: minimum similarity of a candidate.
        high: maximum similarity of a candidate.
        set_max: threshold of the maximum similarity of a set of candidates.
        set_min: threshold of the minimum similarity of a set of candidates.
    """

    low: float = 0.78
    high: float = 0.95
    set_max: float = 0.80
    set_min: float = 0.78

    def select(self, ids: np.ndarray, similarity: np.ndarray) -> np.ndarray:
        """Ids of candidates within the range; empty if the set of them violates ``set_max`` or ``set_min``.

        The paper filters out "any sets where the maximum similarity is below tau_max^theta or minimum similarity is
        below tau_min^theta"; this is applied to the candidates within ``low`` and ``high``.

        Args:
            ids: ids of the neighbours of one image, ``(n,)``.
            similarity: their similarities, ``(n,)``.
        """
        inside = (similarity >= self.low) & (similarity <= self.high)
        ids, similarity = ids[inside], similarity[inside]
        if len(ids) == 0 or similarity.max() < self.set_max or similarity.min() < self.set_min:
            return ids[:0]
        return ids


class SimilarPairs(PipelineStage):
    """Pairs each image with the most similar one of each cluster of its candidates.

    NAMC Eq. 12

    Writes one record per pair with the images ``before`` and ``after`` and the facts ``first`` and ``second``. As in
    Eq. 12, two images that select each other form two pairs, one in each order. Images without a candidate are dropped.

    Args:
        features: folder of the store of `Features`, which must also be the source of this stage.
        neighbours: k, number of nearest neighbours of the search; not stated in the paper.
        clusters: K, number of clusters.
        gamma: parameter of the RBF kernel of the clustering.
        alpha: weight of the CLIP features in Eq. 8.
        beta: weight of the DINOv2 features in Eq. 8.
        clip: range of the CLIP similarity.
        dino: range of the DINOv2 similarity.
        index: ``exact`` compares all images, ``approximate`` searches an inverted file; ``auto`` is exact up to
            :data:`EXACT_UP_TO` images.
        seed: as in `PipelineStage`.
    """

    def __init__(
        self,
        features: str,
        neighbours: PositiveInt = 50,
        clusters: PositiveInt = 3,
        gamma: float = 0.1,
        alpha: float = 0.4,
        beta: float = 0.6,
        clip: SimilarityRange | None = None,
        dino: SimilarityRange | None = None,
        index: Literal["auto", "exact", "approximate"] = "auto",
        seed: int = 0,
    ) -> None:
        check_arguments(SimilarPairs.__init__, locals())
        super().__init__(seed)
        self.features = Path(features)
        self.neighbours, self.clusters, self.gamma, self.alpha, self.beta = neighbours, clusters, gamma, alpha, beta
        self.ranges = {"clip": clip or SimilarityRange(), "dino": dino or SimilarityRange()}
        self.index = index
        self._store: RecordStore | None = None
        self._search: dict[str, Search] = {}

    def settings(self) -> dict[str, Any]:
        ranges = {name: [r.low, r.high, r.set_max, r.set_min] for name, r in self.ranges.items()}
        return {
            "neighbours": self.neighbours,
            "clusters": self.clusters,
            "gamma": self.gamma,
            "alpha": self.alpha,
            "beta": self.beta,
            "windows": ranges,
            "index": self.index,
        }

    def prepare(self, source: RecordSource) -> None:
        self._store = RecordStore(self.features)
        if not isinstance(source, RecordStore) or source.folder.resolve() != self.features.resolve():
            raise ConfigError(f"SimilarPairs reads the records of {self.features}; expected the same folder as source")
        exact = self.index == "exact" or (self.index == "auto" and len(self._store) <= EXACT_UP_TO)
        self._search = {name: Search.from_store(self._store, name, exact) for name in ENCODERS}

    def process(self, records: list[Record]) -> list[Record | list[Record]]:
        """Pair each image with each of its targets.

        NAMC Eq. 11
        """
        rows = np.array([record.origin for record in records])
        # one more than k, as the nearest neighbour of an image is the image itself
        neighbours = {
            name: search.top(search.vectors(rows), self.neighbours + 1) for name, search in self._search.items()
        }
        results: list[Record | list[Record]] = []
        for i, (record, row) in enumerate(zip(records, rows.tolist(), strict=True)):
            candidates = self.candidates(
                row, {name: (ids[i], cosines[i]) for name, (ids, cosines) in neighbours.items()}
            )
            if len(candidates) == 0:
                record.drop("no similar image", None, "one within both ranges")
                results.append(record)
            else:
                results.append([self._pair(record, *target) for target in self.targets(row, candidates)])
        return results

    def candidates(self, row: int, neighbours: dict[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """Sorted rows of the neighbours that are within both ranges and were not dropped.

        Args:
            row: row of the image.
            neighbours: by encoder, rows of the nearest images and their similarities, including the image itself.
        """
        sets = []
        for name, (ids, similarity) in neighbours.items():
            is_other = (ids != row) & (ids >= 0)
            sets.append(self.ranges[name].select(ids[is_other], similarity[is_other]))
        assert self._store is not None
        dropped, in_both = self._store.column("dropped"), np.intersect1d(sets[0], sets[1])
        # a range that includes 0 would include dropped records, whose vectors are 0
        return np.array([candidate for candidate in in_both.tolist() if dropped[candidate] is None], np.int64)

    def targets(self, row: int, candidates: np.ndarray) -> list[tuple[int, float]]:
        """Row and similarity of the most similar candidate of each cluster, the most similar first.

        NAMC Eq. 7
        NAMC Eq. 8
        NAMC Eq. 10
        """
        rows = np.array([row, *candidates])
        weights = zip(ENCODERS, (self.alpha, self.beta), strict=True)
        joint = np.concatenate([weight * self._search[name].vectors(rows) for name, weight in weights], 1)
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
    """Nearest-neighbour search by cosine. Vectors are in half precision: 2 KB per image for 1,000 dimensions.

    Args:
        vectors: blocks of unit vectors, float ``(n, D)``, which are read once.
        count: number of vectors.
        width: D.
        exact: whether all vectors are compared; if not, those of the nearest lists of an inverted file.
        sample: training vectors of the inverted file, float ``(m, D)``.
    """

    def __init__(self, vectors: Iterable[np.ndarray], count: int, width: int, exact: bool, sample: np.ndarray) -> None:
        import faiss

        quantizer_type, metric = faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        self._coarse_quantizer: Any = None  # stored here, as faiss holds no reference to it
        if exact:
            self.index: Any = faiss.IndexScalarQuantizer(width, quantizer_type, metric)
        else:
            num_lists = min(2 ** round(math.log2(4 * math.sqrt(count))), len(sample))
            self._coarse_quantizer = faiss.IndexFlatIP(width)
            # faiss takes no keyword arguments
            self.index = faiss.IndexIVFScalarQuantizer(self._coarse_quantizer, width, num_lists, quantizer_type, metric)
            self.index.by_residual = False  # `reconstruct_batch` then returns the stored vectors
            self.index.nprobe = max(1, num_lists // 16)
        self.index.train(sample)
        for block in vectors:
            self.index.add(np.ascontiguousarray(block, np.float32))
        if not exact:
            self.index.make_direct_map()

    @classmethod
    def from_store(cls, store: RecordStore, name: str, exact: bool) -> Search:
        """Search over the arrays of a store. Dropped records, and records without the array, have a zero vector.

        Args:
            store: store of records.
            name: name of the array.
            exact: as in the class.

        Raises:
            ConfigError: no record has the array.
        """
        count = len(store)
        first = next((array for index in range(count) if (array := store.array(index, name)) is not None), None)
        if first is None:
            raise ConfigError(f"{store.folder} has no features {name!r}; run the stage Features first")

        dropped = store.column("dropped")

        def vector(index: int) -> np.ndarray:
            # a dropped duplicate would displace another image among the nearest neighbours
            array = store.array(index, name) if dropped[index] is None else None
            return np.zeros_like(first) if array is None else array

        blocks = (
            np.stack([vector(index) for index in range(start, min(start + _BLOCK_SIZE, count))])
            for start in range(0, count, _BLOCK_SIZE)
        )
        sampled = np.stack([vector(index) for index in range(0, count, max(1, count // _TRAINING_VECTORS))])
        return cls(blocks, count=count, width=len(first), exact=exact, sample=sampled.astype(np.float32))

    def top(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and cosines of the nearest vectors, ``(Q, count)`` each, nearest first; row -1 if there are fewer.

        NAMC Eq. 4
        NAMC Eq. 5
        NAMC Eq. 6
        """
        similarity, ids = self.index.search(np.ascontiguousarray(queries, np.float32), min(count, self.index.ntotal))
        return ids, similarity

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Vectors of rows, float ``(n, D)``."""
        return self.index.reconstruct_batch(np.ascontiguousarray(rows, np.int64))


def spectral_clusters(features: np.ndarray, clusters: int, gamma: float, seed: int) -> np.ndarray:
    """Labels of spectral clustering with the kernel exp(-gamma |x - y|^2).

    NAMC Eq. 9

    Args:
        features: ``(N, D)``; if N is at most K, each row is a cluster.
        clusters: K, number of clusters.
        gamma: parameter of the kernel.
        seed: seed of the k-means step.
    """
    if len(features) <= clusters:
        return np.arange(len(features))
    from sklearn.cluster import SpectralClustering

    model = SpectralClustering(clusters, affinity="rbf", gamma=gamma, random_state=seed, assign_labels="kmeans")
    return np.asarray(model.fit_predict(features.astype(np.float64)))

"""Image-Editing-Request: photographs, their edits, and the requests for the edits."""

from __future__ import annotations

from lightning_idc.data.annotations import required_text, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.data.tables.tables import read_objects

PAIRS = {"train": 3_061, "val": 383, "test": 495}
SENTENCES = {"train": 3_061, "val": 1_149, "test": 1_485}
"""One sentence per training pair, three per validation or test pair."""


class ImageEditingRequest(Benchmark):
    """Image-Editing-Request: 3,939 photographs with their edits and human-written requests.

    The id of a pair is its ``uid``; a photograph can be in several pairs of a split. An edit of another size than its
    photograph, such as a crop, is scaled to the photograph's size if ``image_size`` is None.

    Features: photographs and their edits; one request per training pair, three per validation or test pair.
    Format: JPEG and JSON.
    Splits: 3,061 train, 383 val and 495 test pairs.
    Licence: not stated.
    Cite: Tan, Dernoncourt, Lin, Bui, Bansal: Expressing Visual Relationships via Language (ACL 2019),
        https://github.com/airsplay/VisualRelationships

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = ImageEditingRequest.split("data/image_editing_request", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "image_editing_request"
    title = "Image-Editing-Request"
    protocol = "image-editing-request"
    scale_after = True
    tree = """
images/*.jpg                         before and after, named by the annotations
train.json, valid.json, test.json    [{"uid", "img0", "img1", "sents": [...]}, ...]"""
    steps = (
        "the annotations are dataset/adobe/*.json of the repository airsplay/VisualRelationships; the images come from "
        "the link in its README, by hand."
    )
    remotes = (
        Remote(
            "train.json",
            "https://github.com/airsplay/VisualRelationships",
            695_320,
            "a3d4a84ece2128355714cc0894d78b7cc408c70c64488e58ac24193e26132a2f",
            page=True,
        ),
        Remote(
            "valid.json",
            "https://raw.githubusercontent.com/airsplay/VisualRelationships/"
            "c5f70f0daba6102811c0aafe52916210abc94126/dataset/adobe/valid.json",
            132_264,
            "e76516f850015a7d6d27209a476141e8e34881dd207f2f71acc8ea471e3af7aa",
        ),
        Remote(
            "test.json",
            "https://raw.githubusercontent.com/airsplay/VisualRelationships/"
            "c5f70f0daba6102811c0aafe52916210abc94126/dataset/adobe/test.json",
            173_213,
            "703c322534d94990e8af42d061094c3f9fb69a1e0030d6a6389c3865aafeaf93",
        ),
        Remote("images", "https://github.com/airsplay/VisualRelationships", page=True),
    )

    def annotations(self, split: Split) -> list[list[str]]:
        return [["valid.json", "val.json"] if split == "val" else [f"{split}.json"]]

    def expected(self, split: Split) -> Counts:
        return Counts(PAIRS[split], SENTENCES[split], 0, 0)

    def read(self, split: Split) -> list[PairRecord]:
        records = []
        for row in read_objects(self.file(*self.annotations(split)[0])):
            before, after = (
                self.files.file(f"images/{required_text(row, side)}", row.where) for side in ("img0", "img1")
            )
            texts = sentences(row.values.get("sents"), row.where)
            records.append(PairRecord(required_text(row, "uid"), row.where, before, after, texts))
        return records

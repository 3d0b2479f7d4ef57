"""What the study of ProCap adds to the library: named targets, copying, and a small CLIP to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cv2")  # here, since importing it changes the environment

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.usefixtures("benchmarks")
def test_what_is_copied_is_what_is_seen() -> None:
    from _procap import copies

    # before, between, after; one cell each: 5 became 7
    true = torch.tensor([[[5], [6], [7]]])

    def copied(*masked: bool) -> list[list[int]]:
        return [order[0, 1].tolist() for order in copies(true, torch.tensor([[[one] for one in masked]]))]

    assert copied(False, True, False) == [[5], [7]]
    assert copied(True, True, False) == [[7], [7]]
    assert copied(False, True, True) == [[5], [5]]
    assert copied(True, True, True) == [[0], [0]]  # nothing is seen, and nothing said
    ends = true[:, [0, 2]]
    assert copies(ends, torch.tensor([[[True], [False]]]))[0].flatten().tolist() == [7, 0]


@pytest.mark.usefixtures("benchmarks")
def test_kinds_of_things_are_predicted_attribute_by_attribute() -> None:
    from _procap import KindHead

    torch.manual_seed(0)
    head = KindHead(8)
    hidden = torch.randn(5, 8)
    logs = head(hidden)
    assert logs.shape == (5, 1 + 2 * 8 * 2 * 3)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(5))
    empty, size, color, material, shape = head.attributes(hidden)
    torch.testing.assert_close(logs[:, 0].exp(), empty[:, 0].sigmoid())
    kind = ((1 * 8 + 5) * 2 + 0) * 3 + 2  # the second size, the sixth color, the first material, the third shape
    parts = (size[:, 1:2], color[:, 5:6], material[:, :1], shape[:, 2:])
    sums = (
        part.logsumexp(-1) - whole.logsumexp(-1)
        for part, whole in zip(parts, (size, color, material, shape), strict=True)
    )
    torch.testing.assert_close(logs[:, 1 + kind], (1 - empty[:, 0].sigmoid()).log() + sum(sums))


@pytest.mark.usefixtures("benchmarks")
def test_texts_of_the_small_clip_name_the_things_of_the_image_beside_them(tmp_path: Path) -> None:
    from _clip import CONTEXT, WORDS, Scenes

    from lightning_idc.data.synthetic import SyntheticPairs

    settings: dict[str, Any] = dict(train_pairs=8, val_pairs=1, test_pairs=1, render_size=32, progress=False)
    source = SyntheticPairs(cache_dir=tmp_path, things=(2, 3), **settings).source("train")
    scenes, seen = Scenes(source), set()
    for index in [*range(len(source))] * 3:
        image, text = scenes[index]
        pixels = ((image + 1) * 127.5).round()
        sample, truth = source.load(index), source.truth(index)
        side = "before" if torch.equal(pixels, sample.before.float()) else "after"
        assert torch.equal(pixels, getattr(sample, side).float())
        words = [WORDS[number] for number in text.tolist()]
        assert len(words) == CONTEXT and words[text.argmax()] == "end" and not any(words[text.argmax() + 1 :])
        said = " ".join(words[: text.argmax()]).split(" and ")
        kinds = ("size", "color", "material", "shape")
        assert sorted(said) == sorted(" ".join(thing[kind] for kind in kinds) for thing in truth[side]["things"])
        seen.add(side)
    assert seen == {"before", "after"}


@pytest.mark.usefixtures("benchmarks")
def test_all_encoders_of_the_smallest_study_of_procap_begin_with_the_small_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import procap_learning

    begun: dict[str, Tensor] = {}

    def watched(self: Any, *args: Any, **options: Any) -> None:
        weight = self.built_net.encoder.layers[2].qkv.weight.detach().clone()
        begun.setdefault(type(self).__name__, weight)  # a first stage may train for several rounds

    for stage in (procap_learning.ProCap, procap_learning.NamedProcedures):
        monkeypatch.setattr(stage, "on_fit_start", watched)
    size = ["--pairs", "24", "--test_pairs", "8", "--epochs", "1", "1", "1", "--trunk", "1", "--seeds", "1"]
    places = ["--work", str(tmp_path / "work"), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out.json")]
    command = ["procap_learning.py", *size, *places]
    monkeypatch.setattr("sys.argv", [*command, "--prepare", "first", "--only", "EPM"])
    procap_learning.main()
    monkeypatch.setattr("sys.argv", [*command, "--only", "none", "IPC"])
    procap_learning.main()
    (trunk,) = (tmp_path / "work").glob("*/trunk.pt")  # one for both commands
    clip = torch.load(trunk, weights_only=True)
    own = clip["visual.transformer.resblocks.2.attn.in_proj_weight"]
    assert begun.keys() == {"ProCap", "NamedProcedures"}
    assert all(torch.equal(weight, own) for weight in begun.values())
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert set(found["worlds"]["rendered"]["summary"]) == {"none", "IPC"}
    assert 0 <= found["worlds"]["rendered"]["notes"]["1"]["trunk_recall"] <= 100


@pytest.mark.usefixtures("benchmarks")
def test_queries_are_compared_with_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 14: both start from one first stage; one of them reads the frames of the test pairs, too."""
    import procap_learning

    # so small a first stage is not above copying, which would refuse both
    monkeypatch.setattr(procap_learning.Runs, "start", procap_learning.Runs.first_stage)
    monkeypatch.setattr(procap_learning, "ROUNDS", 1)
    started: list[tuple[int, str | None]] = []
    monkeypatch.setattr(
        procap_learning.ProCap,
        "on_fit_start",
        lambda self: started.append((self.hparams["queries"], self.hparams["explicit"])),
    )
    size = ["--pairs", "24", "--test_pairs", "8", "--epochs", "1", "1", "1", "--seeds", "1"]
    places = ["--work", str(tmp_path / "work"), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out.json")]
    monkeypatch.setattr("sys.argv", ["procap_learning.py", *size, *places, "--only", "EPM+frames", "EPM+IPC"])
    procap_learning.main()
    (folder,) = (tmp_path / "work").glob("*/procedures")
    assert started == [(1, str(folder)), (1, None)]
    assert len(list((tmp_path / "work").glob("*/first-*.ckpt"))) == 1
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["worlds"]["rendered"]["summary"]
    assert found["EPM+IPC"]["over_before"]["row"] == "EPM+frames"


@pytest.mark.usefixtures("benchmarks")
def test_first_stages_of_fewer_losses_are_each_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 4: a row starts from the first stage of its own losses."""
    import procap_learning

    trained: list[list[float]] = []
    started: list[str] = []

    def start(runs: Any, arm: Any) -> Any:
        first, found = runs.first_stage(arm)  # so small a one is not above copying, which would refuse all
        started.append(Path(first).name)
        return first, found

    monkeypatch.setattr(procap_learning.Runs, "start", start)
    monkeypatch.setattr(procap_learning, "ROUNDS", 1)
    monkeypatch.setattr(
        procap_learning.NamedProcedures, "on_fit_start", lambda self: trained.append(self.hparams["loss_weights"])
    )
    size = ["--pairs", "24", "--test_pairs", "8", "--epochs", "1", "1", "1", "--seeds", "1", "2"]
    places = ["--work", str(tmp_path / "work"), "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out.json")]
    rows = ["MSM+IPC", "MSM+align+IPC", "EPM+IPC"]
    monkeypatch.setattr("sys.argv", ["procap_learning.py", *size, *places, "--only", *rows])
    procap_learning.main()
    assert trained == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert started == ["first-1-losses-1-0-0.ckpt", "first-1-losses-1-1-0.ckpt", "first-1-losses-1-1-1.ckpt"] * 2
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["worlds"]["rendered"]["summary"]
    assert [found[row]["over_before"]["row"] for row in rows[1:]] == rows[:2]

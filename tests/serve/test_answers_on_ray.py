"""`predict` with Ray actors writes the same file as plain `predict`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightning_idc.cli import main
from lightning_idc.synthesis.actors import connect
from lightning_idc.utils.errors import ConfigError

ray = pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.fixture
def _stopped() -> Iterator[None]:
    before = dict(os.environ)
    yield
    ray.shutdown()
    os.environ.clear()  # Ray leaves its own variables behind
    os.environ.update(before)


@pytest.mark.dist
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_stopped")
def test_the_file_is_that_of_plain_predict(
    model: Path, draw: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(7):
        draw(f"pairs/before/{number}.png", seed=number)
        draw(f"pairs/after/{number}.png", seed=number, square=(4 * number % 24, 8))
    (tmp_path / "pairs" / "after" / "3.png").write_bytes(b"no picture")
    plain, dealt = tmp_path / "plain.jsonl", tmp_path / "dealt.jsonl"
    arguments = ["predict", str(tmp_path / "pairs"), "--model", str(model), "--batch_size", "2"]
    assert main([*arguments, "--out", str(plain)]) == 2
    assert main([*arguments, "--out", str(dealt), "--engine", "ray", "--actors", "2"]) == 2
    assert capsys.readouterr().out.count("7 pairs: ") == 2
    assert dealt.read_bytes() == plain.read_bytes() and len(plain.read_text().splitlines()) == 7
    with pytest.raises(ConfigError, match="actors is 0; expected at least 1"):
        list(_answers(model))


def _answers(model: Path) -> Iterator[object]:
    from lightning_idc.serve.batch import answer_batches_on_ray
    from lightning_idc.serve.opening import ModelOptions
    from lightning_idc.serve.options import BatchOptions

    yield from answer_batches_on_ray(ModelOptions(str(model)), [], BatchOptions(actors=0), tolerance=None)


def test_a_failed_start_of_ray_raises_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: object) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray does on a busy machine

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ConfigError, match=r"cannot be started or reached \(The current node timed out"):
        connect(None)

"""Predictions are written one by one; after a kill, a prediction resumes and neither loses nor repeats a pair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.processes import TESTS, forking_python, launch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import LightningModule, Trainer
from predict_processes import PAIRS, ManyPairs

from lightning_idc.callbacks.write_predictions import WritePredictions
from lightning_idc.utils.errors import ConfigError, DataError

SCRIPT = Path(__file__).parent / "predict_processes.py"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "model.ckpt"
    torch.manual_seed(0)
    trainer = Trainer(max_epochs=1, **QUIET)
    trainer.fit(TinyCaptioner(), TinyPairs(batch_size=4))
    trainer.save_checkpoint(path)
    return path


def predict(folder: Path, checkpoint: Path | None, data: TinyPairs, **options: Any) -> list[Any]:
    """Predict in this process; return the records of the pairs that were captioned in this call."""
    trainer = Trainer(default_root_dir=folder, callbacks=[WritePredictions(**options)], **QUIET)
    result = trainer.predict(TinyCaptioner(), data, ckpt_path=checkpoint, weights_only=True)
    assert result is not None
    return [record for batch in result for record in batch]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def reference(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("reference")
    said = predict(folder, checkpoint, ManyPairs(batch_size=8))
    written = lines(folder / "predictions.jsonl")
    assert [record["id"] for record in written] == [record["id"] for record in said]
    assert [record["caption"] for record in written] == [record["caption"] for record in said]
    assert set(written[0]) == {"id", "caption", "log_prob", "change_score"} and len(written) == PAIRS
    assert sorted(os.listdir(folder)) == ["predictions.jsonl"]
    return written


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Captions must be equal; another batch size may change the last digits of a score."""
    assert [(r["id"], r["caption"]) for r in found] == [(r["id"], r["caption"]) for r in expected]
    torch.testing.assert_close(
        torch.tensor([r["log_prob"] for r in found]), torch.tensor([r["log_prob"] for r in expected])
    )


def start(kind: str, folder: Path, checkpoint: Path, pause: float) -> subprocess.Popen[bytes]:
    (folder / "model.ckpt").write_bytes(checkpoint.read_bytes())
    return subprocess.Popen(
        [forking_python(), str(SCRIPT), kind, str(folder), str(pause)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def kill_midway(kind: str, folder: Path, checkpoint: Path) -> None:
    process = start(kind, folder, checkpoint, pause=0.05)
    part = folder / "predictions.jsonl.rank0.part"
    until = time.monotonic() + 200
    while (not part.is_file() or part.read_bytes().count(b"\n") < 60) and time.monotonic() < until:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (folder / "predictions.jsonl").exists(), "an unfinished prediction does not pass for a finished one"


@pytest.mark.dist
def test_a_killed_prediction_goes_on(checkpoint: Path, reference: list[dict[str, Any]], tmp_path: Path) -> None:
    kill_midway("one", tmp_path, checkpoint)
    part = tmp_path / "predictions.jsonl.rank0.part"
    kept = [record["id"] for record in lines(part) if "id" in record]
    assert 60 <= len(kept) + 1 < PAIRS
    with part.open("a", encoding="utf-8") as file:
        file.write('{"id": "599", "capt')  # as after a power cut
    said = predict(tmp_path, checkpoint, ManyPairs(batch_size=8))
    assert not {record["id"] for record in said} & set(kept), "none is captioned twice"
    assert len(said) + len(kept) == PAIRS, "and none is left out"
    same(lines(tmp_path / "predictions.jsonl"), reference)
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.slow
@pytest.mark.dist
def test_two_processes_go_on_where_two_were_killed(
    checkpoint: Path, reference: list[dict[str, Any]], tmp_path: Path
) -> None:
    kill_midway("ddp", tmp_path, checkpoint)
    kept = {r["id"] for part in tmp_path.glob("*.part") for r in lines(part) if "id" in r}
    for seen in tmp_path.glob("seen*"):
        seen.unlink()
    launch(SCRIPT, "ddp", tmp_path, "0")
    now = [id for seen in tmp_path.glob("seen*") for id in seen.read_text().split()]
    assert not set(now) & kept and set(now) | kept == {record["id"] for record in reference}
    same(lines(tmp_path / "predictions.jsonl"), reference)


def test_a_kill_before_the_file_is_written_repeats_one_pair(checkpoint: Path, tmp_path: Path) -> None:
    """Killed after the last pair, before the file is written: one pair is repeated, as Lightning skips an empty run."""
    data = TinyPairs(batch_size=4)
    predict(tmp_path, checkpoint, data)
    expected = (tmp_path / "predictions.jsonl").read_text()
    trainer = Trainer(default_root_dir=tmp_path, callbacks=[callback := WritePredictions()], **QUIET)
    callback.on_predict_end = lambda *unused: callback._close()  # type: ignore[method-assign]
    trainer.predict(TinyCaptioner(), TinyPairs(batch_size=4), ckpt_path=checkpoint, weights_only=True)
    (tmp_path / "predictions.jsonl").unlink()
    assert len(predict(tmp_path, checkpoint, TinyPairs(batch_size=4))) == 1
    assert [r["id"] for r in lines(tmp_path / "predictions.jsonl")] == [
        json.loads(line)["id"] for line in expected.splitlines()
    ]


def test_another_checkpoint_or_other_pairs_are_not_mixed_in(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stops(TinyPairs):
        pass

    trainer = Trainer(default_root_dir=tmp_path, callbacks=[callback := WritePredictions()], **QUIET)

    def stop(*unused: Any) -> None:
        WritePredictions.on_predict_batch_end(callback, *unused)
        raise KeyboardInterrupt

    callback.on_predict_batch_end = stop  # type: ignore[method-assign]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer.predict(TinyCaptioner(), Stops(batch_size=2), ckpt_path=checkpoint, weights_only=True)
    assert "run the same command again" in capsys.readouterr().out
    other = tmp_path / "other.ckpt"
    content = torch.load(checkpoint, weights_only=True)
    content["state_dict"]["net.head.bias"] += 1
    torch.save(content, other)
    with pytest.raises(DataError, match="another checkpoint"):
        predict(tmp_path, other, TinyPairs(batch_size=2))
    with pytest.raises(DataError, match="of other pairs"):
        predict(tmp_path, checkpoint, ManyPairs(batch_size=2))
    half = Trainer(default_root_dir=tmp_path, callbacks=[WritePredictions()], precision="bf16-mixed", **QUIET)
    with pytest.raises(DataError, match="of other settings"):
        half.predict(TinyCaptioner(), TinyPairs(batch_size=2), ckpt_path=checkpoint, weights_only=True)
    assert len(predict(tmp_path, checkpoint, TinyPairs(batch_size=2))) == 5, "7 pairs, of which 2 were done"


def test_a_number_that_json_does_not_know_is_null(tmp_path: Path) -> None:
    callback = WritePredictions()
    with (tmp_path / "x").open("w+", encoding="utf-8") as callback._file:
        callback._write_lines([{"id": "a\ud800", "log_prob": float("nan")}])
    assert json.loads((tmp_path / "x").read_text(encoding="utf-8")) == {"id": "a?", "log_prob": None}


def test_other_models_are_refused(tmp_path: Path) -> None:
    class Other(LightningModule):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return None

    trainer = Trainer(default_root_dir=tmp_path, callbacks=[WritePredictions()], **QUIET)
    with pytest.raises(ConfigError, match="and a PairDataModule, not a Other"):
        trainer.predict(Other(), TinyPairs())

"""Random variation of images in pre-training, and what it leaves unchanged."""

from __future__ import annotations

import pytest
import torch

from lightning_idc.models.pretraining.cell_classification import ChangeNaming, ObjectNaming, naming_loss
from lightning_idc.models.pretraining.variation import mirrored, relit
from lightning_idc.utils.errors import ConfigError


def test_mirrored_images_keep_their_labels_and_half_of_them_turn() -> None:
    torch.manual_seed(0)
    images = torch.arange(8).expand(400, 3, 8, 8).contiguous()
    cells = images[:, :2, ::2, ::2] // 2
    seen, named = mirrored(images, cells)
    turned = seen[:, 0, 0, 0] == 7
    assert 160 < turned.sum() < 240
    assert torch.equal(seen[turned], images[turned].flip(-1)) and torch.equal(seen[~turned], images[~turned])
    assert torch.equal(named[turned], cells[turned].flip(-1)) and torch.equal(named[~turned], cells[~turned])


@pytest.mark.parametrize("shape", [(5, 3, 12, 16), (5, 2, 3, 12, 16), (4, 1, 12, 16)])
def test_relit_images_differ_each_in_its_own_way(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    images = torch.randint(60, 200, shape[1:], dtype=torch.uint8).expand(shape).contiguous()
    other = relit(images, 0.3)
    assert other.shape == images.shape and other.dtype == torch.uint8
    change = (other.float() - images.float()).flatten(1)
    assert change.abs().mean(1).max() < 60  # still similar to the original
    assert len({round(float(value), 2) for value in change.mean(1)}) == len(images)
    assert torch.equal(relit(images, 0.0), images)


def test_only_training_sees_varied_images() -> None:
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    cells = torch.randint(0, 3, (6, 2, 4, 4))
    naming = ObjectNaming(classes=(3, 3), mirror=True, relight=0.3).eval()  # batch norm in eval mode
    plain = naming_loss(naming(images), cells)
    assert not torch.isclose(naming.training_loss(None, (images, cells)), plain)
    assert torch.equal(naming_loss(*naming.logits_and_labels((images, cells))), plain)  # as in validation
    same = ObjectNaming(classes=(3, 3)).eval()
    same.load_state_dict(naming.state_dict())
    assert torch.equal(same.training_loss(None, (images, cells)), plain)


def test_pairs_are_mirrored_as_a_whole() -> None:
    torch.manual_seed(0)
    naming = ChangeNaming(classes=[3], mirror=True, relight=0.2)
    loss = naming.training_loss(
        None, (torch.randint(0, 256, (4, 2, 3, 32, 32), dtype=torch.uint8), torch.randint(0, 3, (4, 1, 4, 4)))
    )
    assert torch.isfinite(loss)


@pytest.mark.parametrize("relight", [-0.1, 1.0])
def test_a_strength_out_of_range_is_refused(relight: float) -> None:
    with pytest.raises(ConfigError, match="relight is"):
        ObjectNaming(relight=relight)

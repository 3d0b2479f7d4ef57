"""CLIP4IDC: CLIP with joint attention over both images, adapted by retrieval and then trained to caption.

Guo et al. 2022.

Example:
    >>> from lightning_idc.methods.clip4idc import Clip4IdcRetrieval
    >>> sizes = {
    ...     "embed_dim": 32,
    ...     "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 64, "layers": 2, "head_width": 32},
    ...     "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    ... }
    >>> Clip4IdcRetrieval(clip=sizes, intra_layers=1).hparams["intra_layers"]
    1
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

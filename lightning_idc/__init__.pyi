from lightning_idc.data.datamodule import PairDataModule as PairDataModule
from lightning_idc.images.types import Caption as Caption
from lightning_idc.images.types import PairBatch as PairBatch
from lightning_idc.images.types import PairFeatures as PairFeatures
from lightning_idc.images.types import PairSample as PairSample
from lightning_idc.models.addon import Addon as Addon
from lightning_idc.models.addon import TrainingStep as TrainingStep
from lightning_idc.models.addon_callback import AddonCallback as AddonCallback
from lightning_idc.models.captioner import PairCaptioner as PairCaptioner
from lightning_idc.serve.opening import list_models as list_models
from lightning_idc.serve.opening import load as load
from lightning_idc.serve.opening import sample_pair as sample_pair
from lightning_idc.utils.errors import IDCError as IDCError

__version__: str

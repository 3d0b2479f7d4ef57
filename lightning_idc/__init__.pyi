from lightning_idc.core.addon import Addon as Addon
from lightning_idc.core.addon import TrainingStep as TrainingStep
from lightning_idc.core.addon_callback import AddonCallback as AddonCallback
from lightning_idc.core.captioner import PairCaptioner as PairCaptioner
from lightning_idc.core.types import Caption as Caption
from lightning_idc.core.types import PairBatch as PairBatch
from lightning_idc.core.types import PairFeatures as PairFeatures
from lightning_idc.core.types import PairSample as PairSample
from lightning_idc.data.core.datamodule import PairDataModule as PairDataModule
from lightning_idc.errors import IDCError as IDCError
from lightning_idc.serve.opening import load as load
from lightning_idc.serve.opening import sample_pair as sample_pair

__version__: str

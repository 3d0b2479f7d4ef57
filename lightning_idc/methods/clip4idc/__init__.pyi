from lightning_idc.methods.clip4idc.module import Clip4Idc as Clip4Idc
from lightning_idc.methods.clip4idc.module import Clip4IdcRetrieval as Clip4IdcRetrieval
from lightning_idc.methods.clip4idc.pretrain import PairNaming as PairNaming

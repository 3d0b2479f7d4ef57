from lightning_idc.nn.backbones import SmallCNN as SmallCNN
from lightning_idc.nn.backbones import TimmGrid as TimmGrid
from lightning_idc.nn.backbones import build_backbone as build_backbone
from lightning_idc.nn.grid_backbone import GridBackbone as GridBackbone
from lightning_idc.nn.image_tokenizer import ImageTokenizer as ImageTokenizer
from lightning_idc.nn.transformer import Decoder as Decoder
from lightning_idc.nn.transformer import DecoderLayer as DecoderLayer
from lightning_idc.nn.transformer import EncoderLayer as EncoderLayer

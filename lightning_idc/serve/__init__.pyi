from lightning_idc.serve.answer import Answer as Answer
from lightning_idc.serve.answers import answer_pairs as answer_pairs
from lightning_idc.serve.opening import ModelOptions as ModelOptions
from lightning_idc.serve.opening import load as load
from lightning_idc.serve.opening import sample_pair as sample_pair

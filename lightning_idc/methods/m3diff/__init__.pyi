from lightning_idc.methods.m3diff.mdp import MDP as MDP
from lightning_idc.methods.m3diff.mdp import MultiScaleDifferentialPerception as MultiScaleDifferentialPerception
from lightning_idc.methods.m3diff.mdp_adapter import MDPAdapter as MDPAdapter

"""ADPO: adversarial preference optimisation (Huang, Wu et al.).

Example:
    >>> import torch
    >>> from lightning_idc.methods.adpo import AdversarialRetriever, Comparison, PreferenceOptimization, dpo
    >>> callbacks = [PreferenceOptimization(beta=0.1), AdversarialRetriever(candidates=128)]
    >>> [callback.name for callback in callbacks]
    ['preference', 'retriever']
    >>> policy = torch.tensor([[-1.0, -9.0]])  # log-probabilities of the chosen and the rejected caption
    >>> reference = torch.tensor([[-2.0, -4.0]])
    >>> dpo(Comparison.from_logps(policy, reference, torch.tensor([[3, 3]])), beta=0.5)
    tensor([[0.0486]])
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

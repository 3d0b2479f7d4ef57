"""ADPO: adversarial direct preference optimization."""

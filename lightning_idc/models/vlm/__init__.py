"""Vision-language models as captioners of pairs; with MDP and LoRA they are M3Diff."""

"""Vision-language models as captioners of pairs; M3Diff is such a captioner with MDP and LoRA."""

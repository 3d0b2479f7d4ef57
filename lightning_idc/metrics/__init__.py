"""How captions are scored; imports no Lightning and needs no Java for BLEU, ROUGE-L and CIDEr-D."""

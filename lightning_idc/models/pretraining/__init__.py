"""Pre-training of backbones on the cells of a grid."""

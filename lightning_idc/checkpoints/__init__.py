"""Read and write checkpoints and folders of weights."""

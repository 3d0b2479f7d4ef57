"""The ground floor: pairs, errors, images, checkpoints, add-ons, adapters, and the base classes of all modules."""

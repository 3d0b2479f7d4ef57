"""Files that a reader must refuse or survive, by kind: damaged, lying, or trying to run something."""

"""Files that a reader must refuse or survive, by kind: damaged, inconsistent, or malicious."""

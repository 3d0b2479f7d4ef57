"""Parts of ProCap as in the authors' code, where it differs from their paper."""

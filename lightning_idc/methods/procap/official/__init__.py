"""The authors' code of ProCap where it differs from their paper."""

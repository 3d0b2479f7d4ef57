"""Plain torch that methods share; imports no Lightning."""

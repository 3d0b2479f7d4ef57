"""Helpers without dependencies on other packages of the library: outputs, files, errors, names, HTTP."""

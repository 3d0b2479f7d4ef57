"""Recipes: composed of YAML files, changed by keys of the command line, and run stage by stage."""

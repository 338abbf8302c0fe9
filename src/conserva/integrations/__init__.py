"""Integrations with other libraries, one package for each; none is imported by default."""

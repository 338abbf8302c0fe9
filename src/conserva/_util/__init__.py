"""Helpers that know nothing of models: text, files, journals, optional packages."""

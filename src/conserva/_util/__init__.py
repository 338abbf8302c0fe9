"""Helpers that do not depend on models: text, files, journals, optional packages."""

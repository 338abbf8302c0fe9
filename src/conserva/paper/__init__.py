"""The experiments of Ali et al. (ICML 2022): trainings, tables and pages. Only the command line imports it."""

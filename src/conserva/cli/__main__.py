"""`python -m conserva.cli`, the same as `conserva`."""

from . import program

program()

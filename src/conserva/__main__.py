"""`python -m conserva` is the command `conserva`."""

from .cli import program

program()

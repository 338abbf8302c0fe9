"""`python -m conserva.cli`, where the command is not on the path."""

from . import program

program()

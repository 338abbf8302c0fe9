"""Training the paper's text classifier: dataset -> recipe -> epochs -> a folder that `conserva.load` takes."""

from .recipe import Recipe
from .run import train

__all__ = ["Recipe", "train"]

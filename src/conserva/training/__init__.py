"""Training the paper's classifiers: dataset -> recipe -> epochs -> a folder that `conserva.load` takes."""

from .graph_recipe import GraphRecipe
from .graph_run import train_graphs
from .recipe import Recipe
from .run import train

__all__ = ["GraphRecipe", "Recipe", "train", "train_graphs"]

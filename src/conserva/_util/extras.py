"""Checks for optional packages, made before the work that needs them starts."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import Error

EXTRAS = {
    "accelerate": "gguf",
    "captum": "captum",
    "datasets": "data",
    "gguf": "gguf",
    "igraph": "flow",
    "inseq": "inseq",
    "lightning": "lightning",
    "matplotlib": "figures",
    "mlflow": "mlflow",
    "pandas": "data",
    "PIL": "images",
    "pyarrow": "data",
    "rdkit": "graphs",
    "shap": "shap",
    "skimage": "graphs",
    "torch_geometric": "geometric",
    "wandb": "wandb",
}
"""Module name -> the extra of this package that installs it."""


def require(what: str, *modules: str) -> None:
    """Raise an `Error` if a module is not installed; `what` is the feature that needs it, such as "--png"."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({EXTRAS[name] for name in missing}))
        raise Error(f"{what} needs {' and '.join(missing)}: pip install 'conserva[{extras}]'.")

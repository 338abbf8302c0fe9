"""Optional packages, asked for before the work that needs them begins."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import Error

EXTRAS = {
    "accelerate": "gguf",
    "datasets": "data",
    "gguf": "gguf",
    "igraph": "flow",
    "matplotlib": "figures",
    "PIL": "images",
    "pyarrow": "data",
    "rdkit": "graphs",
    "skimage": "graphs",
    "torch_geometric": "geometric",
}
"""Which extra of this package installs a module."""


def require(what: str, *modules: str) -> None:
    """Raise unless all modules are installed; `what` needs them, as in "--png needs matplotlib"."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({EXTRAS[name] for name in missing}))
        raise Error(f"{what} needs {' and '.join(missing)}: pip install 'conserva[{extras}]'.")

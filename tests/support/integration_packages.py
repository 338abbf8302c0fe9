"""What tests share: which modules of conserva.integrations can be imported with the packages that are installed."""

from importlib.util import find_spec

_NEEDS = {
    "captum": "captum",
    "forward_functions": "captum",
    "geometric": "torch_geometric",
    "inseq": "inseq",
    "lightning": "lightning",
    "mlflow": "mlflow",
    "wandb": "wandb",
}
"""Module of conserva.integrations -> the package that it imports."""


def can_be_imported(name: str) -> bool:
    """Return whether the package that a module of conserva imports, if any, is installed."""
    _, found, rest = name.partition("conserva.integrations.")
    package = _NEEDS.get(rest.partition(".")[0]) if found else None
    return package is None or find_spec(package) is not None

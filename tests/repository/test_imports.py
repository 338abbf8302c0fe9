"""Every module can be the first of the package that is imported: no order of imports is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import conserva
from integration_packages import can_be_imported

PACKAGE = Path(conserva.__file__).parent
PROGRAMS = ("__main__.py", "maxflow.py", "segments.py")
SCRIPT = """
import contextlib, importlib, os, sys
import torch, transformers
import matplotlib.figure, numpy, PIL.Image, rich.console
for name in ("torch_geometric.explain", "captum.attr", "inseq"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
failed = []
for name in sys.argv[1:]:
    child = os.fork()  # the libraries are there already, nothing of the package is
    if not child:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            os._exit(1)
        os._exit(0)
    failed += [name] if os.waitpid(child, 0)[1] else []
assert not any(name.split(".")[0] == "conserva" for name in sys.modules)
print(f"{len(failed)} failed")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_module_can_be_imported_first() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name not in PROGRAMS]
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths
    ]
    names = list(filter(can_be_imported, names))
    assert len(names) > 200
    done = subprocess.run([sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True)
    assert done.stdout == "0 failed\n", done.stdout + done.stderr

"""Every module can be the first of the package that is imported: no order of imports is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import conserva
from integration_packages import can_be_imported

PACKAGE = Path(conserva.__file__).parent
PROGRAMS = ("__main__.py", "maxflow.py", "segments.py")
SCRIPT = """
import importlib, sys
failed = []
for name in sys.argv[1:]:
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "conserva"]:
        del sys.modules[loaded]  # the libraries stay, nothing of the package does
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
print(*failed, f"{len(failed)} failed", sep="\\n")
"""


def test_every_module_can_be_imported_first() -> None:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name not in PROGRAMS]
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths
    ]
    names = list(filter(can_be_imported, names))
    assert len(names) > 200
    done = subprocess.run([sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True)
    assert done.stdout == "0 failed\n", done.stdout + done.stderr

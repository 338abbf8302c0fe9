"""Pages whose blocks of Python are followed by what they print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def run_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the blocks of a page one after the other, and compare what each prints with the block of text after it."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for code, shown in blocks:
        capsys.readouterr()
        exec(compile(code, page.name, "exec"), names)
        assert capsys.readouterr().out == shown

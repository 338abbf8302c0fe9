"""The findings of `conserva doctor` in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .._util.text import displayed
from ..auditing.doctor import Finding

LIMITS = (
    "The checks are about arithmetic: the scores are what the rules define, and nothing is lost. Whether the words "
    "with high scores are those that the model depends on is measured by conserva evaluate."
)
"""What the checks do not tell."""

_MARKS = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("-", "dim")}


def show(model: str, rules: str, findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print whether all checks passed, and one line for each check."""
    console = console or Console(highlight=False)
    model, rules, findings = displayed((model, rules, findings))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        word, style = _MARKS[finding.passed]
        table.add_row(Text(word, style), Text(finding.check), Text(finding.text))
    failed = [finding.check for finding in findings if finding.passed is False]
    verdict = f"failed: {', '.join(failed)}" if failed else "passed every check that applies"
    console.print(Text(f"Explanations of {model} under {rules} {verdict}.", "bold red" if failed else "bold"))
    console.print(table)
    console.print(Text(LIMITS, "dim"))

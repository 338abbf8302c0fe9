"""`conserva audit`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.files import write_text
from ..errors import Error
from ..results.saving import drawn
from .form import FORM, Commands
from .input_options import target_of
from .output import put_json, say_written

if TYPE_CHECKING:
    from ..tasks import Task

AUDIT = """examples:
  conserva audit                                          the bundled model, under gi, ah+ln and exact
  conserva audit path/to/model --rules exact --max-gap 1e-3
  conserva audit sentiment --text "a joy." --target positive --html audit.html --png audit.png

This is what to run first on a new model: which calls met which rule, where relevance is lost, whether the books close.
With --max-gap it ends with 1 if the gap of some text is larger than that share of the largest output: for use in CI."""

TEXTS = (
    "a joy from the first minute to the last.",
    "the plot makes no sense, and nobody in it seems to mind.",
    "it is what it is: two hours, three songs, one good joke.",
)
"""What a model is audited on when no text is given."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("audit", help="find where relevance leaks", epilog=AUDIT, **FORM)
    parser.add_argument(
        "name", nargs="?", metavar="MODEL", help="a folder or hub name (default: the bundled sentiment)"
    )
    parser.add_argument("--model", help="the same, by name")
    parser.add_argument("--text", action="append", help="a text to audit on; may be given several times")
    parser.add_argument("--target", help="a label, a class index, or a contrast 'a - b' (default: the highest score)")
    parser.add_argument("--rules", default="gi,ah+ln,exact", help="rule sets, as a,b,c (default: %(default)s)")
    parser.add_argument("--max-gap", type=float, help="fail if a gap exceeds this share, under the last rule set named")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write a report")
    parser.add_argument("--png", type=Path, metavar="PATH", help="draw the waterfall (.png, .svg or .pdf)")
    parser.set_defaults(run=_audit)


def _audit(given: argparse.Namespace) -> None:
    from ..auditing.run import audit
    from ..tasks.loading import load

    if given.name and given.model and given.name != given.model:
        raise Error(f"Two models are named, {given.name!r} and {given.model!r}: give one.")
    if given.max_gap is not None and not given.max_gap >= 0:  # nan is neither
        raise Error(f"--max-gap {given.max_gap:g} is not a share of an output: give 0 or more, as 1e-3.")
    task = load(given.name or given.model or "sentiment")
    check_is_asked_in_text(task, given.text)
    target = target_of(given.target, task)
    texts = list(given.text or TEXTS)
    audits = [audit(task, texts, target, rules=rules) for rules in given.rules.split(",")]
    if given.json:
        whole = {one.rules: one.to_dict() for one in audits}
        put_json(whole)
    else:
        from ..views.audit import compare, show

        if len(audits) > 1:
            compare(audits)
        for one in audits:
            show(one)
    if given.html:
        from ..views.audit_page import page

        say_written(write_text(given.html, page(audits), f"--html {given.html}"))
    if given.png:
        from ..views.waterfall import draw_waterfall

        say_written(drawn(given.png, lambda path: draw_waterfall(audits, path), f"--png {given.png}"))
    last = audits[-1]
    if given.max_gap is not None and not last.relative_gap() <= given.max_gap:
        raise Error(
            f"--max-gap {given.max_gap:g}: under {last.rules!r} a gap is {last.relative_gap():.3g} of the largest "
            "output."
        )


def check_is_asked_in_text(task: Task, texts: list[str] | None) -> None:
    """Raise if a model of graphs or images is to be audited on sentences: only SMILES and files are named by a text."""
    from ..tasks import Graph, Image

    if isinstance(task, Image) and not texts:
        raise Error(f"{task.name} reads images, and there are none to audit it on: give files, as --text digit.png.")
    if not isinstance(task, Graph):
        return
    if task.model.config.node_values is None:
        raise Error(
            f"{task.name} reads graphs, which this command does not take: use conserva.audit(task, graphs) in Python."
        )
    if not texts:
        raise Error(f"{task.name} reads molecules, and there are none to audit it on: give SMILES, as --text CCO.")

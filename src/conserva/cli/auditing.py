"""`conserva audit`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._util.files import write_text
from ..errors import Error
from ..results.saving import drawn
from .arguments import FORM, Commands
from .model_checks import add_checked_model, checked_model
from .output import put_json, say_written

AUDIT = """examples:
  conserva audit                                          the bundled model, under gi, ah+ln and exact
  conserva audit path/to/model --rules exact --max-gap 1e-3
  conserva audit sentiment --text "a joy." --target positive --html audit.html --png audit.png

This is what to run first on a new model: which calls met which rule, where relevance is lost, and whether the ledger
closes. With --max-gap it ends with 1 if the gap of some text is larger than that share of the largest output: for
use in CI."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("audit", help="find where relevance leaks", epilog=AUDIT, **FORM)
    add_checked_model(parser)
    parser.add_argument("--rules", default="gi,ah+ln,exact", help="rule sets, as a,b,c (default: %(default)s)")
    parser.add_argument("--max-gap", type=float, help="fail if a gap exceeds this share, under the last rule set named")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write a report")
    parser.add_argument("--png", type=Path, metavar="PATH", help="draw the waterfall (.png, .svg or .pdf)")
    parser.set_defaults(run=_audit)


def _audit(given: argparse.Namespace) -> None:
    from ..auditing.run import audit

    if given.max_gap is not None and not given.max_gap >= 0:  # nan is neither
        raise Error(f"--max-gap {given.max_gap:g} is not a share of an output: give 0 or more, as 1e-3.")
    task, texts, target = checked_model(given)
    audits = [audit(task, texts, target, rules=rules) for rules in given.rules.split(",")]
    if given.json:
        whole = {one.rules: one.to_dict() for one in audits}
        put_json(whole)
    else:
        from ..views.audit_terminal import compare, show

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

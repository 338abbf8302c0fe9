"""`conserva audit`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._util.files import write_text
from ..errors import Error
from ..results.saving import drawn
from .arguments import FORMATTER, Commands
from .model_options import add_model_options, check_names, model_and_texts
from .output import print_json, report_written

AUDIT = """examples:
  conserva audit                                          the bundled model, under gi, ah+ln and exact
  conserva audit path/to/model --rules exact --max-gap 1e-3
  conserva audit sentiment --text "a joy." --target positive --html audit.html --png audit.png

Run this first on a new model: it shows which rule applies to which call, where relevance is lost, and whether the
ledger closes. With --max-gap the exit code is 1 if the gap of a text exceeds this share of the sum of its ledger's
absolute values, for use in CI."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("audit", help="find where relevance leaks", epilog=AUDIT, **FORMATTER)
    add_model_options(parser)
    parser.add_argument("--rules", default="gi,ah+ln,exact", help="rule sets, comma-separated (default: %(default)s)")
    parser.add_argument(
        "--max-gap", type=float, help="fail if a gap exceeds this share of its ledger, under the last rule set"
    )
    parser.add_argument("--full", action="store_true", help="print all operations, not only the largest leaks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write a report")
    parser.add_argument("--png", type=Path, metavar="PATH", help="draw the waterfall (.png, .svg or .pdf)")
    parser.set_defaults(run=_audit, check=_check)


def _check(given: argparse.Namespace) -> None:
    check_names(given)
    if given.max_gap is not None and not given.max_gap >= 0:  # also catches nan
        raise Error(f"--max-gap {given.max_gap:g} is not a share of a ledger: give 0 or more, such as 1e-3.")


def _audit(given: argparse.Namespace) -> None:
    from ..auditing.run import audit

    task, texts, target = model_and_texts(given)
    audits = [audit(task, texts, target, rules=rules) for rules in given.rules.split(",")]
    if given.json:
        print_json({each.rules: each.to_dict() for each in audits})
    else:
        from ..views.audit_terminal import compare, show

        if len(audits) > 1:
            compare(audits)
        for each in audits:
            show(each, full=given.full)
    if given.html:
        from ..views.audit_page import page

        report_written(write_text(given.html, page(audits), f"--html {given.html}"))
    if given.png:
        from ..views.waterfall import draw_waterfall

        report_written(drawn(given.png, lambda path: draw_waterfall(audits, path), f"--png {given.png}"))
    last = audits[-1]
    if given.max_gap is not None and not last.gap_share() <= given.max_gap:
        raise Error(
            f"--max-gap {given.max_gap:g} is exceeded: under {last.rules!r} the largest gap is "
            f"{last.gap_share():.3g} of the sum of its ledger's absolute values."
        )

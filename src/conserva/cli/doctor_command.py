"""`conserva doctor`."""

from __future__ import annotations

import argparse

from ..errors import Error
from .arguments import FORMATTER, Commands
from .model_options import add_model_options, check_names, model_and_texts
from .output import print_json

DOCTOR = """examples:
  conserva doctor                                         the bundled model
  conserva doctor path/to/model --text "a joy." --text "a bore."
  conserva doctor path/to/model --rules ah+ln --json

Runs four checks on a few inputs. Graph: every operation between the output and the inputs is linear or has a rule.
Ledger: it closes. Second opinion: with all frozen factors held constant, scaled inputs change the output as the scores
predict. Other attention: eager and fused attention give the same scores. The exit code is 1 if a check fails."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor", help="check that a model's explanations are computed correctly", epilog=DOCTOR, **FORMATTER
    )
    add_model_options(parser)
    parser.add_argument("--rules", default="exact", help="a rule set (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_doctor, check=check_names)


def _doctor(given: argparse.Namespace) -> None:
    from ..auditing.doctor import examine

    task, texts, target = model_and_texts(given)
    encoded = [task.encode(text) for text in texts]
    findings = examine(
        task.model, task.batch(encoded), [task.resolve_target(target, item) for item in encoded], rules=given.rules
    )
    if given.json:
        checks = [finding.to_dict() for finding in findings]
        print_json({"model": task.name, "rules": given.rules, "findings": checks})
    else:
        from ..views.doctor import show

        show(task.name, given.rules, findings)
    failed = [finding.check for finding in findings if finding.passed is False]
    if failed:
        raise Error(f"{task.name} failed {len(failed)} of {len(findings)} checks: {', '.join(failed)}.")

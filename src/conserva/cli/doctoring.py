"""`conserva doctor`."""

from __future__ import annotations

import argparse

from ..errors import Error
from .arguments import FORM, Commands
from .model_checks import add_checked_model, checked_model
from .output import put_json

DOCTOR = """examples:
  conserva doctor                                         the bundled model
  conserva doctor path/to/model --text "a joy." --text "a bore."
  conserva doctor path/to/model --rules ah+ln --json

Runs four checks on a few inputs. The graph: every operation between the output and the inputs is linear or met its
rule. The ledger: it closes. The second opinion: with all frozen factors held, scaled inputs change the output as the
scores predict. Other attention: the scores are the same with eager and with fused attention. Ends with 1 if a check
fails."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "doctor", help="check whether a model's explanations can be trusted", epilog=DOCTOR, **FORM
    )
    add_checked_model(parser)
    parser.add_argument("--rules", default="exact", help="a rule set (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> None:
    from ..auditing.doctor import examine

    task, texts, target = checked_model(given)
    encoded = [task.encode(text) for text in texts]
    findings = examine(task.model, task.batch(encoded), [task.aim(target, one) for one in encoded], rules=given.rules)
    if given.json:
        whole = {"model": task.name, "rules": given.rules, "findings": [one.to_dict() for one in findings]}
        put_json(whole)
    else:
        from ..views.doctor import show

        show(task.name, given.rules, findings)
    failed = [one.check for one in findings if one.passed is False]
    if failed:
        raise Error(f"{task.name} failed {len(failed)} of {len(findings)} checks: {', '.join(failed)}.")

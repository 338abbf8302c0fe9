"""`conserva doctor`."""

from __future__ import annotations

import argparse

from ..errors import Error
from .auditing import TEXTS, check_is_asked_in_text
from .form import FORM, Commands
from .input_options import target_of
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
    parser.add_argument(
        "name", nargs="?", metavar="MODEL", help="a folder or hub name (default: the bundled sentiment)"
    )
    parser.add_argument("--model", help="the same, by name")
    parser.add_argument("--text", action="append", help="a text to check on; may be given several times")
    parser.add_argument("--target", help="a label, a class index, or a contrast 'a - b' (default: the highest score)")
    parser.add_argument("--rules", default="exact", help="a rule set (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_doctor)


def _doctor(given: argparse.Namespace) -> None:
    from ..auditing.doctor import examine
    from ..tasks.loading import load

    if given.name and given.model and given.name != given.model:
        raise Error(f"Two models are named, {given.name!r} and {given.model!r}: give one.")
    task = load(given.name or given.model or "sentiment")
    check_is_asked_in_text(task, given.text)
    encoded = [task.encode(text) for text in given.text or TEXTS]
    target = target_of(given.target, task)
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

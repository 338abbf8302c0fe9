"""What tests share: a result of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import conserva
import made_up_audits
import made_up_bias
import made_up_evaluations
import made_up_generations
import made_up_traces
from made_up_explanations import explanation

ONE = explanation(["[CLS]", "joy"])
OTHER = explanation(["[CLS]", "joy"], method="gae", ledger=None, probability=None)

RESULTS: dict[str, Callable[[], Any]] = {
    "Explanation": lambda: ONE,
    "Explanations": lambda: conserva.Explanations((ONE, OTHER)),
    "Comparison": lambda: conserva.Comparison((ONE, OTHER), {"a-flow": "needs maps"}),
    "Generation": made_up_generations.generation,
    "Trace": lambda: made_up_traces.SHOWN,
    "Audit": lambda: made_up_audits.audit(layers=1),
    "Evaluation": made_up_evaluations.evaluation,
    "BiasStudy": lambda: made_up_bias.study(mentions=24),
}

"""inseq: the rule sets as its attribution methods, and generations as its results.

Importing this module registers a method for each rule set: `conserva_exact`, `conserva_ah_ln`, `conserva_attnlrp` etc.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._util.extras import require
from ..engine.rules import RULE_SETS, RuleSet, rule_set
from ..errors import Error
from ..results.generation import Generation

require("conserva.integrations.inseq", "inseq")

from inseq import FeatureAttributionOutput  # noqa: E402
from inseq.attr import step_functions  # noqa: E402
from inseq.attr.feat.gradient_attribution import GradientAttributionRegistry  # noqa: E402
from inseq.data.attribution import (  # noqa: E402
    CoarseFeatureAttributionSequenceOutput,
    CoarseFeatureAttributionStepOutput,
)
from inseq.utils.typing import TokenWithId  # noqa: E402

from .captum import ConservativeAttribution  # noqa: E402

__all__ = ["METHODS", "to_inseq"]


class _Conservative:
    """A rule set as an attribution method: signed scores, one for each token."""

    rules: RuleSet
    attribution_model: Any

    def __init__(self, attribution_model: Any, **changes: str | float) -> None:
        super().__init__(attribution_model)  # type: ignore[call-arg]
        # The method, not the module: what follows the model, such as a contrast of logits, belongs to the target.
        self.method = ConservativeAttribution(attribution_model.forward, rule_set(self.rules, **changes))

    def attribute_step(
        self, attribute_fn_main_args: dict[str, Any], attribution_args: dict[str, Any] | None = None
    ) -> Any:
        """Return the relevance of each token for one generated token, and the deltas if they were requested."""
        self._check_padding(len(attribute_fn_main_args["inputs"][0]))
        try:
            step = super().attribute_step(attribute_fn_main_args, attribution_args or {})  # type: ignore[misc]
        except Error as error:
            others = attribute_fn_main_args["additional_forward_args"]
            advice = next((_ADVICE[arg] for arg in others if callable(arg) and arg in _ADVICE), None)
            if advice is None:
                raise
            raise Error(f"{error} {advice}") from None
        return CoarseFeatureAttributionStepOutput(
            source_attributions=_by_token(step.source_attributions),
            target_attributions=_by_token(step.target_attributions),
            step_scores=step.step_scores,
        )

    def _check_padding(self, samples: int) -> None:
        """Raise an `Error` if inseq would return the scores of the padding as those of the tokens."""
        model = self.attribution_model
        if samples > 1 and model.is_encoder_decoder and model.tokenizer.padding_side == "left":
            raise Error(
                "tokenizer.padding_side is 'left', and inseq reads the source texts of an encoder-decoder as padded on "
                "the right. Set model.tokenizer.padding_side = 'right': inseq.load_model sets it to 'left' for "
                "decoder-only models, also if they share the tokenizer."
            )


_ADVICE = {
    step_functions.probability_fn: "inseq attributes the probability by default: pass attributed_fn='logit'.",
    step_functions.contrast_prob_fn: "Pass attributed_fn='contrast_logits' instead of 'contrast_prob'.",
    step_functions.contrast_prob_diff_fn: "Pass attributed_fn='contrast_logits_diff' instead of 'contrast_prob_diff'.",
    step_functions.pcxmi_fn: "Pass attributed_fn='in_context_pvi' instead of 'pcxmi'.",
}
"""What to attribute instead of probabilities."""


def _method(rules: RuleSet) -> tuple[str, type]:
    name = f"conserva_{rules.name.replace('+', '_')}"
    contents = {"method_name": name, "rules": rules, "__doc__": f"{rules.summary}.", "__module__": __name__}
    return name, type(f"Conservative_{name}", (_Conservative, GradientAttributionRegistry), contents)


METHODS: dict[str, type] = dict(map(_method, RULE_SETS.values()))
"""The methods that are registered with inseq, by name."""


def to_inseq(generation: Generation) -> Any:
    """Return a generation as inseq's `FeatureAttributionOutput`, whose `save` writes inseq's JSON.

    The step scores are the probability of each token, the explained output, and the rest of its ledger: each column of
    the attributions, plus `positions`, `biases` and `gap`, is the output.

    Parameters
    ----------
    generation
        The result of `conserva.explain_generation`.

    Returns
    -------
    inseq.FeatureAttributionOutput
        One sequence, with token ids of -1: a generation has tokens as text.

    Examples
    --------
    >>> generation = conserva.explain_generation(task, "The capital of France is")  # doctest: +SKIP
    >>> to_inseq(generation).save("generation.json")  # doctest: +SKIP
    """
    if not isinstance(generation, Generation):
        raise Error(
            f"generation is {type(generation).__name__}: give a result of conserva.explain_generation(...), which has "
            "generated tokens."
        )
    source = generation.sections[0][1] if generation.sections else 0
    tokens = [TokenWithId(token, -1) for token in generation.features]
    scores = _columns(generation)
    first = generation.start - source
    sequence = CoarseFeatureAttributionSequenceOutput(
        source=tokens[:source] if source else tokens[: generation.start],
        target=tokens[source:],
        source_attributions=scores[:source] if source else None,
        target_attributions=scores[source:],
        step_scores=_step_scores(generation),
        sequence_scores={},
        attr_pos_start=first,
        attr_pos_end=first + len(generation.steps),
    )
    info = {
        "attribution_method": f"conserva {generation.method}",
        "attributed_fn": generation.score,
        "attribute_target": True,
        "attr_pos_start": first,
        "attr_pos_end": first + len(generation.steps),
        "model_name": generation.model,
        "input_texts": [generation.text],
        "generated_texts": [generation.written if source else generation.text + generation.written],
        "step_scores": list(sequence.step_scores),
    }
    return FeatureAttributionOutput(sequence_attributions=[sequence], info=info)


def _by_token(attributions: Tensor | None) -> Tensor | None:
    return None if attributions is None else attributions.sum(-1)


def _columns(generation: Generation) -> Tensor:
    """Return the scores as features x generated tokens, with nan for features after a token, as inseq has them."""
    many = len(generation.features)
    rows = [[*step.scores, *[math.nan] * (many - len(step.scores))] for step in generation.steps]
    return torch.tensor(rows, dtype=torch.float64).T.contiguous()


def _step_scores(generation: Generation) -> dict[str, Tensor]:
    steps = generation.steps
    scores = {"probability": [step.probability for step in steps], generation.score: [step.output for step in steps]}
    ledgers = [step.ledger for step in steps if step.ledger is not None]
    if len(ledgers) == len(steps):
        scores |= {name: [getattr(each, name) for each in ledgers] for name in ("positions", "biases", "gap")}
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in scores.items()}

"""A second opinion agrees with the scores, and disagrees where the engine or the model is broken on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
import zoo
from conserva.auditing import second_opinion
from conserva.auditing.doctor import examine
from conserva.auditing.second_opinion import verify
from conserva.cli import main
from conserva.engine.sources import Sources
from tiny import Classifier, HandWritten, Translator, bert, llama, shake, tokens
from zoo_types import MODEL_TYPES, WORKING, Narrowing, mixture, rules_for, shared

SETS = ("exact", "ah+ln", "attnlrp", "ah", "ln", "gi", "exact+res", "attnlrp+res")
MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "bert": (bert, tokens()),
    "llama": (llama, tokens()),
    "by hand": (HandWritten, torch.tensor([[1, 2, 3, 4]])),
    "nn.TransformerEncoder": (Classifier, torch.tensor([[1, 2, 3, 4], [4, 5, 6, 7]])),
    "nn.Transformer": (Translator, (torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 2]]))),
}


@pytest.mark.parametrize("rules", SETS)
@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_the_scores(name: str, rules: str) -> None:
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    # Llama's norms are in float32, which asks for a larger step.
    step = second_opinion.STEP if name == "llama" else 1e-4
    opinion = verify(shake(make().double()), inputs, 1, rules=rules, step=step)
    assert opinion.error < (1e-3 if name == "llama" else 1e-9)
    assert opinion.rebuilt < 1e-12


def test_inputs_that_are_numbers() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.out = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, pixels: Tensor) -> Tensor:
            x = self.up(pixels)
            return self.out(F.silu(x + F.scaled_dot_product_attention(x, x, x)).mean(1))

    torch.manual_seed(0)
    assert verify(Pixels().double(), torch.randn(2, 5, 4).double(), 1).error < 1e-10


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_every_type_of_the_zoo(specimen: zoo.Specimen) -> None:
    narrowing = Narrowing()
    try:
        model = shared(specimen, dtype=torch.float64)
        inputs = zoo.inputs(specimen, model, batch=1)
        with torch.no_grad(), narrowing:
            finite = bool(torch.isfinite(mixture(model(**inputs))).all())
    except RuntimeError:
        finite = False
    if not finite:  # in float64
        model = shared(specimen)
        inputs, narrowing.seen = zoo.inputs(specimen, model, batch=1), True
    if specimen.model_type == "canine":
        with pytest.raises(conserva.Error, match="not looked up in an embedding table"):
            verify(model, inputs, mixture)
        return
    opinion = verify(model, inputs, mixture, rules=rules_for(specimen, "exact"), directions=1)
    assert opinion.error < (5e-4 if narrowing.seen else 1e-9)


# What breaks an explanation without opening a gap.


class LooksUpTwice(HandWritten):
    """Adds the words a second time, through a list that torch cannot follow."""

    def forward(self, ids: Tensor) -> Tensor:
        again = torch.tensor(ids.tolist(), device=ids.device)
        return super().forward(ids) + self.out(self.words(again).mean(1))


def test_a_second_look_up_that_cannot_be_followed_shows() -> None:
    torch.manual_seed(0)
    model = shake(LooksUpTwice().double())
    opinion = verify(model, torch.tensor([[1, 2, 3, 4]]), 1)
    assert opinion.relevance.ledger.gap.abs().max() < 1e-12
    assert opinion.error > 0.01


def test_words_booked_as_constants_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if only the first look-up of an input counted."""
    looked_up = Sources.looked_up

    def first_alone(self: Sources, *args: Any, **kwargs: Any) -> Any:
        if self.leaves:
            return next(x for x in args if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 2)
        return looked_up(self, *args, **kwargs)

    class Twice(HandWritten):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) + self.out(self.words(ids.roll(1, 1)).mean(1))

    torch.manual_seed(0)
    model, ids = shake(Twice().double()), torch.tensor([[1, 2, 3, 4]])
    assert verify(model, ids, 1).error < 1e-10
    monkeypatch.setattr(Sources, "looked_up", first_alone)
    assert verify(model, ids, 1).error > 0.01


def test_a_model_that_changes_its_calls_is_refused() -> None:
    class Counting(HandWritten):
        calls = 0

        def forward(self, ids: Tensor) -> Tensor:
            self.calls += 1
            out = super().forward(ids)
            return out * torch.tanh(out) if self.calls > 3 else out

    with pytest.raises(conserva.Error, match="calls than in the first pass"):
        verify(shake(Counting().double()), torch.tensor([[1, 2, 3, 4]]), 1)


# The command.


def test_findings_on_a_sound_model() -> None:
    findings = {one.check: one for one in examine(bert(), tokens(), 1)}
    assert list(findings) == ["graph", "ledger", "second opinion", "other attention"]
    assert all(one.passed for one in findings.values())
    assert findings["second opinion"].figure < 1e-10
    under_ah = {one.check: one.passed for one in examine(bert(), tokens(), 1, rules="ah+ln")}
    assert under_ah == {"graph": True, "ledger": None, "second opinion": True, "other attention": True}


def test_findings_on_broken_models() -> None:
    torch.manual_seed(0)
    findings = {one.check: one for one in examine(shake(LooksUpTwice()), torch.tensor([[1, 2, 3, 4]]), 1)}
    assert findings["second opinion"].passed is False
    assert "do not use these scores" in findings["second opinion"].text
    assert findings["other attention"].passed is None
    refused = examine(
        nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(16, 2)), torch.tensor([[1, 2, 3, 4]]), 1
    )
    assert [(one.check, one.passed) for one in refused] == [("graph", False)]


def test_the_model_has_its_own_attention_again_afterwards() -> None:
    model = bert()
    before = model.config._attn_implementation
    examine(model, tokens(), 1)
    assert model.config._attn_implementation == before
    assert next(model.parameters()).dtype == torch.float32


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor", "--text", "a joy."]) == 0
    out = capsys.readouterr().out
    assert out.count("ok ") == 4
    assert "passed every check" in out
    assert main(["doctor", "--text", "a joy.", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "sentiment"
    assert [one["passed"] for one in found["findings"]] == [True] * 4
    monkeypatch.setattr(second_opinion.Opinion, "error", 0.5)
    assert main(["doctor", "--text", "a joy."]) == 1
    captured = capsys.readouterr()
    assert "FAILED" in captured.out
    assert "failed 1 of 4 checks: second opinion" in captured.err

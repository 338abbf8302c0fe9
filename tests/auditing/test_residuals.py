"""Cancellation and amplification at residual sums, against sums over plain tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import conserva
from conserva.auditing.result import Audit
from conserva.engine.operations.residual import code, shares
from conserva.engine.rules import rule_set
from tiny import shake


class Blocks(nn.Module):
    """Attention, and two residual layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)) for _ in range(2)])
        self.out = nn.Linear(6, 3)

    def states(self, x: Tensor) -> list[Tensor]:
        found = [F.scaled_dot_product_attention(x, x, x)]
        for layer in self.layers:
            found += [layer(found[-1]), found[-1]]
            found.append(found[-2] + found[-1])
        return found

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.states(x)[-1]).sum(1)


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact", "exact+res", "attnlrp+res"])
def test_sizes_of_parts_are_compared_with_those_of_sums(rules: str) -> None:
    torch.manual_seed(0)
    model, x = shake(Blocks()).double(), torch.randn(3, 4, 6).double()
    found = conserva.audit(model, x, 1, rules=rules)
    chosen = rule_set(rules)
    x.requires_grad_()
    with conserva.rules(rules):
        states = model.states(x)
        number = model.out(states[-1]).sum(1)[:, 1].sum()
    assert len(found.residuals) == 2
    for i, one in enumerate(found.residuals):
        a, b, z = states[3 * i + 1], states[3 * i + 2], states[3 * i + 3]
        grad = torch.autograd.grad(number, z, retain_graph=True)[0]
        of_a, of_b = (1.0, 1.0) if chosen.residual.differentiates else shares(code(a, b, 1.0), 1.0)
        cancellation = (a.abs().sum() + b.abs().sum()) / z.abs().sum()
        amplification = ((a * of_a * grad).abs().sum() + (b * of_b * grad).abs().sum()) / (z * grad).abs().sum()
        assert (one.cancellation, one.amplification) == pytest.approx((cancellation.item(), amplification.item()))
        assert (one.module, one.number, one.layer) == ("", i, "the model itself")
        assert one.amplification <= (one.cancellation * 10 if chosen.residual.differentiates else 3)  # 1 + 2 / gamma


def test_single_samples_and_batches_measure_the_same() -> None:
    task = conserva.load()
    texts = ["a joy from start to end.", "not much of anything."]
    both = conserva.audit(task, texts, "positive")
    single = [conserva.audit(task, text, "positive") for text in texts]
    assert [one.layer for one in both.residuals] == [f"bert.encoder.layer.{i // 2}" for i in range(8)]
    for one, *parts in zip(both.residuals, *(audit.residuals for audit in single), strict=True):
        assert min(part.cancellation for part in parts) - 1e-6 <= one.cancellation
        assert one.cancellation <= max(part.cancellation for part in parts) + 1e-6
    layers = both.cancelling()
    assert list(layers) == [f"bert.encoder.layer.{i}" for i in range(4)]
    first = both.residuals[:2]
    assert layers["bert.encoder.layer.0"] == (
        max(one.cancellation for one in first), max(one.amplification for one in first)
    )  # fmt: skip


def test_results_are_saved_and_older_ones_load() -> None:
    found = conserva.audit(conserva.load(), "a joy.")
    assert Audit.from_json(found.to_json()).residuals == found.residuals
    fields = json.loads(found.to_json())
    del fields["residuals"]
    assert Audit.from_json(json.dumps(fields)).residuals == ()


def test_they_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = conserva.audit(conserva.load(), "a joy.")
    found.show(full=True)
    shown = capsys.readouterr().out
    assert "Residual sums" in shown
    assert f"{found.cancelling()['bert.encoder.layer.0'][1]:.2f}" in shown
    without = Audit.from_json(json.dumps({**json.loads(found.to_json()), "residuals": []}))
    for audit, times in ((found, True), (without, False)):
        audit.save(tmp_path / "page.html")
        assert ("amplification" in (tmp_path / "page.html").read_text(encoding="utf-8")) == times

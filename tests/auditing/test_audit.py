"""The audit against numbers worked out by hand, against the propositions, and on every model of the zoo."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import conserva
import zoo
from conserva.auditing.result import layer_of
from tiny import Classifier, HandWritten, bert, llama, tokens
from zoo_types import MODEL_TYPES, WORKING, explained, made, mixture, rules_for, scale_of

NOT_WATCHED = {"groupvit": "its hard softmax is a straight-through estimator"}


CLOSE = {bert: 1e-9, llama: 1e-6}
"""A Llama's norms, and its softmax in eager attention, work in float32 whatever the model is in."""


class ByHand(nn.Module):
    """One place of attention that sees itself alone, then a linear layer and a tanh: everything can be worked out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out, self.read = nn.Embedding(3, 1), nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
        self.squash = nn.Tanh()
        with torch.no_grad():
            self.words.weight.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
            self.out.weight.fill_(0.5)
            self.out.bias.fill_(0.25)
            self.read.weight.fill_(2.0)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        x = torch.softmax(x @ x.transpose(1, 2), -1) @ x
        return self.read(self.squash(self.out(x[:, 0])))


def found(audit: conserva.Audit, module: str, kind: str) -> conserva.auditing.Component:
    (one,) = [one for one in audit.components if (one.module, one.kind) == (module, kind)]
    return one


def test_every_entry_equals_the_hand_computation() -> None:
    """x = 2, alone in its text: p = 1. u = 0.5 * 2 + 0.25 = 1.25, F = 2 tanh(u), dF/du = 2 (1 - tanh(u)^2)."""
    model = ByHand().double()
    tanh, slope = math.tanh(1.25), 2 * (1 - math.tanh(1.25) ** 2)
    audit = conserva.audit(model, {"input_ids": torch.tensor([[1]])}, 0, rules="gi")
    assert audit.output == pytest.approx(2 * tanh)
    assert audit.ledger.inputs == pytest.approx(1.0 * slope)  # x * dF/dx = 2 * 0.5 * slope
    assert audit.ledger.biases == pytest.approx(0.25 * slope)
    assert audit.ledger.gap == pytest.approx(2 * tanh - 1.25 * slope)
    read, squash, out = (
        found(audit, "read", "linear"),
        found(audit, "squash", "activation"),
        found(audit, "out", "linear"),
    )
    assert (read.entering, read.leaving, read.leak) == (
        pytest.approx(2 * tanh),
        pytest.approx(2 * tanh),
        pytest.approx(0),
    )
    assert (squash.entering, squash.leaving) == (pytest.approx(2 * tanh), pytest.approx(1.25 * slope))
    assert squash.leak == pytest.approx(2 * tanh - 1.25 * slope)
    assert (out.entering, out.leaving) == (pytest.approx(1.25 * slope), pytest.approx(1.0 * slope))
    assert (out.constants, out.leak) == (pytest.approx(0.25 * slope), pytest.approx(0, abs=1e-12))
    assert audit.ranked()[0] == squash


def test_attention_that_breaks_by_hand() -> None:
    """Two words, x = (1, 2), y = p1 x1 + p2 x2 read at the first: the break is 2 Cov(s, x), s = (1, 2)."""
    model = ByHand().double()
    ids = torch.tensor([[0, 1]])
    audit = conserva.audit(model, {"input_ids": ids}, lambda output: output[:, 0], rules="gi")
    p2 = math.exp(2) / (math.exp(1) + math.exp(2))
    y = (1 - p2) * 1 + p2 * 2
    slope = 2 * (1 - math.tanh(0.5 * y + 0.25) ** 2) * 0.5  # dF/dy
    covariance = p2 * (1 - p2)  # of (1, 2) with (1, 2)
    attention = found(audit, "", "attention")
    assert attention.entering == pytest.approx(y * slope)
    assert attention.leak == pytest.approx(-2 * covariance * slope)
    assert attention.leaving == pytest.approx((y + 2 * covariance) * slope)
    frozen = conserva.audit(model, {"input_ids": ids}, lambda output: output[:, 0], rules="ah")
    assert frozen.kinds().get("attention", 0.0) == pytest.approx(0, abs=1e-12)


def padded(model: nn.Module) -> dict[str, Tensor]:
    inputs = tokens(3, 6)
    for row, length in enumerate((6, 4, 5)):
        inputs["attention_mask"][row, length:] = 0
        inputs["input_ids"][row, length:] = 0
    return inputs


@pytest.mark.parametrize("rules", ["gi", "ah", "ln", "ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("build", [bert, llama], ids=["bert", "llama"])
def test_the_leaks_are_the_gap(build, rules: str) -> None:
    model = build().double()
    inputs = padded(model)
    audit = conserva.audit(model, inputs, [0, 1, 0], rules=rules)
    close = CLOSE[build]
    plain = conserva.relevance(model, inputs, [0, 1, 0], rules=rules)
    assert audit.output == pytest.approx(float(plain.output.mean()), abs=close)
    for entry in ("inputs", "positions", "biases", "gap"):
        assert getattr(audit.ledger, entry) == pytest.approx(float(getattr(plain.ledger, entry).mean()), abs=close)
    assert [ledger.gap for ledger in audit.ledgers] == pytest.approx(plain.ledger.gap.tolist(), abs=close)
    assert sum(one.leak for one in audit.components) == pytest.approx(audit.ledger.gap, abs=close)
    assert sum(one.constants for one in audit.components) == pytest.approx(
        audit.ledger.positions + audit.ledger.biases, abs=close
    )
    assert not [one for one in audit.components if one.function == "not watched"]
    for one in audit.components:
        assert one.entering == pytest.approx(one.leaving + one.constants + one.leak, abs=close)
    assert audit.coverage == tuple(plain.coverage)


@pytest.mark.parametrize("build", [bert, llama], ids=["bert", "llama"])
def test_what_each_rule_set_conserves(build) -> None:
    model = build().double()
    paper = conserva.audit(model, padded(model), 0, rules="ah+ln")
    for one in paper.components:
        if one.kind in ("attention", "norm", "linear", "other"):
            assert one.size <= 1e-6 * abs(paper.output), one  # a Llama's norms work in float32
    left = {kind for kind, leak in paper.kinds().items() if abs(leak) > 1e-6}
    assert left <= {"activation", "product"}
    assert left
    exact = conserva.audit(model, padded(model), 0, rules="exact")
    assert all(one.size <= 1e-6 * abs(exact.output) for one in exact.components)
    assert exact.gap_share() < 1e-5  # of the worst sample, whose output is small


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("build", [bert, llama], ids=["bert", "llama"])
def test_proposition_1_holds_for_every_head(build, kernel: str) -> None:
    model = build().double()
    model.set_attn_implementation(kernel)
    audit = conserva.audit(model, padded(model), 0, rules="gi")
    assert len(audit.heads) == 8
    for head in audit.heads:
        assert head.broke == pytest.approx(head.covariance, abs=CLOSE[build])
        assert head.values == pytest.approx(head.entering, abs=CLOSE[build])
    broke = {}
    for head in audit.heads:
        broke[head.module] = broke.get(head.module, 0.0) + head.broke
    for one in audit.components:
        if one.kind == "attention":
            assert one.leak == pytest.approx(-broke[one.module], abs=CLOSE[build])


@pytest.mark.parametrize("build", [bert, llama], ids=["bert", "llama"])
def test_proposition_2_holds_for_every_norm(build) -> None:
    model = build(layer_norm_eps=0.3) if build is bert else build(rms_norm_eps=0.3)
    model = model.double()
    audit = conserva.audit(model, padded(model), 0, rules="gi")
    assert len(audit.norms) == 5
    for norm in audit.norms:
        assert norm.leaving == pytest.approx(norm.predicted, abs=1e-6)
        assert abs(norm.predicted) > 1e-6
        assert len(norm.before) == len(norm.after) == 6
    frozen = conserva.audit(model, padded(model), 0, rules="ah+ln")
    for norm in frozen.norms:
        assert norm.leaving == pytest.approx(norm.entering, abs=1e-6)


def test_eager_and_fused_attention_break_alike() -> None:
    model, audits = bert().double(), []
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        audits.append(conserva.audit(model, padded(model), 0, rules="gi"))
    for a, b in zip(audits[0].heads, audits[1].heads, strict=True):
        assert (a.module, a.head) == (b.module, b.head)
        assert a.broke == pytest.approx(b.broke, abs=1e-9)
    for kind, leak in audits[0].kinds().items():
        assert leak == pytest.approx(audits[1].kinds()[kind], abs=1e-9)


@pytest.mark.parametrize("specimen", WORKING, ids=MODEL_TYPES)
def test_every_type_of_the_zoo(specimen: zoo.Specimen) -> None:
    model, inputs = made(specimen)
    scale = float(scale_of(model(**inputs)))
    for rules in ("gi", "exact"):
        named = rules_for(specimen, rules)
        audit = conserva.audit(model, inputs, mixture, rules=named)
        plain = explained(specimen) if rules == "exact" else conserva.relevance(model, inputs, mixture, rules=named)
        assert abs(audit.ledger.gap - float(plain.ledger.gap.mean())) <= 1e-4 * scale
        assert abs(sum(one.leak for one in audit.components) - audit.ledger.gap) <= 1e-3 * scale
        if specimen.model_type in NOT_WATCHED:
            continue
        assert not [one for one in audit.components if one.function == "not watched"]
        assert max((abs(head.broke - head.covariance) for head in audit.heads), default=0.0) <= 1e-3 * scale
        assert max((abs(norm.leaving - norm.predicted) for norm in audit.norms), default=0.0) <= 1e-3 * scale
        if rules == "exact":
            assert max(abs(one.leak) for one in audit.components) <= 1e-4 * scale


@pytest.mark.parametrize("rules", ["gi", "exact"])
@pytest.mark.parametrize("model", [HandWritten(), Classifier()], ids=["by hand", "nn.TransformerEncoder"])
def test_models_of_your_own(model: nn.Module, rules: str) -> None:
    model = model.eval().double()
    audit = conserva.audit(model, torch.randint(0, 50, (2, 5)), 1, rules=rules)
    if rules == "exact":
        assert max(one.size for one in audit.components) < 1e-9
    assert sum(one.leak for one in audit.components) == pytest.approx(audit.ledger.gap, abs=1e-9)
    assert not [one for one in audit.components if one.function == "not watched"]
    for head in audit.heads:
        assert head.broke == pytest.approx(head.covariance, abs=1e-9)


def test_a_task_and_its_texts() -> None:
    task = conserva.load()
    audit = conserva.audit(task, ["a joy.", "dull, dull, dull."], "positive", rules="ah+ln")
    assert (audit.model, audit.target, audit.samples, audit.rules) == ("sentiment", "positive", 2, "ah+ln")
    assert audit.ranked()[0].module == "bert.pooler.activation"  # the tanh, as in the paper's own model
    single = conserva.audit(task, "a joy.", "positive", rules="ah+ln")
    assert single.output == pytest.approx(audit.outputs[0], abs=1e-5)
    assert conserva.Audit.from_json(audit.to_json()) == audit


def test_the_model_is_untouched() -> None:
    model = bert()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    conserva.audit(model, padded(model), 0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_layers_are_named() -> None:
    assert layer_of("bert.encoder.layer.3.attention.self") == "bert.encoder.layer.3"
    assert layer_of("bert.pooler.dense") == "bert.pooler"
    assert layer_of("") == "the model itself"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: conserva.audit("sentiment", "a joy."), "neither a task nor"),
        (lambda: conserva.audit(bert(), tokens(), 9), "out of range"),
        (lambda: conserva.audit(bert(), tokens(), 0, rules="ahln"), "rules='ahln' is unknown"),
        (lambda: conserva.audit(conserva.load(), ""), "is empty"),
    ],
)
def test_wrong_calls(call, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        call()


def test_nan_weights_are_named() -> None:
    model = bert()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(conserva.Error, match=r"layer\.1\.output\.dense"):
        conserva.audit(model, tokens(), 0)


def test_saving_and_drawing(tmp_path: Path) -> None:
    audit = conserva.audit(conserva.load(), ["a joy.", "how dull."], "positive", rules="gi")
    for name in ("audit.json", "audit.html", "audit.png", "audit.svg"):
        assert audit.save(tmp_path / name).stat().st_size > 1000
    assert conserva.Audit.load(tmp_path / "audit.json") == audit
    audit.draw_norm("bert.encoder.layer.3.output.LayerNorm", tmp_path / "norm.png")
    audit.draw_scatter(tmp_path / "scatter.png")
    assert (tmp_path / "norm.png").stat().st_size > 1000
    assert (tmp_path / "scatter.png").stat().st_size > 1000
    with pytest.raises(conserva.Error, match=r"'\.doc'"):
        audit.save(tmp_path / "audit.doc")
    with pytest.raises(conserva.Error, match=r"no\.such\.norm"):
        audit.draw_norm("no.such.norm", tmp_path / "norm.png")

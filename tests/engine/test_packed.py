"""Weights of 8 or 4 bits: layers that unpack them give what the unpacked model gives, with a ledger that closes."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import conserva
from conserva.engine.module_tree import Modules
from conserva.engine.passes import Relevance
from conserva.engine.quantized import explicit_biases
from conserva.errors import NotApplicable

IDS = torch.randint(0, 40, (2, 7), generator=torch.Generator().manual_seed(0))


def llama(bias: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=40,
        attention_bias=bias,
        mlp_bias=bias,
    )
    model = LlamaForCausalLM(config).eval()
    for name, one in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(one)
    return model


class MatMul4Bit(torch.autograd.Function):
    """Stands in for the one of bitsandbytes: weights are unpacked inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        ctx.weight = packed.to(x.dtype) * scale
        return F.linear(x, ctx.weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] @ ctx.weight, None, None, grads[0].flatten(0, -2).sum(0) if ctx.needs_input_grad[3] else None


class Linear4bit(nn.Linear):
    """Stands in for the one of bitsandbytes."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        self.register_buffer("scale", layer.weight.detach().abs().amax() / 7)
        whole = (layer.weight.detach() / self.scale).round().to(torch.int8)
        self.weight, self.bias = nn.Parameter(whole, requires_grad=False), layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return MatMul4Bit.apply(x, self.weight, self.scale, self.bias)  # type: ignore[no-any-return]


def exchanged(model: nn.Module, make: Any) -> nn.Module:
    """Return a model whose linear layers, but the last, are others."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and "lm_head" not in name:
            owner, _, own = name.rpartition(".")
            setattr(model.get_submodule(owner), own, make(layer))
    return model


def split(model: nn.Module, rules: str = "exact") -> Relevance:
    return conserva.relevance(model, {"input_ids": IDS}, (-1, 5), rules=rules, ledger=True)


def same(found: Relevance, expected: Relevance) -> None:
    torch.testing.assert_close(found.scores(), expected.scores(), rtol=1e-4, atol=1e-5)
    assert found.ledger is not None
    assert expected.ledger is not None
    torch.testing.assert_close(found.ledger.biases, expected.ledger.biases, rtol=1e-4, atol=1e-5)
    assert found.ledger.gap.abs().max() < 1e-4


@pytest.fixture
def as_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stand-ins come from bitsandbytes."""
    monkeypatch.setitem(sys.modules, "bitsandbytes", sys.modules[__name__])
    monkeypatch.setattr(MatMul4Bit, "__module__", "bitsandbytes.autograd._functions")
    monkeypatch.setattr(Linear4bit, "__module__", "bitsandbytes.nn.modules")


def unpacked(model: nn.Module) -> nn.Module:
    def plain(layer: nn.Linear) -> nn.Linear:
        twin = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        twin.weight = nn.Parameter(layer.weight.float() * layer.scale)  # type: ignore[operator]
        twin.bias = layer.bias
        return twin

    return exchanged(model, plain)


@pytest.mark.usefixtures("as_bitsandbytes")
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact"])
def test_a_packed_model_is_explained_as_the_unpacked_one(rules: str, bias: bool, frozen: bool) -> None:
    model = exchanged(llama(bias), Linear4bit)
    if frozen:
        model.requires_grad_(False)
    found = split(model, rules)
    hooks = [one for module in model.modules() for one in module._forward_hooks]
    assert hooks == []
    expected = split(unpacked(model), rules)
    assert found.ledger is not None
    assert expected.ledger is not None
    torch.testing.assert_close(found.scores(), expected.scores(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.ledger.biases, expected.ledger.biases, rtol=1e-4, atol=1e-5)
    assert bool(found.ledger.biases.any()) == bias
    if rules == "exact":
        assert found.ledger.gap.abs().max() < 1e-4


@pytest.mark.usefixtures("as_bitsandbytes")
def test_two_threads_explain_one_model() -> None:
    model = exchanged(llama(True), Linear4bit)
    expected, own, found = split(model), threading.get_ident(), []

    def start(*_: Any) -> None:
        if threading.get_ident() == own:
            other = threading.Thread(target=lambda: found.append(split(model)))
            other.start()
            other.join()

    handle = model.model.layers[1].register_forward_pre_hook(start)  # type: ignore[operator, union-attr, index]
    found.append(split(model))
    handle.remove()
    assert len(found) == 2
    for one in found:
        same(one, expected)


@pytest.mark.usefixtures("as_bitsandbytes")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_outputs_are_what_they_were_in_every_precision(dtype: torch.dtype) -> None:
    plain = nn.Linear(64, 128)
    nn.init.normal_(plain.bias)
    layer, x = Linear4bit(plain).to(dtype), torch.randn(50, 64, dtype=dtype)
    with torch.no_grad():
        expected = layer(x)
        with explicit_biases(Modules.of(layer)):
            found = layer(x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("as_bitsandbytes")
def test_a_hook_that_changes_an_output_changes_its_bias_too() -> None:
    model = exchanged(llama(True), Linear4bit)
    handle = model.get_submodule("model.layers.0.mlp.down_proj").register_forward_hook(lambda *given: 3 * given[2])
    found = split(model)
    handle.remove()
    assert found.ledger is not None
    assert found.ledger.gap.abs().max() < 1e-4


@pytest.mark.usefixtures("as_bitsandbytes")
def test_a_subclass_is_such_a_layer_too() -> None:
    class Another(Linear4bit):
        pass

    model = exchanged(llama(True), Another)
    same(split(model), split(unpacked(model)))


@pytest.mark.usefixtures("as_bitsandbytes")
def test_a_bias_that_is_elsewhere_is_refused() -> None:
    model = exchanged(llama(True), Linear4bit)
    layer: Any = model.get_submodule("model.layers.0.mlp.down_proj")
    bias = layer.bias.detach()

    def loaded(*_: Any) -> None:
        layer.bias = nn.Parameter(bias)

    def away(*_: Any) -> None:
        layer.bias = nn.Parameter(bias.to("meta"))

    forward = layer.forward

    def offloaded(x: Tensor) -> Tensor:
        loaded()
        found: Tensor = forward(x)
        away()
        return found

    layer.forward = offloaded
    with pytest.raises(NotApplicable, match="is offloaded: load the whole model"):
        split(model)


def test_functions_of_others_with_that_name_are_refused() -> None:
    with pytest.raises(NotApplicable, match="is a foreign autograd function"):
        split(exchanged(llama(True), Linear4bit))


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("bias", [True, False])
def test_bitsandbytes_itself(kind: str, bias: bool) -> None:
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

    def packed(layer: nn.Linear) -> nn.Module:
        shape = (layer.in_features, layer.out_features, layer.bias is not None)
        if kind == "nf4":
            made = bnb.nn.Linear4bit(*shape, quant_type="nf4", compute_dtype=torch.float32)
        else:
            made = bnb.nn.Linear8bitLt(*shape, has_fp16_weights=False)
        made.load_state_dict(layer.state_dict())
        return made.to("cpu")  # type: ignore[no-any-return]

    def plain(layer: Any) -> nn.Linear:
        twin = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        if kind == "nf4":
            weight = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        else:
            weight = layer.state.CB.float() * layer.state.SCB[:, None] / 127
        twin.weight, twin.bias = nn.Parameter(weight.float()), layer.bias
        return twin

    model = exchanged(llama(bias), packed)
    found = split(model)
    same(found, split(exchanged(model, plain)))


@pytest.mark.parametrize("merged", [True, False])
def test_adapters_of_peft(merged: bool) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    model = peft.get_peft_model(llama(True), config).eval()
    found = split(model)
    if merged:
        same(found, split(model.merge_and_unload()))
    else:
        with model.disable_adapter():
            same(split(model), split(llama(True)))


def test_weights_alone_by_torchao() -> None:
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model, twin = llama(True), llama(True)
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            twin.get_submodule(name).weight = nn.Parameter(layer.weight.dequantize())
    same(split(model), split(twin))

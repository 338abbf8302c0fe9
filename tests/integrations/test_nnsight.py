"""nnsight: the rules apply in its traces, whose forward pass stays bit for bit that of the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("nnsight", reason="nnsight is not installed")

from nnsight import NNsight, TransformersModel

import conserva
from conserva.engine.context import current
from language import byte_tokenizer, language_model
from pages_of_code import run_page

CLOSE = {"rtol": 1e-9, "atol": 1e-12}
EXACTLY = {"rtol": 0, "atol": 0}
IDS = torch.randint(5, 99, (2, 7), generator=torch.Generator().manual_seed(0))
NAMES = {
    "gpt2": ("transformer.wte", "transformer.h.0", "transformer.h.1.mlp"),
    "llama": ("model.embed_tokens", "model.layers.0", "model.layers.1.mlp.act_fn"),
}


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    assert current() is None
    assert torch.overrides._get_current_function_mode_stack() == []


def wrapped(kind: str = "llama", by: str = "NNsight") -> Any:
    model = language_model(kind)
    if by == "NNsight":
        return NNsight(model)
    return TransformersModel(model, tokenizer=byte_tokenizer(pad_token="<end>"), task="text-generation")


def chosen(output: Any) -> Tensor:
    return output.logits[:, -1, 3]


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def compare(kind: str, rules: str, logits: Tensor, tensors: list[Tensor], gradients: Any = None) -> None:
    """Compare a trace with the plain model: its logits bit for bit, gradients x activations with the relevance."""
    plain = language_model(kind)
    assert torch.equal(logits, plain(IDS).logits)
    if gradients is None:
        gradients = torch.autograd.grad(logits[:, -1, 3].sum(), tensors)
    expected = conserva.relevance(plain, IDS, chosen, rules=rules, at=["inputs", *NAMES[kind]])
    for name, x, gradient in zip(NAMES[kind], tensors, gradients, strict=True):
        assert expected.values[name].any()
        torch.testing.assert_close((x * gradient).detach(), expected.values[name], **CLOSE)


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("by", ["NNsight", "TransformersModel"])
@pytest.mark.parametrize("kind", NAMES)
def test_rules_around_a_trace(kind: str, by: str, rules: str) -> None:
    model = wrapped(kind, by)
    a, b, c = (model.get(name) for name in NAMES[kind])
    with conserva.rules(rules):
        with model.trace(IDS):
            x = a.output.requires_grad_().save()
            hidden = first(b.output).save()
            inner = c.output.save()
            logits = model.output.logits.save()
        assert current() is not None
    compare(kind, rules, logits, [x, hidden, inner])


@pytest.mark.parametrize("kind", NAMES)
def test_rules_in_the_same_statement_and_inside_the_block(kind: str) -> None:
    model = wrapped(kind)
    a, b, c = (model.get(name) for name in NAMES[kind])
    with conserva.rules("exact"), model.trace(IDS):
        x = a.output.requires_grad_().save()
        hidden = first(b.output).save()
        inner = c.output.save()
        logits = model.output.logits.save()
    compare(kind, "exact", logits, [x, hidden, inner])
    with model.trace(IDS):  # noqa: SIM117
        with conserva.rules("exact"):
            x = a.output.requires_grad_().save()
            hidden = first(b.output).save()
            inner = c.output.save()
            logits = model.output.logits.save()
    compare(kind, "exact", logits, [x, hidden, inner])


@pytest.mark.parametrize("where", ["inside", "after"])
def test_gradients_by_nnsights_own_backward(where: str) -> None:
    model = wrapped()
    a, b, c = (model.get(name) for name in NAMES["llama"])
    if where == "inside":
        with conserva.rules("exact"), model.trace(IDS):
            x = a.output.requires_grad_().save()
            hidden = b.output.save()
            inner = c.output.save()
            logits = model.output.logits.save()
            with logits[:, -1, 3].sum().backward():
                at_inner, at_hidden, at_x = inner.grad.save(), hidden.grad.save(), x.grad.save()
    else:
        with model.trace(IDS):
            with conserva.rules("exact"):
                x = a.output.requires_grad_().save()
                hidden = b.output.save()
                inner = c.output.save()
                logits = model.output.logits.save()
            with logits[:, -1, 3].sum().backward():
                at_inner, at_hidden, at_x = inner.grad.save(), hidden.grad.save(), x.grad.save()
    compare("llama", "exact", logits, [x, hidden, inner], [at_x, at_hidden, at_inner])


def test_a_prompt_as_text() -> None:
    model = wrapped("gpt2", "TransformersModel")
    prompt = "The capital of France is"
    with conserva.rules("exact"), model.trace(prompt):
        x = model.transformer.wte.output.requires_grad_().save()
        logits = model.output.logits.save()
    gradient = torch.autograd.grad(logits[0, -1, 3], x)[0]
    plain, inputs = language_model("gpt2"), byte_tokenizer()(prompt, return_tensors="pt")
    assert torch.equal(logits, plain(**inputs).logits)
    expected = conserva.relevance(plain, inputs, chosen).values["input_ids"]
    torch.testing.assert_close((x * gradient).detach(), expected, **CLOSE)


def test_several_prompts_in_one_trace() -> None:
    model = wrapped(by="TransformersModel")
    with conserva.rules("exact"), model.trace() as tracer:
        with tracer.invoke(IDS[:1]):
            one = model.model.embed_tokens.output.detach().requires_grad_().save()
            model.model.embed_tokens.output = one
            of_one = model.output.logits.save()
        with tracer.invoke(IDS[1:]):
            two = model.model.embed_tokens.output.detach().requires_grad_().save()
            model.model.embed_tokens.output = two
            of_two = model.output.logits.save()
    plain = language_model("llama")
    assert torch.equal(torch.cat([of_one, of_two]), plain(IDS).logits)
    found = torch.autograd.grad((of_one[0, -1, 3] + of_two[0, -1, 3]), [one, two])
    expected = conserva.relevance(plain, IDS, chosen).values["input_ids"]
    torch.testing.assert_close(torch.cat([one * found[0], two * found[1]]).detach(), expected, **CLOSE)


def test_operations_inside_a_module() -> None:
    model = wrapped()
    attention = model.model.layers[0].self_attn
    with conserva.rules("exact"), model.trace(IDS):
        x = model.model.embed_tokens.output.requires_grad_().save()
        heads = attention.source.attention_interface_1.output[0].save()
        logits = model.output.logits.save()
    at_x, at_heads = torch.autograd.grad(logits[:, -1, 3].sum(), [x, heads])
    result = conserva.relevance(language_model("llama"), IDS, chosen, at=["inputs", "model.layers.0.self_attn.o_proj"])
    torch.testing.assert_close((x * at_x).detach(), result.values["input_ids"], **CLOSE)
    projected = result.values["model.layers.0.self_attn.o_proj"]  # which has no bias
    torch.testing.assert_close((heads * at_heads).detach().sum((2, 3)), projected.sum(2), **CLOSE)


def test_edits_are_part_of_the_forward_pass() -> None:
    model = wrapped("gpt2")
    with conserva.rules("exact"), model.trace(IDS):
        x = model.transformer.wte.output.requires_grad_().save()
        model.transformer.h[0].mlp.output[:, 3] = 0
        logits = model.output.logits.save()
    gradient = torch.autograd.grad(logits[:, -1, 3].sum(), x)[0]
    plain = language_model("gpt2")
    unedited = plain(IDS).logits

    def edit(module: Any, args: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, 3] = 0
        return output

    plain.transformer.h[0].mlp.register_forward_hook(edit)
    assert torch.equal(logits, plain(IDS).logits)
    assert not torch.equal(logits, unedited)
    expected = conserva.relevance(plain, IDS, chosen)
    assert expected.ledger.gap.abs().max() < 1e-12
    torch.testing.assert_close((x * gradient).detach(), expected.values["input_ids"], **CLOSE)


def test_generation_is_unchanged() -> None:
    model = wrapped(by="TransformersModel")
    with model.generate(IDS[:1], max_new_tokens=3) as tracer:
        expected = tracer.result.save()
    with conserva.rules("exact"), model.generate(IDS[:1], max_new_tokens=3) as tracer:
        found = tracer.result.save()
    assert torch.equal(found, expected)


# What is refused.


def test_a_trace_without_a_start_of_the_gradient_is_an_error() -> None:
    model = wrapped()
    with conserva.rules("exact"), model.trace(IDS):
        logits = model.output.logits.save()
    with pytest.raises(RuntimeError, match="does not require grad"):
        logits.sum().backward()


def test_rules_after_the_trace_in_one_statement_are_refused() -> None:
    model = wrapped()

    def run() -> None:
        with model.trace(IDS), conserva.rules("exact"):  # the rules would end before the block is run
            model.output.logits.save()

    with pytest.raises(conserva.Error, match=r"write the rules first, as in `with conserva\.rules"):
        run()


def test_rules_in_each_of_two_invokes_are_refused() -> None:
    model = wrapped(by="TransformersModel")

    def run() -> None:
        with model.trace() as tracer:
            with tracer.invoke(IDS[:1]):  # noqa: SIM117
                with conserva.rules("exact"):
                    model.model.layers[0].output.save()
            with tracer.invoke(IDS[1:]):  # noqa: SIM117
                with conserva.rules("exact"):
                    model.output.logits.save()

    with pytest.raises(conserva.Error, match="open one context around all of them"):
        run()


def test_an_error_in_a_block_leaves_no_rules_behind() -> None:
    model = wrapped()

    def around() -> None:
        with conserva.rules("exact"), model.trace(IDS):
            model.output.logits.nonsense()

    def inside() -> None:
        with model.trace(IDS):  # noqa: SIM117
            with conserva.rules("exact"):
                model.model.layers[0].output.nonsense()

    for run in (around, inside):
        with pytest.raises(AttributeError, match="nonsense"):
            run()


def test_the_wrapper_is_refused_and_the_wrapped_module_is_explained_as_before() -> None:
    model, plain = wrapped("gpt2"), language_model("gpt2")
    with pytest.raises(conserva.Error, match=r"is not a torch\.nn\.Module"):
        conserva.relevance(model, IDS, chosen)
    inputs = (IDS, None, torch.ones_like(IDS))  # without names: ids, past_key_values, attention_mask
    expected, found = (
        conserva.relevance(each, inputs, chosen, at=["inputs", "transformer.h.0"]) for each in (plain, model._module)
    )
    assert list(found.values) == ["input_ids", "transformer.h.0"]
    for name in expected.values:
        torch.testing.assert_close(found.values[name], expected.values[name], **EXACTLY)
    assert list(found.coverage) == list(expected.coverage)


@pytest.mark.filterwarnings("ignore:Module .* has a submodule named 'output'")
def test_the_page_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run_page(Path(__file__).parents[2] / "docs" / "doors" / "nnsight.md", capsys)

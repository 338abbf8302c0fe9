"""TransformerLens: a bridge is explained like the model inside it, and relevance is read at its hook points."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformer_lens", reason="transformer_lens is not installed")

from transformer_lens import TransformerBridge
from transformer_lens.model_bridge.sources import build_bridge_from_module

import conserva
import zoo
from conserva.integrations import transformer_lens as door
from conserva.integrations.transformer_lens import relevance_at_hooks
from language import language_model
from pages_of_code import run_page

CLOSE = {"rtol": 1e-6, "atol": 1e-6}
IDS = torch.randint(40, 99, (2, 7), generator=torch.Generator().manual_seed(1))
TARGET = (-1, 50)


def bridge_of(model: Any) -> Any:
    return build_bridge_from_module(model, type(model).__name__, hf_config=model.config)


def bridged(kind: str = "gpt2") -> Any:
    return bridge_of(language_model(kind))


def at_last(output: Any) -> Tensor:
    return (output if isinstance(output, Tensor) else output.logits)[:, -1, 50]


# A bridge is explained like its model.

ARCHITECTURES = {
    "AutoModelForCausalLM": """falcon gemma2 gemma3_text gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite llama mistral
    mixtral olmo2 opt phi phi3 qwen2 qwen3""",
    "AutoModelForMaskedLM": "bert roberta",
    "AutoModelForSeq2SeqLM": "bart t5",
}


@pytest.mark.parametrize(
    ("auto_class", "kind"), [(auto, kind) for auto, kinds in ARCHITECTURES.items() for kind in kinds.split()]
)
def test_a_bridge_is_explained_like_its_model(auto_class: str, kind: str) -> None:
    specimen = zoo.Specimen(kind, auto_class, "decoder")
    plain, inside = (zoo.build(specimen, dtype=torch.float64, attn_implementation="eager") for _ in range(2))
    more = {"decoder_input_ids": IDS.flip(-1)} if auto_class == "AutoModelForSeq2SeqLM" else {}
    expected = conserva.relevance(plain, {"input_ids": IDS, **more}, at_last)
    bridge = bridge_of(inside)
    with torch.no_grad():
        output = bridge(IDS, **more)
    torch.testing.assert_close(output, plain(IDS, **more).logits.detach(), **CLOSE)
    result = conserva.relevance(bridge, {"input": IDS, **more}, at_last)
    assert torch.equal(result.output, output[:, -1, 50])
    torch.testing.assert_close(result.scores("input"), expected.scores("input_ids"), **CLOSE)
    torch.testing.assert_close(result.ledger.positions, expected.ledger.positions, **CLOSE)
    torch.testing.assert_close(result.ledger.biases, expected.ledger.biases, **CLOSE)
    assert result.ledger.gap_share.max() < 1e-4
    assert {entry.rule for entry in result.coverage if entry.kind == "attention"} >= {"freeze"}


SETTINGS = ("set_use_attn_result", "set_use_split_qkv_input", "set_use_attn_in", "set_use_hook_mlp_in")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_settings_of_a_bridge_do_not_change_relevance(kind: str, setting: str) -> None:
    bridge = bridged(kind)
    expected = conserva.relevance(bridge, IDS, TARGET)
    getattr(bridge, setting)(True)
    result = conserva.relevance(bridge, IDS, TARGET)
    torch.testing.assert_close(result.scores(), expected.scores(), **CLOSE)
    assert result.ledger.gap_share.max() < 1e-6


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_compatibility_mode_explains_the_folded_weights(kind: str) -> None:
    bridge = bridged(kind)
    before = conserva.relevance(bridge, IDS, TARGET)
    bridge.enable_compatibility_mode(disable_warnings=True)
    result = relevance_at_hooks(bridge, IDS, TARGET, hooks="blocks.0.hook_resid_post")
    with torch.no_grad():
        assert torch.equal(result.output, bridge(IDS)[:, -1, 50])
    assert result.ledger.gap_share.max() < 1e-6
    assert not torch.allclose(result.scores(), before.scores(), **CLOSE)  # logits are centred


def test_masked_positions_get_exactly_zero() -> None:
    bridge, plain = bridged(), language_model("gpt2")
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    result = relevance_at_hooks(
        bridge, {"input": IDS, "attention_mask": mask}, TARGET, hooks="blocks.0.hook_resid_post"
    )
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    positions[0, :3] = 1  # as the bridge numbers them
    expected = conserva.relevance(plain, {"input_ids": IDS, "attention_mask": mask, "position_ids": positions}, at_last)
    torch.testing.assert_close(result.scores(), expected.scores(), **CLOSE)
    assert not result.scores()[0, :3].any()
    assert not result.values["blocks.0.hook_resid_post"][0, :3].any()


# Hook points.

MODULES = {
    "gpt2": {
        "hook_embed": "transformer.wte",
        "blocks.0.hook_resid_post": "transformer.h.0",
        "blocks.0.hook_attn_out": "transformer.h.0.attn.c_proj",
        "blocks.1.hook_mlp_out": "transformer.h.1.mlp",
        "blocks.1.mlp.hook_pre": "transformer.h.1.mlp.c_fc",
        "blocks.1.mlp.hook_post": "transformer.h.1.mlp.act",
        "blocks.0.ln2.hook_out": "transformer.h.0.ln_2",
        "ln_final.hook_out": "transformer.ln_f",
    },
    "llama": {
        "hook_embed": "model.embed_tokens",
        "blocks.0.hook_resid_post": "model.layers.0",
        "blocks.0.attn.hook_q": "model.layers.0.self_attn.q_proj",
        "blocks.0.attn.hook_v": "model.layers.0.self_attn.v_proj",
        "blocks.0.hook_attn_out": "model.layers.0.self_attn.o_proj",
        "blocks.1.hook_mlp_out": "model.layers.1.mlp",
        "blocks.1.mlp.hook_pre": "model.layers.1.mlp.gate_proj",
        "blocks.1.mlp.hook_pre_linear": "model.layers.1.mlp.up_proj",
        "ln_final.hook_out": "model.norm",
    },
}


def modules_for(kind: str, rules: str) -> dict[str, str]:
    """Return hook points that have relevance under some rules, with the modules whose outputs they are."""
    return {hook: name for hook, name in MODULES[kind].items() if rules in ("attnlrp", "gi") or hook[-1] != "q"}


@pytest.mark.parametrize("rules", ["gi", "ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("kind", MODULES)
def test_relevance_at_hook_points_is_that_at_modules_of_the_plain_model(kind: str, rules: str) -> None:
    bridge, modules = bridged(kind), modules_for(kind, rules)
    _, cache = bridge.run_with_cache(IDS)
    result = relevance_at_hooks(bridge, IDS, TARGET, hooks=list(modules), rules=rules)
    plain = language_model(kind, attn_implementation="eager")
    expected = conserva.relevance(plain, IDS, at_last, rules=rules, at=["inputs", *modules.values()])
    # The epsilon of `attnlrp` is applied to queries, keys and values apart, where GPT-2 has one product for all.
    close = {"rtol": 1e-3, "atol": 1e-4} if (kind, rules) == ("gpt2", "attnlrp") else CLOSE
    assert list(result.values) == ["input", *modules]
    torch.testing.assert_close(result.scores(), expected.scores(), **close)
    for hook, name in modules.items():
        assert result.values[hook].shape == cache[hook].shape
        torch.testing.assert_close(result.values[hook].flatten(2), expected.values[name].flatten(2), **close)


@pytest.mark.parametrize("rules", ["ah+ln", "exact", "attnlrp"])
@pytest.mark.parametrize("kind", MODULES)
def test_inside_the_rules_the_forward_pass_is_unchanged_and_hooks_have_the_same_gradients(
    kind: str, rules: str
) -> None:
    bridge, hooks = bridged(kind), list(modules_for(kind, rules))
    logits, cache = bridge.run_with_cache(IDS)
    with conserva.rules(rules):
        inside, cached = bridge.run_with_cache(IDS)
    assert torch.equal(inside, logits)
    assert list(cached) == list(cache)
    assert all(torch.equal(cached[name], cache[name]) for name in cache)
    kept = {}

    def keep(x: Tensor, hook: Any) -> Tensor:
        kept[hook.name] = x if kept else x.detach().requires_grad_()  # the first is the embedding
        return kept[hook.name]

    with conserva.rules(rules), bridge.hooks(fwd_hooks=[(hook, keep) for hook in hooks]):
        inside = bridge(IDS)
    assert torch.equal(inside, logits)
    names = [bridge.hook_dict[hook].name for hook in hooks]
    gradients = torch.autograd.grad(inside[:, -1, 50].sum(), [kept[name] for name in names])
    result = relevance_at_hooks(bridge, IDS, TARGET, hooks=hooks, rules=rules)
    for hook, name, gradient in zip(hooks, names, gradients, strict=True):
        torch.testing.assert_close((kept[name] * gradient).detach(), result.values[hook], **CLOSE)


def test_gradients_cached_by_the_bridge() -> None:
    bridge, ids = bridged("llama"), IDS[:1]
    name = "blocks.1.hook_resid_post"
    with (
        conserva.rules("exact"),
        bridge.hooks(fwd_hooks=[("hook_embed", lambda x, hook: x.detach().requires_grad_())]),
        pytest.warns(UserWarning, match=r"Full backward hook is firing|None of the inputs have requires_grad"),
    ):
        _, cache = bridge.run_with_cache(ids, return_type="loss", incl_bwd=True, names_filter=["hook_embed", name])
    result = relevance_at_hooks(
        bridge, ids, lambda logits: bridge.loss_fn(logits, ids, per_token=True).mean(-1), hooks=name
    )
    torch.testing.assert_close(cache[name] * cache[f"{name}_grad"], result.values[name], **CLOSE)


def test_one_name_an_alias_and_a_hook_point_that_fires_once_for_each_head() -> None:
    bridge = bridged()
    bridge.set_use_attn_result(True)
    same = ["blocks.0.hook_resid_post", "blocks.0.hook_out"]
    result = relevance_at_hooks(bridge, IDS, TARGET, hooks=[*same, "blocks.0.attn.hook_result"])
    assert torch.equal(*(result.values[name] for name in same))
    heads = result.scores("blocks.0.attn.hook_result")
    assert heads.shape == (2, 7, 4)
    result = relevance_at_hooks(bridge, IDS, TARGET, hooks="blocks.0.attn.hook_z")
    torch.testing.assert_close(result.scores("blocks.0.attn.hook_z"), heads)  # nothing but a product is between them


# Edited runs.


def ablate(z: Tensor, hook: Any) -> Tensor:
    z[:, :, 2] = 0
    return z


def steer(x: Tensor, hook: Any) -> Tensor:
    return x + torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)


EDITS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "a head is ablated in place": ("blocks.0.attn.hook_z", ablate),
    "a direction is added": ("blocks.0.hook_resid_post", steer),
    "positions are swapped": ("blocks.0.hook_mlp_out", lambda x, hook: x.flip(1)),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_edited_runs_are_explained_as_they_are(kind: str, name: str) -> None:
    bridge, edit = bridged(kind), EDITS[name]
    unedited = relevance_at_hooks(bridge, IDS, TARGET, hooks=edit[0])
    with bridge.hooks(fwd_hooks=[edit]):
        with torch.no_grad():
            output = bridge(IDS)[:, -1, 50]
        result = relevance_at_hooks(bridge, IDS, TARGET, hooks=edit[0])
    assert torch.equal(result.output, output)
    assert not torch.equal(output, unedited.output)
    assert result.ledger.gap_share.max() < 1e-6
    if edit[1] is ablate:  # read after the edit
        assert not result.scores(edit[0])[:, :, 2].any()
        assert result.scores(edit[0])[:, :, 1].any()
    if edit[1] is steer:
        assert result.modules["blocks.0.hook_out"].abs().min() > 1e-3  # the constant is in the ledger
    assert torch.equal(relevance_at_hooks(bridge, IDS, TARGET, hooks=edit[0]).output, unedited.output)


def test_a_patched_constant_cuts_the_path_and_a_detached_one_is_refused() -> None:
    bridge = bridged()
    with bridge.hooks(fwd_hooks=[("blocks.1.attn.hook_z", lambda z, hook: torch.ones_like(z))]):
        result = relevance_at_hooks(bridge, IDS, TARGET, hooks="blocks.0.hook_resid_post")
    assert result.ledger.gap_share.max() < 1e-6
    with (
        bridge.hooks(fwd_hooks=[("blocks.1.hook_mlp_out", lambda x, hook: x.detach())]),
        pytest.raises(conserva.Error, match="computes a value from its input without a gradient"),
    ):
        relevance_at_hooks(bridge, IDS, TARGET, hooks="blocks.0.hook_resid_post")


# What is refused, in words.

REFUSED: dict[str, tuple[str, str, str, str]] = {
    "an unknown name": ("gpt2", "blocks.0.hook_resid_pots", "gi", r"not a hook point.* 'blocks.0.hook_resid_post'\?"),
    "token ids": ("gpt2", "embed.hook_in", "gi", "no floating-point activation"),
    "position embeddings": ("gpt2", "hook_pos_embed", "exact", "is a constant under rules='exact'"),
    "frozen probabilities": ("llama", "blocks.0.attn.hook_pattern", "exact", "is a constant under rules='exact'"),
    "cosines": ("llama", "rotary_emb.hook_cos", "attnlrp", "is a constant under rules='attnlrp'"),
    "a norm of Hugging Face": ("llama", "blocks.0.ln1.hook_normalized", "gi", "only for its hooks"),
    "its scale": ("llama", "ln_final.hook_scale", "gi", "only for its hooks"),
    "frozen queries": ("llama", "blocks.0.attn.hook_q", "exact", "No relevance reaches 'blocks.0.attn.hook_q'"),
    "a hook point that is off": ("gpt2", "blocks.0.attn.hook_result", "exact", r"did not fire.*set_use_attn_result"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hook_points_without_relevance_are_refused(name: str) -> None:
    kind, hook, rules, says = REFUSED[name]
    bridge = bridged(kind)
    with pytest.raises(conserva.Error, match=says):
        relevance_at_hooks(bridge, IDS, TARGET, hooks=["blocks.0.hook_resid_post", hook], rules=rules)
    assert not any(module._forward_hooks for module in bridge.modules())


def test_a_copy_beside_the_forward_pass_is_refused() -> None:
    specimen = zoo.Specimen("t5", "AutoModelForSeq2SeqLM", "decoder")
    bridge = bridge_of(zoo.build(specimen, dtype=torch.float64, attn_implementation="eager"))
    hook = "encoder_blocks.0.attn.hook_attn_scores"
    inputs = {"input": IDS, "decoder_input_ids": IDS}
    assert hook in bridge.hook_dict
    with pytest.raises(conserva.Error, match="the output does not depend on it"):
        relevance_at_hooks(bridge, inputs, at_last, hooks=hook, rules="attnlrp")


def test_queries_and_probabilities_have_relevance_where_the_rules_differentiate_attention() -> None:
    hooks = ["blocks.0.attn.hook_q", "blocks.0.attn.hook_pattern", "blocks.0.attn.hook_attn_scores"]
    for kind in ("gpt2", "llama"):
        result = relevance_at_hooks(bridged(kind), IDS, TARGET, hooks=hooks, rules="attnlrp")
        assert all(result.values[hook].any() for hook in hooks)


def test_what_is_no_bridge_is_refused() -> None:
    for given in (language_model("gpt2"), nn.Linear(2, 2), "gpt2"):
        with pytest.raises(conserva.Error, match=f"bridge is {type(given).__name__}, which has no hook points"):
            relevance_at_hooks(given, IDS, TARGET, hooks="hook_embed")
    bridge: Any = bridged()
    with pytest.raises(conserva.Error, match="has no tensor"):
        relevance_at_hooks(bridge, "a text", TARGET, hooks="hook_embed")
    with pytest.raises(conserva.Error, match="give the name of a hook point, or a list of names"):
        relevance_at_hooks(bridge, IDS, TARGET, hooks=lambda name: True)  # as names_filter of run_with_cache
    with pytest.raises(conserva.Error, match="hooks=3 is not a hook point"):
        relevance_at_hooks(bridge, IDS, TARGET, hooks=["hook_embed", 3])


def test_backward_hooks_are_refused_until_they_are_removed() -> None:
    bridge = bridged()
    bridge.add_hook("blocks.0.hook_resid_post", lambda gradient, hook: None, dir="bwd")
    with pytest.raises(conserva.Error, match="BackwardHookFunction"):
        relevance_at_hooks(bridge, IDS, TARGET, hooks="hook_embed")
    trusted = relevance_at_hooks(bridge, IDS, TARGET, hooks="hook_embed", trusted=["BackwardHookFunction"])
    bridge.reset_hooks()
    expected = relevance_at_hooks(bridge, IDS, TARGET, hooks="hook_embed")
    torch.testing.assert_close(trusted.scores(), expected.scores(), **CLOSE)


def test_activations_that_are_zero_have_no_relevance_and_are_no_error() -> None:
    bridge, hook = bridged(), "blocks.0.attn.hook_z"
    with bridge.hooks(fwd_hooks=[(hook, lambda z, hook: z * 0)]):
        assert not relevance_at_hooks(bridge, IDS, TARGET, hooks=hook).values[hook].any()


# The documentation.


def test_a_text_by_the_bridges_own_tokenizer() -> None:
    tokenizer = conserva.load().tokenizer
    model = language_model("gpt2", len(tokenizer))
    bridge = TransformerBridge.boot_transformers("gpt2", hf_model=model, tokenizer=tokenizer, device="cpu")
    logits, _ = bridge.run_with_cache("a joy to watch")
    tokens = bridge.to_tokens("a joy to watch")
    result = relevance_at_hooks(bridge, tokens, TARGET, hooks="blocks.1.hook_resid_post")
    assert torch.equal(result.output, logits[:, -1, 50].detach())
    assert result.scores().shape == tokens.shape == (1, len(bridge.to_str_tokens(tokens)))
    one, expected = (
        conserva.explain(conserva.load(each, tokenizer=tokenizer), "a joy to watch", "a")
        for each in (bridge.original_model, language_model("gpt2", len(tokenizer)))
    )
    assert one.scores == pytest.approx(expected.scores, abs=1e-6)


def test_the_example_of_the_docstring_runs() -> None:
    text = inspect.getdoc(door.relevance_at_hooks) or ""
    found = doctest.DocTestParser().get_doctest(text, {}, "relevance_at_hooks", None, 0)
    assert found.examples
    assert not doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found).failed


def test_the_page_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run_page(Path(__file__).parents[2] / "docs" / "doors" / "transformer_lens.md", capsys)

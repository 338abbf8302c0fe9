"""Explaining by a rule set of one's own, and models that need more than a name: trusted functions, linear attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

import conserva
from conserva.cli import main
from conserva.explaining.generate import explain_generation
from language import byte_tokenizer

PROMPT = "The capital of France is"
TRUSTED = ["GeLUFunction"]


def writer(kind: str) -> conserva.Causal:
    torch.manual_seed(0)
    if kind == "bloom":
        model: Any = BloomForCausalLM(BloomConfig(vocab_size=420, hidden_size=32, n_layer=2, n_head=4))
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
        layers = ["linear_attention", "full_attention"]
        model = Qwen3NextForCausalLM(
            Qwen3NextConfig(
                vocab_size=420, **sizes, **heads, num_key_value_heads=2, head_dim=8, linear_value_head_dim=8,
                layer_types=layers, num_experts=0, mlp_only_layers=[0, 1],
            )
        )  # fmt: skip
    return conserva.Causal(model.eval(), byte_tokenizer(), kind)


def test_bloom_is_explained_with_its_trusted_function() -> None:
    task = writer("bloom")
    with pytest.raises(conserva.Error, match=r"GeLUFunction.*trusted"):
        conserva.explain(task, PROMPT, method="ah+ln")
    one = conserva.explain(task, PROMPT, method="ah+ln", trusted=TRUSTED)
    inputs = task.batch([task.encode(PROMPT)])
    expected = conserva.relevance(task.model, inputs, None, rules="ah+ln", trusted=TRUSTED)
    assert one.scores == pytest.approx(expected.scores()[0].tolist(), abs=1e-6)
    assert conserva.compare(task, PROMPT, methods=["ah+ln", "random"], trusted=TRUSTED).of("ah+ln") == one
    row = conserva.trace(task, PROMPT, method="ah+ln", trusted=TRUSTED).scores[0]
    assert row == pytest.approx(one.scores, abs=1e-5)
    written = explain_generation(task, PROMPT, tokens=2, method="ah+ln", trusted=TRUSTED)
    assert written.steps[0].scores == pytest.approx(one.scores, abs=1e-5)


def test_a_rule_set_of_ones_own_is_a_method() -> None:
    task = conserva.load()
    own = conserva.rules("ah+ln", activation="ratio", gamma=0.2)
    one = conserva.explain(task, "a joy.", 1, method=own)
    assert one.method == "ah+ln (activation=ratio, gamma=0.2, linear=gamma)" == own.rules.name
    assert one.provenance["rules"] == own.rules.to_dict()
    assert one == conserva.explain(task, "a joy.", 1, method=own.rules)
    inputs = task.batch([task.encode("a joy.")])
    expected = conserva.relevance(task.model, inputs, 1, rules=own).scores()[0].tolist()
    assert one.scores == pytest.approx(expected, abs=1e-6)
    found = conserva.compare(task, "a joy.", 1, methods=[own, "ah+ln", own.rules])
    assert found.methods == (own.rules.name, "ah+ln")
    assert found[0] == one
    measured = conserva.evaluate(task, ["a joy.", "how dull."], [own, "ah+ln"], reference=False)
    assert [result.method for result in measured.methods] == [own.rules.name, "ah+ln"]
    texts, groups = ["olivia is a joy.", "oliver is a joy."], {"a": ["Olivia"], "b": ["Oliver"]}
    assert conserva.bias(task, texts, groups, method=own, swaps=0).method == own.rules.name


def test_two_rule_sets_of_one_name_do_not_share_a_folder(tmp_path: Path) -> None:
    """What a run goes on with is told by the rules, not by a name that a user may have given."""
    import dataclasses

    task, texts = conserva.load(), ["a joy.", "how dull."]
    first = dataclasses.replace(conserva.rules("exact").rules, name="mine")
    second = dataclasses.replace(conserva.rules("ah+ln").rules, name="mine")
    conserva.evaluate(task, texts, [first], reference=False, out=tmp_path)
    with pytest.raises(conserva.Error, match=r"methods\.mine\.activation \(was \"ratio\", is \"gradient\"\)"):
        conserva.evaluate(task, texts, [second], reference=False, out=tmp_path)


@pytest.mark.parametrize("given", [3, None, ["exact"], object()])
def test_what_is_no_method_is_refused(given: Any) -> None:
    with pytest.raises(conserva.Error, match="is unknown"):
        conserva.explain(conserva.load(), "a joy.", method=given)


def test_models_without_softmax_attention_are_explained_by_an_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = writer("linear attention")
    with pytest.raises(conserva.Error, match="bilinear"):
        conserva.explain(task, PROMPT)
    one = conserva.explain(task, PROMPT, method="exact:bilinear=half")
    assert one.method == "exact:bilinear=half"
    assert one.provenance["rules"]["bilinear"] == "half"
    own = conserva.explain(task, PROMPT, method=conserva.rules("exact", bilinear="half"))
    assert one.scores == own.scores
    assert abs(one.ledger.gap) < 1e-4 * max(map(abs, one.scores))
    task.network.save_pretrained(tmp_path)
    task.tokenizer.save_pretrained(tmp_path)
    command = ["explain", "--model", str(tmp_path), "--prompt", PROMPT]
    assert main(command) == 1
    assert "--method exact:bilinear=half" in capsys.readouterr().err
    assert main([*command, "--method", "exact:bilinear=half", "--json"]) == 0
    assert conserva.Explanation.from_json(capsys.readouterr().out).scores == pytest.approx(one.scores, abs=1e-5)


def test_the_hash_of_the_weights_is_computed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from conserva.tasks import task as tasks

    asked: list[Any] = []
    hashed = tasks.fingerprint
    monkeypatch.setattr(tasks, "fingerprint", lambda model: asked.append(model) or hashed(model))
    task = conserva.load()
    plain = conserva.explain(task, ["a joy.", "a bore."])
    conserva.trace(task, "a joy.")
    assert not asked
    assert "weights" not in plain[0].provenance
    for found in (
        conserva.explain(task, "a joy.", fingerprint=True),
        conserva.compare(task, "a joy.", methods=["gi"], fingerprint=True)[0],
        conserva.trace(task, "a joy.", fingerprint=True),
    ):
        assert found.provenance["weights"] == hashed(task.network)
    assert len(asked) == 1

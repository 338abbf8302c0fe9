"""inseq: its own `attribute` gives the generations of conserva, and reads what conserva writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("captum", reason="captum is not installed")
pytest.importorskip("inseq", reason="inseq is not installed")

import inseq

import conserva
from conserva.engine.rules import RULE_SETS
from conserva.integrations.inseq import METHODS, to_inseq
from language import byte_tokenizer, language_model
from pages_of_code import run_page
from writers import writer

TEXT, ANSWER = "The capital of France", " is Paris"
CLOSE = {"rtol": 1e-5, "atol": 1e-6, "equal_nan": True}  # inseq keeps attributions in float32
RULES = {f"conserva_{name.replace('+', '_')}": name for name in RULE_SETS}


def loaded(method: str, kind: str = "llama", **options: Any) -> Any:
    return inseq.load_model(language_model(kind), method, tokenizer=byte_tokenizer(), **options)


def attributed(model: Any, **settings: Any) -> Any:
    settings = {"attributed_fn": "logit", **settings}
    return model.attribute(TEXT, TEXT + ANSWER, show_progress=False, **settings)[0]


def generation(method: Any, kind: str = "llama", score: str = "logit") -> conserva.Generation:
    task = conserva.Causal(language_model(kind), byte_tokenizer(), name=f"tiny {kind}")
    return conserva.explain_generation(task, TEXT, continuation=ANSWER, method=method, score=score)


def check(theirs: Tensor, ours: Tensor) -> None:
    torch.testing.assert_close(theirs.double(), ours, **CLOSE)


def test_every_rule_set_is_registered() -> None:
    assert list(METHODS) == list(RULES)
    assert set(METHODS) <= set(inseq.list_feature_attribution_methods())


@pytest.mark.parametrize("method", RULES)
def test_language_models(method: str) -> None:
    kinds = ("llama", "gpt2", "gemma3") if method == "conserva_exact" else ("llama",)
    for kind in kinds:
        theirs = attributed(loaded(method, kind), step_scores=["probability", "logit"], return_convergence_delta=True)
        ours = to_inseq(generation(RULES[method], kind))[0]
        check(theirs.target_attributions, ours.target_attributions)
        assert (theirs.attr_pos_start, theirs.attr_pos_end) == (ours.attr_pos_start, ours.attr_pos_end) == (5, 7)
        assert [token.token.replace("Ġ", " ") for token in theirs.target] == [token.token for token in ours.target]
        scores = ours.step_scores
        check(theirs.step_scores["probability"], scores["probability"])
        check(theirs.step_scores["logit"], scores["logit"])
        check(theirs.step_scores["deltas"], -(scores["positions"] + scores["biases"] + scores["gap"]))
        total = ours.target_attributions.nan_to_num().sum(0) + sum(
            scores[name] for name in ("positions", "biases", "gap")
        )
        check(total, scores["logit"])


def test_the_plain_gradient_is_that_of_inseq() -> None:
    ours = attributed(loaded("conserva_gi"))
    theirs = attributed(loaded("input_x_gradient"))
    check(ours.target_attributions, theirs.target_attributions.double().sum(-1))


@pytest.mark.parametrize("method", ["conserva_exact", "conserva_attnlrp"])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_decoders(kind: str, method: str) -> None:
    task, source, answer = writer(kind), "the cat sat on a mat", "a dog slept"
    model = inseq.load_model(task.network, method, tokenizer=task.tokenizer)
    settings = {"attributed_fn": "logit", "show_progress": False, "step_scores": ["logit"]}
    theirs = model.attribute(source, answer, attribute_target=True, return_convergence_delta=True, **settings)[0]
    ours = to_inseq(conserva.explain_generation(task, source, continuation=answer, method=RULES[method]))[0]
    first, many = ours.attr_pos_start, len(ours.target)
    columns = slice(first - theirs.attr_pos_start, many - theirs.attr_pos_start)  # inseq also attributes <s> and </s>
    check(theirs.source_attributions[:, columns], ours.source_attributions)
    check(theirs.target_attributions[:many, columns], ours.target_attributions)
    check(theirs.step_scores["logit"][columns], ours.step_scores["logit"])
    rest = sum(ours.step_scores[name] for name in ("positions", "biases", "gap"))
    check(theirs.step_scores["deltas"][columns], -rest)
    assert len(ours.source) == len(theirs.source)
    source_only = model.attribute(source, answer, **settings)[0]
    check(source_only.source_attributions, theirs.source_attributions.double())
    assert source_only.target_attributions is None


def test_several_texts_and_generated_ones() -> None:
    model = loaded("conserva_exact")
    texts = [TEXT, "Rome"]
    both = model.attribute(texts, [TEXT + ANSWER, "Rome is in Italy"], attributed_fn="logit", show_progress=False)
    check(both[0].target_attributions, attributed(model).target_attributions.double())
    alone = model.attribute("Rome", "Rome is in Italy", attributed_fn="logit", show_progress=False)[0]
    check(both[1].target_attributions, alone.target_attributions.double())
    task = writer("t5")
    model = inseq.load_model(task.network, "conserva_exact", tokenizer=task.tokenizer)
    texts, answers = ["the cat sat on a mat", "a dog"], ["a dog slept", "the tree"]
    both = model.attribute(texts, answers, attributed_fn="logit", show_progress=False)
    for together, text, answer in zip(both, texts, answers, strict=True):
        alone = model.attribute(text, answer, attributed_fn="logit", show_progress=False)[0]
        check(together.source_attributions, alone.source_attributions.double())
    written = model.attribute(
        texts[0], generation_args={"max_new_tokens": 3}, attributed_fn="logit", show_progress=False
    )
    assert written[0].source_attributions.shape[1] >= 1


def test_source_texts_that_are_padded_on_the_left_are_refused() -> None:
    task = writer("t5")
    model = inseq.load_model(task.network, "conserva_exact", tokenizer=task.tokenizer)
    settings = {"attributed_fn": "logit", "show_progress": False}
    model.tokenizer.padding_side = "left"
    try:
        with pytest.raises(conserva.Error, match=r"Set model\.tokenizer\.padding_side = 'right'"):
            model.attribute(["the cat sat on a mat", "a dog"], ["a dog slept", "the tree"], **settings)
        assert model.attribute("a dog", "the tree", **settings)[0].source_attributions is not None
    finally:
        model.tokenizer.padding_side = "right"


def test_options_of_rule_sets() -> None:
    ours = to_inseq(generation(conserva.rules("exact", gamma=0.1)))[0]
    check(attributed(loaded("conserva_exact", gamma=0.1)).target_attributions, ours.target_attributions)
    with pytest.raises(conserva.Error, match="unknown option steps=5"):
        loaded("conserva_exact", steps=5)


def test_log_probabilities_and_contrasts() -> None:
    theirs = attributed(loaded("conserva_exact"), attributed_fn="probability", logprob=True)
    check(theirs.target_attributions, to_inseq(generation("exact", score="log-probability"))[0].target_attributions)
    contrast = attributed(
        loaded("conserva_exact"), attributed_fn="contrast_logits_diff", contrast_targets=f"{TEXT} is Rome"
    )
    paris, rome = (byte_tokenizer()(f"{TEXT} is {city}")["input_ids"] for city in ("Paris", "Rome"))
    expected = conserva.relevance(
        language_model(),
        {"input_ids": torch.tensor([paris[:-1]])},
        lambda output: output.logits[:, -1, paris[-1]] - output.logits[:, -1, rome[-1]],
    )
    assert not contrast.target_attributions[:5, 0].any()  # the same token in both
    check(contrast.target_attributions[:6, 1], expected.scores()[0])


def test_the_default_of_inseq_is_refused_with_advice() -> None:
    model = loaded("conserva_exact")
    with pytest.raises(conserva.Error, match="pass attributed_fn='logit'"):
        attributed(model, attributed_fn=None)
    with pytest.raises(conserva.Error, match="Logsumexp") as raised:
        attributed(model, attributed_fn="entropy")
    assert "attributed_fn" not in str(raised.value)
    assert attributed(loaded("conserva_gi"), attributed_fn=None).target_attributions[:5].isfinite().any()
    again = attributed(model).target_attributions  # inseq's model still works after an error
    check(again, to_inseq(generation("exact"))[0].target_attributions)


@pytest.mark.parametrize(
    ("name", "instead"),
    [("contrast_prob_diff", "contrast_logits_diff"), ("contrast_prob", "contrast_logits"), ("pcxmi", "in_context_pvi")],
)
def test_the_advice_on_contrasts_of_probabilities_works(name: str, instead: str) -> None:
    model, other = loaded("conserva_exact"), {"contrast_targets": f"{TEXT} is Rome"}
    with pytest.raises(conserva.Error, match=f"Pass attributed_fn='{instead}' instead of '{name}'"):
        attributed(model, attributed_fn=name, **other)
    assert attributed(model, attributed_fn=instead, **other).target_attributions[:6, 1].all()


def test_step_functions_of_ones_own() -> None:
    def margin(args: Any) -> Tensor:
        logits = args.attribution_model.output2logits(args.forward_output)
        return logits.gather(-1, args.target_ids.reshape(-1, 1)).squeeze(-1) - logits.mean(-1)

    inseq.register_step_function(margin, "margin", overwrite=True)
    settings = {"attributed_fn": "margin", "step_scores": ["margin"], "return_convergence_delta": True}
    theirs = attributed(loaded("conserva_exact"), **settings)
    ids = byte_tokenizer()(TEXT + ANSWER)["input_ids"]
    for column, many in enumerate((5, 6)):

        def of_output(output: Any, target: int = ids[many]) -> Tensor:
            return output.logits[:, -1, target] - output.logits[:, -1].mean(-1)

        expected = conserva.relevance(language_model(), {"input_ids": torch.tensor([ids[:many]])}, of_output)
        check(theirs.target_attributions[:many, column], expected.scores()[0])
        check(theirs.step_scores["margin"][column], expected.output[0])
        check(theirs.step_scores["deltas"][column], (expected.ledger.inputs - expected.output)[0])


def test_step_functions_without_a_gradient() -> None:
    with pytest.raises(conserva.Error, match=r"forward_func returned torch\.int64"):
        attributed(loaded("conserva_exact"), attributed_fn="top_p_size", top_p=0.9)


@pytest.mark.parametrize("how", [{}, {"compress": True}, {"ndarray_compact": False}], ids=str)
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_inseq_reads_and_shows_generations(kind: str, how: dict[str, bool], tmp_path: Path) -> None:
    if kind == "llama":
        given = generation("exact")
    else:
        given = conserva.explain_generation(writer("t5"), "the cat", continuation="a dog")
    path = tmp_path / "generation.json"
    written = to_inseq(given)
    written.save(path, **how)
    read = inseq.FeatureAttributionOutput.load(path, decompress="compress" in how)
    for name in ("source_attributions", "target_attributions"):
        before, after = getattr(written[0], name), getattr(read[0], name)
        assert (before is None) == (after is None)
        if before is not None:
            torch.testing.assert_close(after.double(), before, equal_nan=True)
    assert [token.token for token in read[0].target] == list(given.features[-len(read[0].target) :])
    assert {"probability", "logit", "positions", "biases", "gap"} == set(read[0].step_scores)
    assert read.info["input_texts"] == [given.text]
    shown = read.show(display=False, return_html=True, do_aggregation=False)
    assert f"{given.steps[0].scores[1]:.3f}".rstrip("0")[:5] in shown


def test_words_are_aggregated_at_their_spaces() -> None:
    task = conserva.Causal(language_model(), byte_tokenizer(), name="tiny")
    given = conserva.explain_generation(task, TEXT, continuation=" is big")
    assert " " in given.features  # words are cut into several tokens
    words = to_inseq(given).aggregate("subwords", special_chars=" ")[0].target
    assert len(words) < len(given.features)
    assert [word.token for word in words][1:5] == [" capital", " of", " France", " is"]


def test_other_results_are_refused() -> None:
    one = conserva.explain(conserva.load(), "a joy.")
    with pytest.raises(conserva.Error, match=r"generation is Explanation: .*explain_generation"):
        to_inseq(one)


def test_the_page_shows_what_its_code_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(Path(__file__).parents[2] / "docs" / "doors" / "inseq.md", capsys)

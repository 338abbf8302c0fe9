"""`conserva.load` takes models of sentence-transformers, and explains what they predict, before the activation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sentence_transformers", reason="sentence_transformers is not installed")

from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, StaticEmbedding
from torch import nn

import conserva
import tiny_heads
from conserva.models.quiet import quiet_loading
from objects import bert, classifier, closes, is_unchanged, snapshot
from sentence_models import cross_encoder, saved, sentence_encoder

PAIR = ("an unwatchably long film by eastwood.", "it is far too long")
EXACT = {"rel": 1e-4, "abs": 1e-5}


def loaded(model: Any, **options: Any) -> conserva.Task:
    """Return the task of a model, which is unchanged."""
    before = snapshot(model)
    task = conserva.load(model, **options)
    assert is_unchanged(model, before)
    return task


def explained(task: conserva.Task, given: Any, target: Any = None) -> conserva.Explanation:
    one = conserva.explain(task, given, target)
    assert closes(one)
    return one


# Cross-encoders.


@pytest.mark.parametrize("labels", [1, 3])
def test_a_cross_encoder_is_explained_before_its_activation(tmp_path: Path, labels: int) -> None:
    model = cross_encoder(tmp_path, labels)
    task = loaded(model)
    assert (type(task), task.network) == (conserva.Text, model.model)
    one = explained(task, PAIR)
    logits = np.atleast_1d(model.predict(PAIR, activation_fn=nn.Identity()))
    index = int(one.target.removeprefix("LABEL_"))
    assert one.output == pytest.approx(float(logits[index]), **EXACT)
    assert index == logits.argmax()
    assert one.sections[0][0] == "first text"
    probabilities = model.predict(PAIR) if labels == 1 else model.predict(PAIR, apply_softmax=True)
    assert one.probability == pytest.approx(float(np.atleast_1d(probabilities)[index]), **EXACT)


@pytest.mark.parametrize(
    ("labels", "problem_type", "activation", "head"),
    [
        (1, None, nn.Sigmoid(), "binary"),
        (1, None, torch.sigmoid, "binary"),
        (3, None, nn.Sigmoid(), "multi_label"),
        (1, None, nn.Identity(), "regression"),
        (1, "multi_label_classification", nn.Identity(), "regression"),
        (3, None, nn.Identity(), "single_label"),
        (3, "multi_label_classification", nn.Identity(), "multi_label"),
        (3, "regression", nn.Identity(), "regression"),
        (3, None, nn.Softmax(-1), "single_label"),
    ],
)
def test_the_activation_decides_the_head(
    tmp_path: Path, labels: int, problem_type: str | None, activation: Any, head: str
) -> None:
    model = cross_encoder(tmp_path, labels, problem_type, activation_fn=activation)
    task = loaded(model)
    assert task.head.name == head
    one = explained(task, PAIR, 0)
    predicted = np.atleast_1d(model.predict(PAIR))[0]
    if not isinstance(activation, nn.Identity):
        assert one.probability == pytest.approx(float(predicted), **EXACT)
    else:
        assert one.output == pytest.approx(float(predicted), **EXACT)


def test_an_unknown_activation_needs_a_head(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path, activation_fn=nn.Tanh())
    with pytest.raises(conserva.Error, match="a CrossEncoder with the activation Tanh, which is neither Sigmoid"):
        conserva.load(model)
    assert loaded(model, head="regression").head.name == "regression"
    with pytest.raises(conserva.Error, match="with the activation <lambda>"):
        conserva.load(cross_encoder(tmp_path, activation_fn=lambda logits: logits))


def test_a_saved_cross_encoder_is_the_same_task_as_in_memory(tmp_path: Path) -> None:
    model = cross_encoder(tmp_path / "a", activation_fn=nn.Sigmoid())
    with quiet_loading():
        model.save_pretrained(str(tmp_path / "b"))
    one, other = (explained(conserva.load(given), PAIR) for given in (model, tmp_path / "b"))
    assert (one.scores, one.output, one.probability) == (other.scores, other.output, other.probability)


def test_several_pairs_with_a_limit_of_tokens(tmp_path: Path) -> None:
    task = loaded(cross_encoder(tmp_path, max_length=12))
    assert task.longest == 12
    with pytest.raises(conserva.Error, match="the model takes 12"):
        conserva.explain(task, ("good " * 20, "bad"))
    many = conserva.explain(task, [("a joy.", "dull"), ("dull", "a joy.")])
    assert many[0].output != many[1].output


@pytest.mark.parametrize("options", [{"prompts": {"query": "query: "}, "default_prompt_name": "query"}])
def test_prompts_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    for make in (cross_encoder, sentence_encoder):
        with pytest.raises(conserva.Error, match="puts the prompt 'query: ' before every text"):
            conserva.load(make(tmp_path, **options))
    model = sentence_encoder(tmp_path, prompts={"query": "query: "})
    assert explained(loaded(model), PAIR).output  # no default


def test_other_modules_of_cross_encoders_are_refused(tmp_path: Path) -> None:
    with quiet_loading():
        first = Transformer(saved(tmp_path, classifier(num_labels=3)), transformer_task="sequence-classification")
        model = CrossEncoder(modules=[first, LogitScore(1, 2)], device="cpu")
    with pytest.raises(conserva.Error, match="a CrossEncoder with the modules Transformer, LogitScore"):
        conserva.load(model)


@pytest.mark.parametrize("where", ["model", "first", "pooling"])
def test_hooks_on_modules_that_are_not_explained_are_refused(tmp_path: Path, where: str) -> None:
    model = sentence_encoder(tmp_path) if where == "pooling" else cross_encoder(tmp_path)
    module = {"model": model, "first": model[0], "pooling": model[-1]}[where]
    hook = module.register_forward_hook(lambda module, given, output: output)
    with pytest.raises(conserva.Error, match=f"whose {type(module).__name__} has a forward hook"):
        conserva.load(model)
    hook.remove()
    conserva.load(model)


def test_models_in_training_mode_are_refused(tmp_path: Path) -> None:
    for make in (cross_encoder, sentence_encoder):
        model = make(tmp_path).train()
        before = snapshot(model)
        with pytest.raises(conserva.Error, match=r"call model\.eval\(\) first"):
            conserva.load(model)
        assert is_unchanged(model, before)


# Sentence encoders.


@pytest.mark.parametrize(
    ("pooling", "score", "layers"),
    [
        ("mean", "cosine", ()),
        ("cls", "dot", ()),
        ("lasttoken", "dot", ()),
        ("mean", "dot", (Normalize,)),
        ("mean", "dot", (lambda: Dense(32, 8),)),
        ("lasttoken", "cosine", (lambda: Dense(32, 32, activation_function=nn.GELU(), use_residual=True), Normalize)),
        ("cls", "dot", (lambda: LayerNorm(32), lambda: Dropout(0.5), lambda: Dense(32, 8, False, None))),
    ],
)
def test_a_sentence_encoder_is_explained_by_its_similarity(
    tmp_path: Path, pooling: str, score: str, layers: Any
) -> None:
    torch.manual_seed(1)
    model = sentence_encoder(tmp_path, *(make() for make in layers), pooling=pooling, similarity_fn_name=score)
    task = loaded(model)
    one = explained(task, PAIR)
    assert one.target == {"cosine": "cosine similarity", "dot": "dot product"}[score]
    assert one.output == pytest.approx(float(model.similarity(*model.encode(list(PAIR))[:, None])), **EXACT)
    pairs = [PAIR, ("a joy.", "dull"), (PAIR[1], "a very long film indeed")]  # padded
    expected = [float(model.similarity(*model.encode(list(pair))[:, None])) for pair in pairs]
    assert [one.output for one in conserva.explain(task, pairs)] == pytest.approx(expected, **EXACT)


def test_embeddings_are_truncated_as_the_model_does(tmp_path: Path) -> None:
    model = sentence_encoder(tmp_path, Normalize(), truncate_dim=5, similarity_fn_name="dot")
    task = loaded(model)
    one = explained(task, PAIR)
    assert one.output == pytest.approx(float(model.similarity(*model.encode(list(PAIR))[:, None])), **EXACT)
    whole = conserva.load(sentence_encoder(tmp_path, Normalize(), similarity_fn_name="dot"))
    assert abs(explained(whole, PAIR).output - one.output) > 0.01


def test_layers_share_their_weights_with_the_model_and_count_for_its_identity(tmp_path: Path) -> None:
    dense = Dense(32, 8)
    task = conserva.load(sentence_encoder(tmp_path, dense))
    before, options = conserva.explain(task, PAIR).output, task.options
    with torch.no_grad():
        dense.linear.weight += torch.randn_like(dense.linear.weight)
    assert conserva.explain(task, PAIR).output != before
    assert task.options != options
    assert dense.training


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda folder: sentence_encoder(folder, pooling="max"),
            "the pooling max: only one of mean, cls, lasttoken",
        ),
        (lambda folder: sentence_encoder(folder, pooling=("mean", "cls")), "uses the pooling mean, cls"),
        (lambda folder: sentence_encoder(folder, pooling="weightedmean"), "uses the pooling weightedmean"),
        (
            lambda folder: sentence_encoder(folder, similarity_fn_name="euclidean"),
            "similarity 'euclidean': supported are cosine",
        ),
        (lambda folder: sentence_encoder(folder, nn.Identity()), "modules Transformer, Pooling, Identity"),
        (
            lambda folder: sentence_encoder(folder, Dense(32, 32, module_input_name="token_embeddings")),
            "whose Dense does not map its embedding to an embedding",
        ),
        (
            lambda folder: SentenceTransformer(
                modules=[StaticEmbedding(tiny_heads.tokenizer().backend_tokenizer, embedding_dim=4)], device="cpu"
            ),
            "modules StaticEmbedding",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, make: Any, says: str) -> None:
    model = make(tmp_path)
    with pytest.raises(conserva.Error, match=says):
        conserva.load(model)


def test_sparse_encoders_are_refused(tmp_path: Path) -> None:
    with quiet_loading():
        model = SparseEncoder(saved(tmp_path, bert("AutoModelForMaskedLM")), device="cpu")
    with pytest.raises(conserva.Error, match="model is of type SparseEncoder, which no task supports"):
        conserva.load(model)


def test_other_tokens_than_the_tokenizers_are_refused(tmp_path: Path) -> None:
    model = sentence_encoder(tmp_path)
    model[0].preprocess = lambda texts, **options: tiny_heads.tokenizer()(["chat: " + texts[0]], return_tensors="pt")
    with pytest.raises(conserva.Error, match="whose tokens are not those of its tokenizer"):
        conserva.load(model)


def test_other_backends_are_refused(tmp_path: Path) -> None:
    model = sentence_encoder(tmp_path)
    del model[0].model
    object.__setattr__(model[0], "model", "a session of another library")
    model.backend = "onnx"
    with pytest.raises(conserva.Error, match="a SentenceTransformer with the backend 'onnx': load it with the backend"):
        conserva.load(model)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head": "binary"}, "head='binary' is for classifiers, but a SentenceTransformer is a sentence encoder"),
        ({"labels": ["a"]}, r"labels=\['a'\] is for image models, but model is of type SentenceTransformer"),
        ({"tokenizer": 7}, "tokenizer is for a transformers model, but model is of type SentenceTransformer"),
        ({"dtype": "float64"}, "dtype='float64', but the model has weights in"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.load(sentence_encoder(tmp_path), **options)


@pytest.mark.parametrize(
    ("pooling", "score", "layers"), [("mean", "cosine", 0), ("cls", "dot", 0), ("lasttoken", "dot", 1)]
)
def test_a_saved_sentence_encoder_is_the_same_task_as_in_memory(
    tmp_path: Path, pooling: str, score: str, layers: int
) -> None:
    model = sentence_encoder(tmp_path / "a", *[Normalize()] * layers, pooling=pooling, similarity_fn_name=score)
    with quiet_loading():
        model.save_pretrained(str(tmp_path / "b"))
    one, other = (explained(conserva.load(given), PAIR) for given in (model, tmp_path / "b"))
    assert one.scores == pytest.approx(other.scores, **EXACT)
    assert one.output == pytest.approx(other.output, **EXACT)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda folder: sentence_encoder(folder, Dense(32, 8)),
            "modules Dense, which are not supported in files",
        ),
        (lambda folder: sentence_encoder(folder, pooling="max"), "uses the pooling max"),
        (lambda folder: sentence_encoder(folder, similarity_fn_name="manhattan"), "has the similarity 'manhattan'"),
    ],
)
def test_files_that_are_not_supported_are_refused(tmp_path: Path, make: Any, says: str) -> None:
    with quiet_loading():
        make(tmp_path / "a").save_pretrained(str(tmp_path / "b"))
    with pytest.raises(conserva.Error, match=says):
        conserva.load(tmp_path / "b")


def test_sentence_transformers_is_not_imported() -> None:
    sources = (Path(conserva.__file__).parent).rglob("*.py")
    imports = re.compile(r"^\s*(import|from) sentence_transformers\b", re.MULTILINE)
    assert not [path for path in sources if imports.search(path.read_text(encoding="utf-8"))]

"""`conserva.load` takes models of transformers in memory, finds their tasks, and leaves them unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import conserva
import language
import tiny_heads
import tiny_images
import tiny_speech
import writers
from conserva.models.quiet import quiet_loading
from objects import bert, classifier, clip, closes, is_unchanged, snapshot, vit, whisper_processor

TOKENIZER = tiny_heads.tokenizer()


def image_processor() -> Any:
    with quiet_loading():
        return transformers.ViTImageProcessor(size={"height": 32, "width": 32})


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
    "Text": (classifier, lambda: TOKENIZER, "a joy."),
    "Causal": (language.language_model, language.byte_tokenizer, "The capital of France is"),
    "Seq2Seq": (lambda: writers.t5().eval(), writers.pieces, "a cat"),
    "Speech": (lambda: tiny_speech.speech().network, whisper_processor, (tiny_speech.tone(), tiny_speech.RATE)),
    "Image": (vit, image_processor, tiny_images.noise()),
    "Tokens": (lambda: bert("AutoModelForTokenClassification"), lambda: TOKENIZER, ("a joy.", "joy")),
    "Question": (lambda: bert("AutoModelForQuestionAnswering"), lambda: TOKENIZER, ("who?", "a film by eastwood.")),
    "Blanks": (lambda: bert("AutoModelForMaskedLM"), lambda: TOKENIZER, "a [MASK]."),
    "Graph": (lambda: conserva.load("bace").network, lambda: None, "CCO"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_task_is_found_by_the_class_of_the_model(name: str) -> None:
    model, processor, given = CASES[name][0](), CASES[name][1](), CASES[name][2]
    before = snapshot(model)
    task = conserva.load(model, tokenizer=processor)
    assert type(task) is getattr(conserva, name)
    assert task.network is model
    assert is_unchanged(model, before)
    one = conserva.explain(task, given)
    assert closes(one)
    assert is_unchanged(model, before)


def test_the_output_is_the_logit_of_the_model() -> None:
    model = classifier(num_labels=3)
    one = conserva.explain(conserva.load(model, tokenizer=TOKENIZER), "a joy.")
    with torch.no_grad():
        logits = model(**TOKENIZER("a joy.", return_tensors="pt")).logits[0]
    assert one.output == pytest.approx(float(logits.max()), rel=1e-5)
    assert one.probability == pytest.approx(float(logits.softmax(0).max()), rel=1e-5)


def test_the_class_counts_and_not_the_architectures_of_the_configuration() -> None:
    # A classifier that was loaded from the weights of a language model has the architectures of those.
    model = classifier()
    model.config.architectures = ["BertForMaskedLM"]
    assert type(conserva.load(model, tokenizer=TOKENIZER)) is conserva.Text
    model.config.architectures = None
    assert type(conserva.load(model, tokenizer=TOKENIZER)) is conserva.Text


class OwnClassifier(transformers.BertForSequenceClassification):
    pass


def test_a_class_derived_from_one_of_transformers_has_its_task() -> None:
    model = OwnClassifier(classifier().config).eval()
    assert type(conserva.load(model, tokenizer=TOKENIZER)) is conserva.Text


def test_a_class_of_a_models_own_has_the_task_of_its_auto_class() -> None:
    class Own(transformers.BertModel):
        """A class that no mapping of transformers has."""

    config = bert("AutoModel").config
    config.auto_map = {"AutoModel": "own.Other", "AutoModelForSequenceClassification": "own.Own"}
    assert type(conserva.load(Own(config).eval(), tokenizer=TOKENIZER)) is conserva.Text


def test_images_can_be_compared_with_texts() -> None:
    model = clip()
    task = conserva.load(model, tokenizer=tiny_images.processor(), labels=["a cat", "a dog"])
    assert list(task.labels) == ["a cat", "a dog"]
    assert closes(conserva.explain(task, tiny_images.noise()))
    with pytest.raises(conserva.Error, match=r"CLIPModel\. If it compares images with texts, give the texts as labels"):
        conserva.load(model, tokenizer=tiny_images.processor())


def test_the_head_can_be_given() -> None:
    assert conserva.load(classifier(num_labels=3), tokenizer=TOKENIZER, head="multi_label").head.name == "multi_label"
    with pytest.raises(conserva.Error, match=r"head='binary' is for classifiers, .*LlamaForCausalLM"):
        conserva.load(language.language_model(), tokenizer=language.byte_tokenizer(), head="binary")
    with pytest.raises(conserva.Error, match="head='nothing' is unknown"):
        conserva.load(classifier(), tokenizer=TOKENIZER, head="nothing")


def test_a_model_in_training_mode_is_refused_and_stays_in_it() -> None:
    model = classifier().train()
    with pytest.raises(conserva.Error, match=r"in training mode.*call model\.eval\(\) first"):
        conserva.load(model, tokenizer=TOKENIZER)
    assert all(module.training for module in model.modules())
    model.eval().bert.train()  # one part alone
    with pytest.raises(conserva.Error, match=r"Module 'bert' is in training mode"):
        conserva.load(model, tokenizer=TOKENIZER)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "meta"}, "device='meta' computes nothing"),
        ({"device": "gpu"}, "device='gpu': "),
        ({"dtype": "float64"}, r"dtype='float64', but the model has weights in torch\.float32.*convert it yourself"),
        ({"dtype": torch.bfloat16}, r"dtype='torch\.bfloat16', but the model has weights in torch\.float32"),
        ({"dtype": "int8"}, "dtype='int8' is not a data type to explain in"),
        ({"labels": ["a", "b"]}, "BertForSequenceClassification"),
    ],
)
def test_an_object_is_not_moved_or_converted(options: dict[str, Any], says: str) -> None:
    model = classifier()
    before = snapshot(model)
    with pytest.raises(conserva.Error, match=says):
        conserva.load(model, tokenizer=TOKENIZER, **options)
    assert is_unchanged(model, before)


def test_a_model_elsewhere_is_not_moved_to_the_cpu() -> None:
    class Elsewhere(transformers.BertForSequenceClassification):
        def parameters(self, recurse: bool = True) -> Any:
            return iter([nn.Parameter(torch.empty(1, device="meta"))])

    model = Elsewhere(classifier().config).eval()
    with pytest.raises(conserva.Error, match=r"device='cpu', but the model is on meta.*not moved"):
        conserva.load(model, tokenizer=TOKENIZER, device="cpu")


def test_the_device_and_dtype_that_a_model_has_may_be_given() -> None:
    task = conserva.load(classifier(), tokenizer=TOKENIZER, device="cpu", dtype="float32")
    assert conserva.explain(task, "a joy.").provenance["dtype"] == "float32"
    assert conserva.load(classifier().double(), tokenizer=TOKENIZER, dtype=torch.float64).name


@pytest.mark.parametrize(
    ("model", "tokenizer", "says"),
    [
        (
            classifier,
            None,
            r"BertForSequenceClassification \(text classifier\) without a tokenizer: .*tokenizer=tokenizer",
        ),
        (
            vit,
            None,
            r"ViTForImageClassification \(image classifier\) without a tokenizer: give it with the tokenizer",
        ),
        (classifier, "bert-base", "tokenizer='bert-base' is not a Hugging Face tokenizer"),
        (lambda: tiny_speech.speech().network, TOKENIZER, "BertTokenizer.* has no feature_extractor and tokenizer"),
        (lambda: bert("AutoModel"), TOKENIZER, "model is BertModel, which no task supports"),
        (lambda: bert("AutoModelForMultipleChoice"), TOKENIZER, "BertForMultipleChoice, which no task supports"),
        (lambda: bert("AutoModelForSequenceClassification", vocab_size=50), TOKENIZER, "embeddings for 50 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(model: Callable[[], Any], tokenizer: Any, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.load(model(), tokenizer=tokenizer)


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("repr")


Hostile.__name__ = "<b>\x1b[31m\u202e"


@pytest.mark.parametrize(
    "given",
    [
        None,
        7,
        b"sentiment",
        ["sentiment"],
        {"model": "sentiment"},
        object(),
        Hostile(),
        TOKENIZER,
        transformers.BertForSequenceClassification,
        np.zeros(3),
        torch.zeros(3),
        nn.Linear(2, 2),
        nn.Sequential(nn.Linear(2, 2)),
        transformers.BertConfig(),
        lambda text: text,
    ],
    ids=lambda given: type(given).__name__,
)
def test_anything_else_is_refused_with_a_list_of_what_load_takes(given: Any) -> None:
    with pytest.raises(conserva.Error, match=r"conserva\.load takes a folder, a GGUF file, .* CrossEncoder") as error:
        conserva.load(given)
    assert str(error.value).isprintable()


def test_a_task_is_refused_with_a_word_on_it() -> None:
    with pytest.raises(conserva.Error, match="which is a task already: use it as it is"):
        conserva.load(conserva.load())


@pytest.mark.parametrize("model", ["sentiment", "digits"])
def test_files_have_their_own_tokenizer(model: str) -> None:
    with pytest.raises(conserva.Error, match=f"tokenizer is for a model in memory, but model='{model}' names files"):
        conserva.load(model, tokenizer=TOKENIZER)

"""`conserva.load` takes pipelines of transformers: the output that is explained is the one that they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from PIL import Image as Pictures
from transformers import pipeline

import conserva
import language
import tiny_heads
import tiny_images
import tiny_speech
from conserva.models.quiet import quiet_loading
from objects import bert, classifier, clip, closes, is_unchanged, snapshot, vit

TOKENIZER = tiny_heads.tokenizer()
PICTURE = Pictures.fromarray(tiny_images.noise())
EXACT = {"rel": 1e-4, "abs": 1e-5}


def piped(kind: str, model: Any, **parts: Any) -> Any:
    with quiet_loading():
        return pipeline(kind, model=model, **(parts or {"tokenizer": TOKENIZER}))


def loaded(pipe: Any, **options: Any) -> conserva.Task:
    """Return the task of a pipeline, which is unchanged."""
    before = snapshot(pipe.model)
    task = conserva.load(pipe, **options)
    assert task.network is pipe.model
    assert is_unchanged(pipe.model, before)
    return task


def explained(task: conserva.Task, given: Any, target: Any = None) -> conserva.Explanation:
    one = conserva.explain(task, given, target)
    assert closes(one)
    return one


@pytest.mark.parametrize("given", ["a joy.", ("a joy.", "it is a film")])
@pytest.mark.parametrize("kind", ["text-classification", "sentiment-analysis"])
def test_text_classification(kind: str, given: Any) -> None:
    pipe = piped(kind, classifier(num_labels=3))
    one = explained(loaded(pipe), given)
    asked = given if isinstance(given, str) else {"text": given[0], "text_pair": given[1]}
    logits = {one["label"]: one["score"] for one in pipe(asked, top_k=None, function_to_apply="none")}
    assert one.output == pytest.approx(logits[one.target], **EXACT)
    best = pipe([asked], top_k=1)[0][0]
    assert (one.target, one.probability) == (best["label"], pytest.approx(best["score"], **EXACT))


@pytest.mark.parametrize(
    ("changes", "options", "head"),
    [
        ({"num_labels": 1}, {}, "binary"),
        ({"num_labels": 1, "problem_type": "regression"}, {}, "regression"),
        ({"num_labels": 1}, {"function_to_apply": "none"}, "regression"),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, {}, "multi_label"),
        ({"num_labels": 3}, {"function_to_apply": "sigmoid"}, "multi_label"),
        ({"num_labels": 3}, {"function_to_apply": "softmax"}, "single_label"),
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}, {}, "single_label"),
    ],
)
def test_the_head_is_the_function_that_the_pipeline_applies(
    changes: dict[str, Any], options: dict[str, Any], head: str
) -> None:
    pipe = piped("text-classification", classifier(**changes), tokenizer=TOKENIZER, **options)
    task = loaded(pipe)
    assert task.head.name == head
    target = None if head != "regression" or changes["num_labels"] == 1 else 0
    one = explained(task, "a joy.", target)
    score = pipe("a joy.")[0]["score"]
    assert (one.output if head == "regression" else one.probability) == pytest.approx(score, **EXACT)
    assert loaded(pipe, head="single_label").head.name == "single_label"


def test_zero_shot_classification_is_that_of_pairs() -> None:
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    model = classifier(num_labels=3)
    model.config.id2label, model.config.label2id = names, {label: i for i, label in names.items()}
    pipe = piped("zero-shot-classification", model)
    task = loaded(pipe)
    pairs = [("a joy.", f"This example is {label}.") for label in ("fun", "dull")]
    logits = torch.tensor([explained(task, pair, "entailment").output for pair in pairs])
    found = pipe("a joy.", candidate_labels=["fun", "dull"])
    scores = dict(zip(found["labels"], found["scores"], strict=True))
    assert logits.softmax(0).tolist() == pytest.approx([scores["fun"], scores["dull"]], **EXACT)


@pytest.mark.parametrize("kind", ["token-classification", "ner"])
def test_token_classification(kind: str) -> None:
    pipe = piped(kind, bert("AutoModelForTokenClassification", num_labels=3))
    one = explained(loaded(pipe), ("a joy.", "joy"))
    found = pipe("a joy.", ignore_labels=[])[1]
    assert (one.target, one.probability) == (found["entity"], pytest.approx(float(found["score"]), **EXACT))


def test_fill_mask() -> None:
    pipe = piped("fill-mask", bert("AutoModelForMaskedLM"))
    one = explained(loaded(pipe), "a [MASK] film.")
    found = pipe("a [MASK] film.", top_k=1)[0]
    assert (one.target, one.probability) == (found["token_str"], pytest.approx(found["score"], **EXACT))


def test_text_generation() -> None:
    pipe = piped("text-generation", language.language_model(), tokenizer=language.byte_tokenizer())
    task = loaded(pipe)
    one = explained(task, "The capital of France is")
    with torch.no_grad():
        output = pipe.model(**pipe.tokenizer("The capital of France is", return_tensors="pt")).logits[0, -1]
    assert one.output == pytest.approx(float(output.max()), **EXACT)
    ids = pipe("The capital of France is", max_new_tokens=1, do_sample=False, return_tensors=True)
    assert ids[0]["generated_token_ids"][-1] == int(output.argmax())


def test_image_classification() -> None:
    with quiet_loading():
        processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    pipe = piped("image-classification", vit(), image_processor=processor)
    one = explained(loaded(pipe), PICTURE)
    best = pipe(PICTURE)[0]
    assert (one.target, one.probability) == (best["label"], pytest.approx(best["score"], **EXACT))


def test_zero_shot_image_classification_needs_labels() -> None:
    parts = tiny_images.processor()
    pipe = piped(
        "zero-shot-image-classification", clip(), tokenizer=parts.tokenizer, image_processor=parts.image_processor
    )
    labels = ["a cat", "a dog"]
    one = explained(loaded(pipe, labels=labels), PICTURE)
    best = pipe(PICTURE, candidate_labels=labels, hypothesis_template="{}")[0]
    assert (one.target, one.probability) == (best["label"], pytest.approx(best["score"], **EXACT))
    with pytest.raises(conserva.Error, match="give the texts as labels"):
        conserva.load(pipe)


def test_automatic_speech_recognition() -> None:
    speech = tiny_speech.speech()
    pipe = piped(
        "automatic-speech-recognition",
        speech.network,
        tokenizer=speech.tokenizer,
        feature_extractor=speech.extractor,
    )
    sound = tiny_speech.tone()
    one = explained(loaded(pipe), (sound, tiny_speech.RATE))
    features = next(iter(pipe.preprocess({"raw": sound, "sampling_rate": tiny_speech.RATE})))["input_features"]
    with torch.no_grad():
        start = torch.tensor([[pipe.model.config.decoder_start_token_id]])
        logits = pipe.model(input_features=features.to(pipe.model.dtype), decoder_input_ids=start).logits[0, -1]
    assert one.output == pytest.approx(float(logits.max()), **EXACT)


def test_pipelines_without_a_task_are_refused_by_name() -> None:
    with pytest.raises(conserva.Error, match="a pipeline for 'feature-extraction', which no task supports"):
        conserva.load(piped("feature-extraction", bert("AutoModel")))
    config = transformers.Wav2Vec2Config(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, conv_dim=(8,), conv_stride=(5,),
        conv_kernel=(10,), num_conv_pos_embeddings=2, num_conv_pos_embedding_groups=1, vocab_size=5,
    )  # fmt: skip
    pipe = piped(
        "automatic-speech-recognition",
        transformers.Wav2Vec2ForCTC(config).eval(),
        tokenizer=TOKENIZER,
        feature_extractor=transformers.Wav2Vec2FeatureExtractor(),
    )
    with pytest.raises(conserva.Error, match="Wav2Vec2ForCTC, which no task supports"):
        conserva.load(pipe)


def test_a_pipeline_derived_from_one_of_transformers_has_its_task() -> None:
    class Own(transformers.TextClassificationPipeline):
        pass

    assert type(conserva.load(Own(model=classifier(), tokenizer=TOKENIZER))) is conserva.Text


@pytest.mark.parametrize("step", ["__call__", "preprocess", "_forward", "postprocess"])
def test_a_pipeline_with_a_step_of_its_own_is_refused(step: str) -> None:
    base = transformers.TextClassificationPipeline

    def own(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(base, step)(self, *args, **options)

    pipe = type("Own", (base,), {step: own})(model=classifier(), tokenizer=TOKENIZER)
    with pytest.raises(conserva.Error, match=rf"{step}\(\) of its own, which is not explained"):
        conserva.load(pipe)
    pipe = base(model=classifier(), tokenizer=TOKENIZER)
    pipe.preprocess = lambda text, **options: base.preprocess(pipe, text.upper(), **options)
    with pytest.raises(conserva.Error, match=r"preprocess\(\) of its own"):
        conserva.load(pipe)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"tokenizer": TOKENIZER},
            "tokenizer is for a transformers model, but model is of type TextClassificationPipe",
        ),
        ({"labels": ["a", "b"]}, r"labels=\['a', 'b'\] is for image models"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16', but the model has weights in"),
        ({"head": "nothing"}, "head='nothing' is unknown"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        conserva.load(piped("text-classification", classifier()), **options)


def test_a_pipeline_whose_model_was_set_to_training_is_refused() -> None:
    pipe = piped("text-classification", classifier())
    pipe.model.train()
    with pytest.raises(conserva.Error, match=r"call model\.eval\(\) first"):
        conserva.load(pipe)

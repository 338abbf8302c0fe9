"""Encoder-decoders that write texts: the next token, explained by the source and by the answer so far."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import conserva
from conserva.evaluation.protocol import PROTOCOLS
from conserva.evaluation.samples import Sample
from conserva.tasks.seq2seq import Seq2Seq
from tiny import bert, llama
from writers import KINDS, byte_level, pieces, t5, writer

PAIRS = ["the cat sat", ("a dog slept under the tree", "the dog"), ("the cat", "a dog and a cat sat on"), "a mat"]


def weights(task: Seq2Seq) -> list[torch.Tensor]:
    return [one.detach().clone() for one in task.network.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_books_close(kind: str) -> None:
    task = writer(kind)
    before = weights(task)
    for one in conserva.explain(task, PAIRS, method="exact"):
        assert abs(one.ledger.gap) < 1e-10
        assert sum(one.scores) == pytest.approx(one.ledger.inputs, abs=1e-10)
        # Learned positions are added to the tokens, those of T5 shift its attention alone.
        assert (one.ledger.positions != 0) == ("bart" in kind)
        assert [name for name, _ in one.sections] == ["source", "answer so far"]
        assert sum(count for _, count in one.sections) == len(one.features)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(task), strict=True))
    assert all(one.grad is None for one in task.network.parameters())


@pytest.mark.parametrize("kind", ["t5", "bart"])
@pytest.mark.parametrize("method", ["exact", "ah+ln", "gae", "random"])
def test_many_equal_single_ones(kind: str, method: str) -> None:
    task = writer(kind)
    for given, one in zip(PAIRS, conserva.explain(task, PAIRS, method=method), strict=True):
        alone = conserva.explain(task, given, method=method)
        assert (one.features, one.target, one.sections) == (alone.features, alone.target, alone.sections)
        assert one.scores == pytest.approx(alone.scores, abs=1e-10)
        assert one.output == pytest.approx(alone.output, abs=1e-10)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_pads_get_nothing(kind: str) -> None:
    task = writer(kind)
    inputs = task.batch([task.encode(one) for one in PAIRS])
    found = conserva.relevance(task.model, inputs, rules="exact")
    for name in task.features:
        padded = inputs[name.replace("input_ids", "attention_mask")] == 0
        assert padded.any()
        assert (found.scores(name)[padded] == 0).all()
        assert (found.scores(name)[~padded] != 0).all()


@pytest.mark.parametrize(("kind", "start"), [("t5", ["<pad>"]), ("bart", ["</s>", "<s>"])])
def test_features_are_the_tokens_of_both(kind: str, start: list[str]) -> None:
    task = writer(kind)
    encoded = task.encode(("the cat sat", "a dog"))
    own = {"t5": [" the", " cat", " sat", "</s>"], "bart": ["<s>", "the", " cat", " sat", "</s>"]}[kind]
    answer = [*start, " a" if kind == "t5" else "a", " dog"]
    assert list(encoded.tokens) == own + answer
    assert encoded.parts == (len(own), len(answer))
    assert [token for token, special in zip(encoded.tokens, encoded.special, strict=True) if special] == [
        token for token in own + answer if token.startswith("<")
    ]
    assert encoded.words[-2:] == (0, 1)
    alone = task.encode("the cat sat")
    assert list(alone.tokens) == own + start
    assert alone.key != encoded.key


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_the_output_is_the_networks_own(kind: str) -> None:
    task = writer(kind)
    source, so_far = "the cat sat on a mat", "a dog and"
    one = conserva.explain(task, (source, so_far))
    ids = [*task.start, *task.tokenizer(so_far, add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        given = task.tokenizer(source, return_tensors="pt")
        logits = task.network(input_ids=given["input_ids"], decoder_input_ids=torch.tensor([ids])).logits[0, -1]
    assert one.output == pytest.approx(float(logits.max()), abs=1e-10)
    assert one.probability == pytest.approx(float(logits.softmax(-1).max()), abs=1e-6)
    assert one.target.strip("'") == task.vocabulary.text(int(logits.argmax())).strip("'")


TARGETS = [
    ("t5", "cat", ["\u2581cat"]),
    ("t5", " cat", ["\u2581cat"]),
    ("t5", "cat - dog", ["\u2581cat", "\u2581dog"]),
    ("t5", "</s>", ["</s>"]),
    ("bart", "cat", ["\u0120cat"]),
    ("bart", " cat", ["\u0120cat"]),
    ("bart", "slept", ["\u0120slept"]),
    ("bart", " cat -  dog", ["\u0120cat", "\u0120dog"]),
]


@pytest.mark.parametrize(("kind", "target", "tokens"), TARGETS)
def test_a_target_is_a_tokens_text(kind: str, target: str, tokens: list[str]) -> None:
    task = writer(kind)
    ids = task.tokenizer.convert_tokens_to_ids(tokens)
    one = conserva.explain(task, PAIRS[1], target)
    index = ids[0] if len(ids) == 1 else f"{ids[0]} - {ids[1]}"
    result = conserva.relevance(task.model, task.batch([task.encode(PAIRS[1])]), index, rules="exact")
    assert one.output == pytest.approx(float(result.output), abs=1e-12)
    if len(ids) == 1:
        same = conserva.explain(task, PAIRS[1], ids[0])
        assert (one.scores, one.target, one.probability) == (same.scores, same.target, same.probability)
    else:
        assert one.probability is None


def test_an_answer_begins_without_a_space() -> None:
    task = writer("bart")
    first, later = (task.encode(("the cat", so_far)) for so_far in ("", "a"))
    cat, spaced = task.tokenizer.convert_tokens_to_ids(["cat", "\u0120cat"])
    assert (task.resolve_target("cat", first), task.resolve_target("cat", later)) == (cat, spaced)
    assert task.resolve_target(" cat", first) == spaced


REFUSED = [
    ("", "is empty"),
    ("   ", "is empty"),
    (("", "a cat"), "is empty"),
    (["a cat", 7], "7 is not a text"),
    ([("a cat", 7)], r"\('a cat', 7\) is not a text"),
    ({"a": 1}, "is neither a single text"),
    ("the cat " * 40, "82 tokens, the model takes 30"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_sources_that_cannot_be_explained_are_refused(given: object, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        conserva.explain(writer("t5"), given)


def test_a_long_source_may_be_cut_and_a_long_answer_not() -> None:
    task = writer("bart")
    cut = conserva.explain(task, "the cat " * 40, truncate=True)
    assert cut.sections[0] == ("source", 24)
    long = ("the cat", "the cat " * 11)
    with pytest.raises(conserva.Error, match=r"answer so far to 'the cat' has .* tokens .*takes 24: shorten"):
        conserva.explain(task, long, truncate=True)


@pytest.mark.parametrize("target", ["catdog", "xyzzy - cat", "\u4e16", ""])
def test_a_target_that_is_no_token_is_refused(target: str) -> None:
    with pytest.raises(conserva.Error, match=repr(target.split(" - ")[0])):
        conserva.explain(writer("t5"), "the cat", target)


def test_a_target_of_several_pieces_lists_them() -> None:
    with pytest.raises(conserva.Error, match="'cat', 'do', 'g'"):
        conserva.explain(writer("bart"), "the cat", "catdog")


def test_other_models_are_refused() -> None:
    for model in (bert(), llama()):
        with pytest.raises(conserva.Error, match=f"{type(model).__name__} is not an encoder-decoder"):
            Seq2Seq(model, pieces())
    with pytest.raises(conserva.Error, match=r"model='t5' is not a torch.nn.Module"):
        Seq2Seq("t5", pieces())
    with pytest.raises(conserva.Error, match="tokenizer=None"):
        Seq2Seq(t5(), None)
    model = t5().eval()
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = None
    model.config.bos_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(conserva.Error, match="decoder_start_token_id"):
        Seq2Seq(model, pieces(), name="mine").encode("a cat")


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_tokens_are_taken_away_on_both_sides(kind: str) -> None:
    """Rows of several pairs side by side give what each alone gives, with the tokens that are gone masked by hand."""
    task = writer(kind)
    encoded = [task.encode(one) for one in PAIRS]
    generator = np.random.default_rng(0)
    kept = [generator.random((3, len(one))) < 0.7 for one in encoded]
    rows = [task.masked(one, keep, "drop") for one, keep in zip(encoded, kept, strict=True)]
    with torch.no_grad():
        together = task.model(**task.stack(rows)).logits
        alone = []
        for one, keep in zip(encoded, kept, strict=True):
            source, own = one.parts[0], task.batch([one])
            for row in keep:
                seen = torch.from_numpy(row.astype(np.int64))[None]
                answer = seen[:, source:].clone()
                answer[:, -1] = 1  # read from there: it stays
                masks = {"attention_mask": seen[:, :source], "decoder_attention_mask": answer}
                alone.append(task.model(**{**own, **masks}).logits)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-10, atol=1e-10)


def test_equal_rows_are_told_from_rows_of_other_parts() -> None:
    task = writer("t5")
    one, other = task.encode(("a cat", "the dog")), task.encode("the dog sat on")
    assert len(one) == len(other)
    whole = np.ones((1, len(one)), dtype=bool)
    first, again, third = (task.masked(each, whole, "drop").keys() for each in (one, one, other))
    assert np.array_equal(first, again)
    assert first.shape == third.shape
    assert first[0, -8:].tolist() != third[0, -8:].tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_token_that_is_read_stays(protocol: str) -> None:
    encoded = writer("t5").encode(("a cat", "the dog"))
    maskable = Sample(0, encoded, None).maskable(PROTOCOLS[protocol])
    assert not maskable[-1]
    assert maskable[-2]
    assert maskable[encoded.parts[0] - 1] == (protocol == "paper")


def test_an_evaluation_runs_on_next_tokens() -> None:
    task = writer("bart")
    predicted = conserva.explain(task, ("the dog", "a cat")).target
    data = [("the cat sat", " cat"), (("the dog", "a cat"), predicted.strip("'"))]
    found = conserva.evaluate(task, data, ["exact"], count=None)
    assert found.samples == 2
    assert found.accuracy == 0.5
    assert found.protocol["mask"] == "drop"
    assert conserva.evaluate(task, ["the cat"], ["exact"]).accuracy is None


@pytest.mark.parametrize(
    ("data", "message"),
    [([], "contains no texts"), ([("a cat", "b", "c")], "differ"), ([("a cat", "dog"), "a cat"], "differ")],
)
def test_data_that_is_none_is_refused(data: object, message: str) -> None:
    with pytest.raises(conserva.Error, match=message):
        conserva.evaluate(writer("t5"), data, ["exact"])


def test_an_unknown_next_token_is_refused() -> None:
    with pytest.raises(conserva.Error, match="catdog"):
        conserva.evaluate(writer("bart"), [("a cat", "catdog")], ["exact"], watch="true")


def test_an_audit_takes_pairs() -> None:
    found = conserva.audit(writer("t5"), PAIRS[1], rules="exact")
    assert abs(found.ledger.gap) < 1e-10


def test_a_tokenizer_may_have_no_pad() -> None:
    tokenizer = byte_level().__class__(tokenizer_object=byte_level().backend_tokenizer, eos_token="</s>")
    task, usual = Seq2Seq(writer("bart").network, tokenizer), writer("bart")
    for one, same in zip(conserva.explain(task, PAIRS), conserva.explain(usual, PAIRS), strict=True):
        assert one.scores == pytest.approx(same.scores, abs=1e-10)


def test_answers_are_written_in_their_own_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tokenizers have another vocabulary for answers, which they are told to switch to."""
    switched: list[bool] = []
    monkeypatch.setattr(type(pieces()), "_switch_to_target_mode", lambda self: switched.append(True), False)
    writer("t5").encode("a cat")
    assert not switched
    writer("t5").encode(("a cat", "the dog"))
    assert switched

"""The front door: load, explain, save, load again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import conserva
from conserva.engine.ledger import Ledger
from conserva.engine.rules import RULE_SETS
from conserva.errors import OutOfMemory
from conserva.tasks.batches import by_length
from tiny import bert

SENTENCE = "has a lot of the virtues of eastwood at his best."


@pytest.fixture(scope="module")
def task() -> conserva.Text:
    return conserva.load()


@pytest.mark.parametrize("method", RULE_SETS)
def test_an_explanation_adds_up(task: conserva.Text, method: str) -> None:
    one = conserva.explain(task, SENTENCE, method=method)
    assert one.features[0] == "[CLS]"
    assert one.target == "positive"
    assert one.probability > 0.9
    assert one.method == method
    assert len(one.features) == len(one.scores) == len(one.special) == len(one.words)
    ledger = one.ledger
    assert ledger.inputs + ledger.positions + ledger.biases + ledger.gap == pytest.approx(one.output, abs=1e-9)
    assert sum(one.scores) == pytest.approx(ledger.inputs, abs=1e-4)
    if method == "exact":
        assert abs(ledger.gap) < 1e-4


def test_the_words_that_matter_stand_out(task: conserva.Text) -> None:
    one = conserva.explain(task, SENTENCE).merged().visible()
    ranked = sorted(zip(one.scores, one.features, strict=True), reverse=True)
    assert {word for _, word in ranked[:2]} == {"virtues", "best"}


def test_many_texts_equal_single_ones_in_their_order(task: conserva.Text) -> None:
    texts = ["a joy.", "not much of anything, and far too long for what little it has to say.", "dull", SENTENCE]
    done: list[int] = []
    longest = max(len(task.encode(text)) for text in texts)
    many = conserva.explain(task, texts, method="exact", batch_tokens=3 * (longest - 1), progress=done.append)
    assert done == [3, 1]
    for text, one in zip(texts, many, strict=True):
        alone = conserva.explain(task, text, method="exact")
        assert one.text == text
        assert one.features == alone.features
        assert one.scores == pytest.approx(alone.scores, abs=1e-4)
        assert one.target == alone.target
    assert [one.target for one in many] == ["positive", "negative", "negative", "positive"]


def test_a_batch_has_as_many_tokens_as_its_budget_allows() -> None:
    lengths = [7, 2, 9, 2, 3, 30, 4]
    assert list(by_length(lengths, 12)) == [[1, 3, 4], [6], [0], [2], [5]]
    for tokens in (1, 8, 20, 1000):
        batches = list(by_length(lengths, tokens))
        assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
        for rows, (first, *_) in zip(batches, [*batches[1:], [None]], strict=True):
            assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= tokens
            assert first is None or (len(rows) + 1) * lengths[first] > tokens
    assert list(by_length([], 5)) == []


@pytest.mark.parametrize("method", ["ah+ln", "rollout", "random"])
def test_the_budget_changes_no_result(task: conserva.Text, method: str) -> None:
    texts = ["a joy.", "dull", SENTENCE, "not much of anything", "a joy."]
    at_once, *others = (
        conserva.explain(task, texts, [1, 0, None, "negative", 1], method=method, batch_tokens=tokens)
        for tokens in (10_000, 40, 1)
    )
    for many in others:
        for one, same in zip(many, at_once, strict=True):
            assert one.scores == pytest.approx(same.scores, abs=1e-5)
            assert one.output == pytest.approx(same.output, abs=1e-5)
            assert (one.text, one.target, one.provenance) == (same.text, same.target, same.provenance)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), OutOfMemory("full"), RuntimeError("out of memory")])
def test_a_batch_that_does_not_fit_is_halved(
    task: conserva.Text, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, tried, batched = ["dull", "a joy.", "a dull joy", "not much of anything"], [], task.batch

    def batch(encoded: list) -> dict[str, torch.Tensor]:
        tried.append(len(encoded))
        if len(encoded) > 1 and len(tried) < 3:
            raise error
        return batched(encoded)

    expected = conserva.explain(task, texts)
    monkeypatch.setattr(task, "batch", batch)
    done: list[int] = []
    many = conserva.explain(task, texts, progress=done.append)
    assert (tried, done) == ([4, 2, 1, 1, 2], [1, 1, 2])
    for one, same in zip(many, expected, strict=True):
        assert one.text == same.text
        assert one.scores == pytest.approx(same.scores, abs=1e-5)


def test_one_input_that_does_not_fit_is_an_error(task: conserva.Text, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(encoded: list) -> dict[str, torch.Tensor]:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(task, "batch", batch)
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        conserva.explain(task, ["dull", "a joy."])


@pytest.mark.parametrize("tokens", [1, 10_000])
def test_numbers_that_are_not_finite_are_found_in_every_batch(task: conserva.Text, tokens: int) -> None:
    model = bert(vocab_size=12000, max_position_embeddings=512)
    broken = conserva.Text(model, task.tokenizer)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[broken.encode("joy").ids[1]] = float("inf")
    for texts in (["joy"], ["joy", "dull", "not much"], ["dull", "not much", "joy"], ["dull", "joy", "not much of it"]):
        with pytest.raises(conserva.Error, match="The output has nan or inf"):
            conserva.explain(broken, texts, batch_tokens=tokens)
    assert len(conserva.explain(broken, ["dull", "not much"], batch_tokens=tokens)) == 2


def test_targets(task: conserva.Text) -> None:
    negative = conserva.explain(task, SENTENCE, "negative")
    assert negative.target == "negative"
    assert negative.probability < 0.1
    assert conserva.explain(task, SENTENCE, 0).target == "negative"
    contrast = conserva.explain(task, SENTENCE, "positive - negative", method="exact")
    assert contrast.probability is None
    positive = conserva.explain(task, SENTENCE, "positive", method="exact")
    assert contrast.output == pytest.approx(positive.output - negative.output, abs=1e-4)
    mixed = conserva.explain(task, [SENTENCE, SENTENCE], ["positive", "negative"])
    assert [one.target for one in mixed] == ["positive", "negative"]


def test_word_pieces_merge_and_special_tokens_hide(task: conserva.Text) -> None:
    one = conserva.explain(task, "an unwatchably hackneyed telenovela")
    whole = one.merged()
    assert any(feature.startswith("##") for feature in one.features)
    assert whole.features == ("[CLS]", "an", "unwatchably", "hackneyed", "telenovela", "[SEP]")
    assert sum(whole.scores) == pytest.approx(sum(one.scores), abs=1e-6)
    assert whole.visible().features == ("an", "unwatchably", "hackneyed", "telenovela")


def test_byte_level_tokens_are_readable(task: conserva.Text) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bytes_of = Tokenizer(models.BPE())
    bytes_of.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_of.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<pad>"], initial_alphabet=alphabet)
    bytes_of.train_from_iterator(["a naïve joy"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_of, pad_token="<pad>")
    one = conserva.explain(conserva.Text(task.model, tokenizer), "a naïve joy")
    assert one.merged().features == ("a", "naïve", "joy")


@pytest.mark.parametrize("shape", [lambda e: e, lambda e: e.merged(), lambda e: e.visible()])
def test_json_saved_and_loaded_is_equal(task: conserva.Text, tmp_path: Path, shape) -> None:
    one = shape(conserva.explain(task, 'a "quoted" <b>naïve</b> 🎬 שלום text', method="exact"))
    path = one.save(tmp_path / "one.json")
    assert conserva.Explanation.load(path) == one
    found = json.loads(path.read_text(encoding="utf-8"))
    keys = {
        "schema",
        "features",
        "scores",
        "target",
        "output",
        "probability",
        "ledger",
        "method",
        "model",
        "provenance",
    }
    assert keys <= set(found)
    assert sum(found["ledger"].values()) == pytest.approx(found["output"], abs=1e-9)
    assert {"conserva", "torch", "dtype", "rules"} <= set(found["provenance"])


def test_half_written_or_foreign_json_is_refused(task: conserva.Text, tmp_path: Path) -> None:
    text = conserva.explain(task, "a joy.").to_json()
    for broken, says in ((text[:-50], "truncated"), ("{}", "not a valid explanation"), ("[1]", "it is a list")):
        path = tmp_path / "broken.json"
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(conserva.Error, match=says):
            conserva.Explanation.load(path)
    missing = json.loads(text)
    del missing["scores"]
    with pytest.raises(conserva.Error, match="scores is missing"):
        conserva.Explanation.from_json(json.dumps(missing))
    with pytest.raises(conserva.Error, match=r"'\.doc'"):
        conserva.explain(task, "a joy.").save(tmp_path / "one.doc")


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_empty_text_is_refused(task: conserva.Text, text: str) -> None:
    with pytest.raises(conserva.Error, match="is empty"):
        conserva.explain(task, text)


def test_half_a_character_is_refused(task: conserva.Text) -> None:
    with pytest.raises(conserva.Error, match="half a character, a lone surrogate, as its character number 3:"):
        conserva.explain(task, "a \udcff joy.")


def test_text_that_is_no_text_is_refused(task: conserva.Text) -> None:
    with pytest.raises(conserva.Error, match="7 is not a string"):
        conserva.explain(task, [7])  # type: ignore[list-item]


def test_long_text_is_refused_or_cut_by_choice(task: conserva.Text) -> None:
    text = "good " * 600
    with pytest.raises(conserva.Error, match="602 tokens, the model takes 512"):
        conserva.explain(task, text)
    assert len(conserva.explain(task, text, truncate=True).features) == 512


def test_unknown_label_lists_the_labels(task: conserva.Text) -> None:
    with pytest.raises(conserva.Error, match=r"'happy'.*'negative', 'positive'"):
        conserva.explain(task, "a joy.", "happy")


def test_unknown_method_suggests_the_nearest(task: conserva.Text) -> None:
    with pytest.raises(conserva.Error, match=r"'ahln' is unknown. Did you mean 'ah\+ln'"):
        conserva.explain(task, "a joy.", method="ahln")


def test_unknown_model_names_the_bundled_one() -> None:
    with pytest.raises(conserva.Error, match=r"'no/such-model' is neither a folder nor .*'sentiment'") as error:
        conserva.load("no/such-model")
    assert "\n" not in str(error.value)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=r"without config\.json"):
        conserva.load(tmp_path)


def test_a_model_without_a_head_is_refused(tmp_path: Path, task: conserva.Text) -> None:
    task.model.bert.save_pretrained(tmp_path)
    task.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(conserva.Error, match=r"BertModel, which no task supports.*text classifier"):
        conserva.load(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path, task: conserva.Text) -> None:
    task.model.save_pretrained(tmp_path)
    task.tokenizer.save_pretrained(tmp_path)
    torch.save(task.model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(conserva.Error, match="could not be loaded"):
        conserva.load(tmp_path)


def test_a_folder_and_a_model_in_memory(tmp_path: Path, task: conserva.Text) -> None:
    task.model.save_pretrained(tmp_path)
    task.tokenizer.save_pretrained(tmp_path)
    loaded = conserva.load(tmp_path)
    in_memory = conserva.Text(task.model, task.tokenizer)
    expected = conserva.explain(task, SENTENCE)
    for other in (loaded, in_memory):
        one = conserva.explain(other, SENTENCE)
        # Weights that lie elsewhere in memory may be summed in another order.
        assert one.scores == pytest.approx(expected.scores, rel=1e-4, abs=1e-6)
        assert one.provenance == expected.provenance
    other = conserva.Text(bert(vocab_size=12000, max_position_embeddings=512), task.tokenizer)
    assert other.fingerprint != task.fingerprint


def test_wrong_tasks_are_refused(task: conserva.Text) -> None:
    with pytest.raises(conserva.Error, match=r"not a torch\.nn\.Module"):
        conserva.Text("model", task.tokenizer)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="is not a Hugging Face tokenizer"):
        conserva.Text(task.model, "tokenizer")  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="is not a task"):
        conserva.explain(task.model, "a joy.")  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match=r"target is a list of 3 for 1 text"):
        conserva.explain(task, "a joy.", [0, 1, 0])


def test_ledger_entries_close_by_construction() -> None:
    assert Ledger.of(1.0, 0.25, 0.5, 0.5).gap == -0.25


def test_the_bundled_model_is_small_and_says_where_it_comes_from() -> None:
    folder = Path(conserva.__file__).parent / "models" / "sentiment"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10_000_000
    assert "seed 0" in (folder / "README.md").read_text(encoding="utf-8")


def test_heavy_things_are_imported_where_used() -> None:
    code = "import sys, conserva; print([m for m in ('transformers', 'matplotlib', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_texts_are_encoded_alike_alone_and_together(monkeypatch: pytest.MonkeyPatch) -> None:
    task = conserva.load()
    texts = ["a joy.", "dull [SEP] and long", "naïve café 😀 ok"]
    alone = [task.encode(text) for text in texts]
    calls, tokenizer = [], type(task.tokenizer).__call__
    monkeypatch.setattr(
        type(task.tokenizer), "__call__", lambda *args, **how: (calls.append(1), tokenizer(*args, **how))[1]
    )
    assert task.encode_all(texts) == alone
    assert len(calls) == 1
    assert task.encode_all([]) == []
    with pytest.raises(conserva.Error, match="is empty"):
        task.encode_all(["a joy.", " "])

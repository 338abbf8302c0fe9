"""Language models as a task: prompts and chats, the next token, batches and masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import conserva
from conserva.tasks import Causal
from conserva.tasks.causal import NextToken
from conserva.tasks.fingerprint import fingerprint
from conserva.tasks.prompts import words_of
from conserva.tasks.vocabulary import Vocabulary
from language import (
    BEGIN,
    END,
    KINDS,
    TEMPLATE,
    byte_tokenizer,
    causal,
    language_model,
    piece_tokenizer,
    word_tokenizer,
)
from tiny import bert

PROMPT = "The capital of France is"
PROMPTS = [PROMPT, "Rome", "The capital of Italy and the capital of England", "Paris, London"]
ROUNDING = 1e-6
"""Llama and Gemma norm in float32, whatever the model is in."""


@pytest.fixture(scope="module")
def task() -> Causal:
    return causal()


@pytest.mark.parametrize("kind", KINDS)
def test_the_books_of_the_next_token_close(kind: str) -> None:
    task = causal(kind)
    before = fingerprint(task.network)
    one = conserva.explain(task, PROMPT)
    assert one.method == "exact"
    assert one.features == (BEGIN, "The", " capital", " of", " France", " is")
    assert one.special == (True, *[False] * 5)
    assert one.words == (None, 0, 1, 2, 3, 4)
    assert abs(one.ledger.gap) < ROUNDING * abs(one.output)
    assert sum(one.scores) == pytest.approx(one.ledger.inputs, abs=1e-9)
    assert min(map(abs, one.scores)) > 0
    with torch.no_grad():
        logits = task.network(torch.tensor([task.encode(PROMPT).ids])).logits[0, -1]
    assert one.output == pytest.approx(float(logits.max()), rel=1e-9)
    assert one.target == task.vocabulary.text(int(logits.argmax()))
    assert one.probability == pytest.approx(float(logits.softmax(-1).max()), rel=1e-5)
    assert fingerprint(task.network) == before
    assert not any(module._forward_pre_hooks for module in task.network.modules())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_prompts_equals_singles(kind: str, side: str) -> None:
    task = causal(kind, padding_side=side)
    assert task.tokenizer.pad_token_id is None
    many = conserva.explain(task, PROMPTS, " Paris")
    for prompt, one in zip(PROMPTS, many, strict=True):
        alone = conserva.explain(task, prompt, " Paris")
        assert one.features == alone.features
        assert one.scores == pytest.approx(alone.scores, abs=1e-6)
        assert one.output == pytest.approx(alone.output, abs=1e-6)
        assert abs(one.ledger.gap) < ROUNDING * (1 + abs(one.output))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_inputs_that_a_user_padded_on_the_left_equal_singles(kind: str) -> None:
    task = causal(kind)
    rows = [list(task.encode(prompt).ids) for prompt in PROMPTS]
    width = max(map(len, rows))
    ids = torch.tensor([[7] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    many = conserva.relevance(task.network, inputs, (-1, 305), rules="exact")
    for i, prompt in enumerate(PROMPTS):
        alone, pads = conserva.explain(task, prompt, 305), width - len(rows[i])
        assert many.scores()[i, pads:].tolist() == pytest.approx(alone.scores, abs=1e-6)
        assert many.scores()[i, :pads].abs().sum() == 0
        assert float(many.output[i]) == pytest.approx(alone.output, abs=1e-6)


def test_pads_get_nothing(task: Causal) -> None:
    inputs = task.batch([task.encode(one) for one in PROMPTS])
    pads = inputs["attention_mask"] == 0
    assert pads.any()
    assert inputs["read"].tolist() == [len(task.encode(one)) - 1 for one in PROMPTS]
    found = conserva.relevance(task.model, inputs, 305, rules="attnlrp")
    assert (found.scores()[pads] == 0).all()


def test_the_network_scores_the_places_that_are_read_alone(task: Causal) -> None:
    widths: list[int] = []
    hook = task.network.lm_head.register_forward_hook(lambda head, args, output: widths.append(output.shape[1]))
    try:
        conserva.explain(task, PROMPTS)
    finally:
        hook.remove()
    assert set(widths) == {1}


class Headless(nn.Module):
    """A language model that does not say where its last layer is."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.inner = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool | None = None) -> Any:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)


def test_a_network_that_scores_all_places_is_read_too(task: Causal) -> None:
    inputs = task.batch([task.encode(one) for one in PROMPTS])
    whole = conserva.relevance(NextToken(Headless(task.network).eval()), inputs, 305, rules="exact")
    chosen = conserva.relevance(task.model, inputs, 305, rules="exact")
    torch.testing.assert_close(whole.scores(), chosen.scores(), rtol=1e-9, atol=1e-9)


def test_relevance_is_read_behind_the_embeddings_too() -> None:
    task = causal("gpt2")
    one = conserva.explain(task, PROMPT, method="exact:at=embeddings")
    assert one.ledger.positions == 0
    assert sum(one.scores) == pytest.approx(one.ledger.inputs, abs=1e-9)
    assert abs(one.ledger.gap) < 1e-9


@pytest.mark.parametrize("method", conserva.methods())
def test_every_method_explains_the_next_token(task: Causal, method: str) -> None:
    many = conserva.explain(task, PROMPTS[:2], " Paris", method=method)
    alone = conserva.explain(task, PROMPTS[1], " Paris", method=method)
    assert many[1].scores == pytest.approx(alone.scores, abs=1e-5)


# What is asked about.


def test_targets_are_tokens(task: Causal) -> None:
    paris, london = (task.vocabulary.pieces(text) for text in (" Paris", " London"))
    for target, name in ((paris[0], " Paris"), (" Paris", " Paris"), ("Paris", " Paris"), ("England", " England")):
        one = conserva.explain(task, PROMPT, target)
        assert one.target == name
        assert one.probability is not None
    contrast = conserva.explain(task, PROMPT, " Paris - London")
    assert (contrast.target, contrast.probability) == (" Paris -  London", None)
    both = [conserva.explain(task, PROMPT, one[0]) for one in (paris, london)]
    assert contrast.output == pytest.approx(both[0].output - both[1].output)
    assert contrast.scores == pytest.approx([a - b for a, b in zip(*(one.scores for one in both), strict=True)])


def test_a_word_after_a_space_has_none_of_its_own(task: Causal) -> None:
    spaced, bare = task.vocabulary.pieces(" Paris")[0], task.vocabulary.pieces("Paris")[0]
    assert spaced != bare
    for prompt, expected in ((PROMPT, spaced), (f"{PROMPT} ", bare), (f"{PROMPT}\n", bare)):
        assert task.resolve_target("Paris", task.encode(prompt)) == expected


CONTRASTS = {
    "as it is given": ("Paris - user", ("Paris", "user")),
    "both are words": ("Paris - London", (" Paris", " London")),
    "both after a space": ("England - Paris", (" England", " Paris")),
    "a space for both": (" Paris - name", (" Paris", " name")),
    "each in its own way": ("England - gl", (" England", "gl")),
}


@pytest.mark.parametrize("name", CONTRASTS)
def test_both_sides_of_a_contrast_are_written_alike(task: Causal, name: str) -> None:
    target, texts = CONTRASTS[name]
    found = task.vocabulary.contrast(target)
    assert found is not None
    assert tuple(map(task.vocabulary.text, found)) == texts


def test_a_token_that_looks_like_a_contrast_is_none() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["Paris - London"])
    assert len(tokenizer) == 333
    task = Causal(language_model(), tokenizer)
    assert task.resolve_target("Paris - London", task.encode(PROMPT)) == 332
    assert (
        task.resolve_target("Rome - London", task.encode(PROMPT))
        == f"{task.vocabulary[' Rome']} - {task.vocabulary[' London']}"
    )


BAD_TARGETS = {
    "several pieces": ("Marseille", "target='Marseille' is not a single token; its pieces are 'M', 'a', "),
    "nothing": ("", "target='' is not a single token; its pieces are none"),
    "half a contrast": (" Paris - Marseille", "target='Marseille' is not a single token"),
    "half a character": (" \ud83d", "half a character, a lone surrogate, as its character number 2"),
    "out of range": (420, "target=420 is out of range"),
    "no target": (1.5, "target=1.5 is not a class index"),
}


@pytest.mark.parametrize("name", BAD_TARGETS)
def test_what_is_no_token_is_refused(task: Causal, name: str) -> None:
    target, message = BAD_TARGETS[name]
    with pytest.raises(conserva.Error) as error:
        conserva.explain(task, PROMPT, target)
    assert message in str(error.value)
    assert "piece" not in message or "conserva.explain_generation" in str(error.value)


TOKENIZERS: dict[str, tuple[Callable[[], Any], str, list[str], str]] = {
    "bytes": (byte_tokenizer, "Paris é London", ["Paris", " ", "Ã", "©", " London"], " London"),
    "words": (word_tokenizer, "Paris is London", [" Paris", " is", " London"], " London"),
    "pieces": (piece_tokenizer, "Paris é London", [" Paris", " ", "<0xC3>", "<0xA9>", " London"], " London"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_keep_their_spaces(name: str) -> None:
    make, text, texts, wanted = TOKENIZERS[name]
    vocabulary = Vocabulary(make())
    assert [vocabulary.text(one) for one in vocabulary.pieces(text)] == texts
    for form in (wanted, wanted.strip()):
        found = vocabulary[form]
        assert vocabulary.text(found).strip() == wanted.strip()
    assert vocabulary.text(vocabulary[wanted]) == wanted
    assert "Xenon" not in vocabulary
    assert vocabulary.text(10_000) == "<10000>"
    known = dict(vocabulary.items())
    assert list(vocabulary) == list(known)
    assert len(vocabulary) == len(known)
    assert known[wanted] == vocabulary[wanted]


def test_a_word_begins_after_white_space() -> None:
    texts = ["<s>", "Par", "is", " is", "\n", "big", ".", "<end>", "ger"]
    special = [True, *[False] * 6, True, False]
    assert words_of(texts, special) == (None, 0, 0, 1, 2, 3, 3, None, 4)


# Prompts and chats.


def chatting(**settings: Any) -> Causal:
    task = causal(**settings)
    task.tokenizer.chat_template = TEMPLATE
    return task


def test_a_chat_goes_through_its_template() -> None:
    task = chatting()
    chat = [
        {"role": "user", "content": " user "},
        {"role": "assistant", "content": "said"},
        {"role": "user", "content": "Rome"},
    ]
    one = task.encode(chat)
    assert one.text == f"[user]user{END}[assistant]said{END}[user]Rome{END}[assistant]"
    assert "".join(one.tokens) == one.text  # no mark of the beginning: the template would have written it
    own = "".join(token for token, special in zip(one.tokens, one.special, strict=True) if not special)
    assert own == "usersaidRome"
    assert [token for token in one.tokens if token == END] == [END] * 3
    assert task.is_single(chat)
    assert not task.is_single([chat, chat])
    assert not task.is_single([])
    assert not task.is_single([PROMPT])
    alone, many = conserva.explain(task, chat), conserva.explain(task, [chat, PROMPT])
    assert isinstance(many, conserva.Explanations)
    assert many[0].scores == pytest.approx(alone.scores, abs=1e-6)


REWRITING = {
    "another text": ("{% for m in messages %}<{{ m['content'] | upper }}>{% endfor %}", "<A ROME>", "A ROME"),
    "a message left out": ("{{ messages[-1]['content'] }}!", "Rome!", "Rome"),
    "only a count": ("{{ messages | length }} {{ messages[0]['content'] | length }}", "2 1", "2 1"),
}


@pytest.mark.parametrize("name", REWRITING)
def test_templates_may_rewrite_messages(name: str) -> None:
    template, text, own = REWRITING[name]
    task = causal()
    task.tokenizer.chat_template = template
    messages = [{"role": "user", "content": part} for part in ("a", "Rome")]
    chat = [{"role": "user", "content": "a Rome"}] if name == "another text" else messages
    one = task.encode(chat)
    assert one.text == text
    assert "".join(token for token, special in zip(one.tokens, one.special, strict=True) if not special) == own


BAD_PROMPTS: dict[str, tuple[Any, str]] = {
    "empty": ("  ", "prompt='  ' is empty"),
    "a number": ([3], "prompt=3 is neither a text nor a chat"),
    "too long": ("Rome, " * 60, "tokens, the model takes 64: shorten it"),
    "no content": ([{"role": "user"}], "{'role': 'user'} is not a message"),
    "parts": ([{"role": "user", "content": [{"type": "image"}]}], "is not a message"),
    "half a character": ("Rome \ud83d", "half a character, a lone surrogate, as its character number 6"),
    "half a character in a chat": ([{"role": "user", "content": "\ud83d"}], "content='\\ud83d' has half a character"),
    "empty chat": ([{"role": "user", "content": " "}], "is empty"),
    "a role that the template refuses": ([{"role": "bad", "content": "a"}], "template rejects messages of bad: no bad"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_prompts_that_cannot_be_explained_are_refused(name: str) -> None:
    given, message = BAD_PROMPTS[name]
    task = chatting()
    task.tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'bad' %}{{ raise_exception('no bad') }}{% endif %}" + TEMPLATE
    )
    with pytest.raises(conserva.Error) as error:
        conserva.explain(task, given)
    assert message in str(error.value)


def test_a_chat_needs_a_template(task: Causal) -> None:
    with pytest.raises(conserva.Error, match="no chat template for the 1 message"):
        conserva.explain(task, [{"role": "user", "content": "Rome"}])


def test_a_long_prompt_keeps_its_end(task: Causal) -> None:
    text = "Rome, " * 30 + PROMPT
    whole = task.tokenizer(text)["input_ids"]
    assert len(whole) > task.longest == 64
    one = task.encode(text, truncate=True)
    assert list(one.ids) == [0, *whole[-63:]]
    assert one.special == (True, *[False] * 63)
    plain = causal(begins=False)
    assert list(plain.encode(text, truncate=True).ids) == whole[-64:]


def test_only_language_models_are_taken() -> None:
    tokenizer = byte_tokenizer()
    with pytest.raises(conserva.Error, match="is not a torch"):
        Causal("gpt2", tokenizer)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="is not a Hugging Face tokenizer"):
        Causal(language_model(), None)  # type: ignore[arg-type]
    with pytest.raises(conserva.Error, match="BertForSequenceClassification is not a language model"):
        conserva.explain(Causal(bert(vocab_size=420), tokenizer), PROMPT)


# Taking tokens away.


def test_hidden_tokens_are_as_if_they_were_not_seen(task: Causal) -> None:
    encoded = task.encode(PROMPT)
    assert encoded.fixed == (*[False] * 5, True)
    assert encoded.sink == 0
    assert causal(mask_token=END).mask(None, ("mask", "drop", "token")) == "drop"
    kept = np.array([[True] * 6, [True, False, True, True, True, True], [False] * 6])
    rows = task.masked(encoded, kept, "drop")
    assert rows.attention.tolist() == [[1] * 6, [1, 0, 1, 1, 1, 1], [0] * 5 + [1]]
    inputs = task.stack([rows, task.masked(task.encode(PROMPTS[2]), np.ones((1, 10), bool), "drop")])
    assert inputs["read"].tolist() == [5, 5, 5, 9]
    with torch.no_grad():
        whole, hidden, bare, _ = task.model(**inputs).logits
        clean = task.model(**task.batch([encoded])).logits[0]
        seen = torch.tensor([[1, 0, 1, 1, 1, 1]])
        wanted = task.network(torch.tensor([encoded.ids]), attention_mask=seen).logits[0, -1]
    torch.testing.assert_close(whole, clean)
    torch.testing.assert_close(hidden, wanted)
    assert not torch.isclose(hidden, clean).all()
    assert bare.isfinite().all()


def test_methods_are_measured_on_the_next_token(task: Causal) -> None:
    data = [(PROMPT, " Paris"), (PROMPTS[2], "London"), ("Rome", 305)]
    found = conserva.evaluate(task, data, ["exact", "random"], steps=3, watch="true", random_seeds=1)
    assert found.protocol["mask"] == "drop"
    assert found.samples == 3
    assert {one.method for one in found.methods} >= {"exact", "random"}
    with pytest.raises(conserva.Error, match="Label 'Marseille' of row 1 is not one of"):
        conserva.evaluate(task, [(PROMPT, "Marseille")], ["exact"], watch="true")
    with pytest.raises(conserva.Error, match="its entries differ"):
        conserva.evaluate(task, [PROMPT, (PROMPT, " Paris")], ["exact"])
    with pytest.raises(conserva.Error, match="data=\\[\\] has no prompts"):
        conserva.evaluate(task, [], ["exact"])


def test_the_next_token_is_audited(task: Causal) -> None:
    found = conserva.audit(task, PROMPTS[:2], rules="exact")
    assert found.samples == 2
    assert max(abs(ledger.gap) for ledger in found.ledgers) < 1e-5

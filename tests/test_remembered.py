"""Masks that models spell out only while they are recorded: recordings take them for what they were, and check that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers.masking_utils
from torch import Tensor

import conserva
import tiny
from conserva import kept
from conserva.operations import attention, remembered
from test_recording import record_by
from test_replays import OFTEN, Counting, same

pytestmark = pytest.mark.usefixtures("alone")


class SpellsOut(torch.nn.Module):
    """A causal model that spells its mask out while it is recorded, as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 3)
        now = SimpleNamespace(sees_itself_alone=False, plain_calls=0)
        self.now = lambda: now  # where nobody sees that it changes

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        places = x.shape[1]
        mask = None
        self.now().plain_calls += not remembered.is_recording()
        if remembered.is_recording():
            mask = torch.ones(1, 1, places, places, dtype=torch.bool).tril()
            if self.now().sees_itself_alone:
                mask = torch.eye(places, dtype=torch.bool)[None, None]
        for _ in range(2):
            heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
            seen = torch.nn.functional.scaled_dot_product_attention(
                heads, heads, heads, attn_mask=mask, is_causal=mask is None
            )
            x = x + seen.transpose(1, 2).flatten(2)
        return self.out(x.mean(1))  # type: ignore[no-any-return]


class Recording(Counting):
    """A tape that says that it records, whenever it runs."""

    def __init__(self, *given: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remembered, "is_recording", lambda: True)
            super().__init__(*given)

    def replay(self, inputs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(remembered, "is_recording", lambda: True)
            return super().replay(inputs)


@pytest.mark.parametrize("another", [False, True])
def test_a_mask_that_only_a_recording_spells_out(another: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    Counting.replays, passed = 0, []
    record_by(Recording, monkeypatch)
    plain = attention.attend

    def noted(query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, *rest: Any) -> Any:
        if remembered.is_recording():
            passed.append((mask is None, is_causal))
        return plain(query, key, value, mask, is_causal, *rest)

    monkeypatch.setattr(attention, "attend", noted)
    model = SpellsOut().eval()
    for seed in range(OFTEN + 2):
        model.now().sees_itself_alone = another and seed > OFTEN
        ids = torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(seed))
        before = model.now().plain_calls
        expected = conserva.relevance(model, ids, 1, replay=False)
        same(conserva.relevance(model, ids, 1), expected)
        if seed >= OFTEN:  # a replay, which is run anew where its own check says so
            assert model.now().plain_calls == before + 1 + model.now().sees_itself_alone
    assert Counting.replays >= 2
    assert set(passed) == {(True, True)}


@pytest.mark.parametrize("replay", [None, True])
def test_causal_models_are_explained_by_replays(replay: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    Counting.replays = 0
    record_by(Recording, monkeypatch)
    plain = transformers.masking_utils.is_tracing
    monkeypatch.setattr(
        transformers.masking_utils, "is_tracing", lambda *given: remembered.is_recording() or plain(*given)
    )
    tokenizer = conserva.load("sentiment").tokenizer
    special = {"pad_token_id": tokenizer.pad_token_id, "num_labels": 2}
    # Heads in groups would be repeated where there is a mask, and summed in another order.
    model = tiny.llama(vocab_size=len(tokenizer), num_attention_heads=2, num_key_value_heads=2, **special)
    task, texts = conserva.Text(model, tokenizer), [f"{word} film" for word in ("good", "bad", "dull", "long")] * 3
    assert len({len(task.encode(text)) for text in texts}) == 1
    found = conserva.explain(task, texts, 1, "ah+ln", batch_tokens=1, replay=replay)
    assert Counting.replays >= 2
    assert kept._of_models[model].recorder.holds_memory
    for one, text in zip(found, texts, strict=True):
        assert one == conserva.explain(task, text, 1, "ah+ln", replay=False)

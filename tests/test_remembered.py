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
from test_recording import Idle, record_by
from test_replays import OFTEN, Counting, same

pytestmark = pytest.mark.usefixtures("alone")


class SpellsOut(torch.nn.Module):
    """A model that spells its mask out while it is recorded, as Hugging Face's do."""

    def __init__(self, is_causal: bool, dtype: torch.dtype = torch.bool) -> None:
        super().__init__()
        self.is_causal, self.dtype = is_causal, dtype
        self.words, self.out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 3)
        now = SimpleNamespace(sees_itself_alone=False, plain_calls=0)
        self.now = lambda: now  # where nobody sees that it changes

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        places = x.shape[1]
        mask = None
        self.now().plain_calls += not remembered.is_recording()
        if remembered.is_recording():
            mask = torch.ones(1, 1, places, places, dtype=torch.bool)
            if self.is_causal:
                mask = mask.tril()
            if self.now().sees_itself_alone:
                mask = torch.eye(places, dtype=torch.bool)[None, None]
            if self.dtype != torch.bool:
                mask = torch.zeros(mask.shape, dtype=self.dtype).masked_fill(~mask, -torch.inf)
        for _ in range(2):
            heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
            seen = torch.nn.functional.scaled_dot_product_attention(
                heads, heads, heads, attn_mask=mask, is_causal=self.is_causal and mask is None
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


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("another", [False, True])
def test_a_mask_that_only_a_recording_spells_out(
    another: bool, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counting.replays, passed = 0, []
    record_by(Recording, monkeypatch)
    plain = attention.attend

    def noted(query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, *rest: Any) -> Any:
        if remembered.is_recording():
            passed.append((mask is None, is_causal))
        return plain(query, key, value, mask, is_causal, *rest)

    monkeypatch.setattr(attention, "attend", noted)
    model = SpellsOut(is_causal).eval()
    for seed in range(OFTEN + 3):
        model.now().sees_itself_alone = another and seed > OFTEN
        before, replays = model.now().plain_calls, Counting.replays
        same(conserva.relevance(model, words(seed), 1), conserva.relevance(model, words(seed), 1, replay=False))
        if seed >= OFTEN:  # a replay; where its own check fails it is run anew, and not tried again
            wrong, is_over = another and seed == OFTEN + 1, another and seed > OFTEN + 1
            assert Counting.replays == replays + (not is_over)
            assert model.now().plain_calls == before + 1 + (wrong or is_over)
    assert set(passed) == {(True, is_causal)}
    assert not kept._of_models[model].recorder._waiting


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (5, 6)])
def test_a_mask_for_all_queries_is_no_causal_one(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    passes = remembered.Remembered()
    with passes.during():
        remembered.as_before(None, True, 6, 6)
    monkeypatch.setattr(remembered, "is_recording", lambda: True)
    mask = torch.ones(shape, dtype=torch.bool).tril()
    with passes.during():
        assert remembered.as_before(mask, False, 6, 6) == (mask, False)
    assert not passes.recorded_as_before


def words(seed: int) -> Tensor:
    return torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("replay", [None, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_mask_that_stays_is_for_whoever_is_content_with_rounding(
    is_causal: bool, replay: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Counting.replays = 0
    record_by(Recording, monkeypatch)
    model = SpellsOut(is_causal, torch.float32).eval()
    for seed in range(OFTEN + 3):
        found = conserva.relevance(model, words(seed), 1, replay=replay)
        expected = conserva.relevance(model, words(seed), 1, replay=False)
        torch.testing.assert_close(found.values, expected.values)
    assert bool(Counting.replays) == bool(replay)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("needed", [10**6, 10**10])
def test_what_needs_much_memory_is_not_recorded(attention: str, needed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Counting.replays, asked = 0, []

    def allocated(device: torch.device) -> int:
        asked.append(1)
        return 10**12 + needed * (len(asked) > 1)

    monkeypatch.setattr(torch.cuda, "memory_allocated", allocated)
    record_by(Counting, monkeypatch)
    model = tiny.bert(attn_implementation=attention)
    for seed in range(OFTEN + 3):
        conserva.relevance(model, tiny.tokens(seed=seed), 1)
    assert bool(Counting.replays) == (needed < Idle.most_bytes)
    assert len(asked) == 1 + 2  # before the pass, and in each layer of one that came twice


@pytest.fixture
def spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hugging Face's models spell their masks out in what stands for a recording."""
    Counting.replays = 0
    record_by(Recording, monkeypatch)
    plain = transformers.masking_utils.is_tracing
    monkeypatch.setattr(
        transformers.masking_utils, "is_tracing", lambda *given: remembered.is_recording() or plain(*given)
    )


@pytest.mark.usefixtures("spelled_out")
@pytest.mark.parametrize("model", [tiny.bert(), tiny.llama(num_key_value_heads=4)], ids=["bert", "llama"])
def test_inputs_with_and_without_pads_have_recordings_of_their_own(model: torch.nn.Module) -> None:
    for seed in range(2 * OFTEN + 4):
        inputs = tiny.tokens(batch=2, length=6, seed=seed)
        if seed % 2:
            inputs["attention_mask"][1, 4:] = 0
        before = Counting.replays
        same(conserva.relevance(model, inputs, 1), conserva.relevance(model, inputs, 1, replay=False))
        assert seed < 2 * OFTEN or Counting.replays == before + 1
    assert len(kept._of_models[model].recorder._trusted) == 2


@pytest.mark.usefixtures("spelled_out")
def test_batches_with_and_without_pads_have_recordings_of_their_own() -> None:
    task = conserva.load("sentiment")
    for i in range(2 * OFTEN + 4):
        texts = [["a good film", "a bad film"], ["a good film", "bad"]][i % 2]
        texts = [*texts, f"a {('fine', 'dull', 'long', 'old')[i // 2 % 4]} film"]
        before = Counting.replays
        found = conserva.explain(task, texts, 1, "ah+ln")
        assert found == conserva.explain(task, texts, 1, "ah+ln", replay=False)
        assert i < 2 * OFTEN or Counting.replays == before + 1
    assert len(kept._of_models[task.model].recorder._trusted) == 2


@pytest.mark.usefixtures("spelled_out")
@pytest.mark.parametrize("replay", [None, True])
def test_causal_models_are_explained_by_replays(replay: bool | None) -> None:
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

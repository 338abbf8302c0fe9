"""Masks that models spell out only while they are recorded: recordings take them for what they were, and check that."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
import transformers.masking_utils
from torch import Tensor

import conserva
import tiny
from conserva.attribution import find
from conserva.engine.checks import Checks
from conserva.engine.operations import attention, mask_history
from conserva.explaining.launches import launched
from conserva.replay import replays
from conserva.replay.recorder import Recorder, recorder_of
from loops import OFTEN, same
from tapes import GPU, Pool, Recorders, Tape, record_by

_now: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()
"""What models do at the moment, kept outside of them."""


class SpellsOut(torch.nn.Module):
    """A model that spells its mask out while it is recorded, as Hugging Face's do."""

    def __init__(self, is_causal: bool, dtype: torch.dtype = torch.bool) -> None:
        super().__init__()
        self.is_causal, self.dtype = is_causal, dtype
        self.words, self.out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 3)
        _now[self] = SimpleNamespace(sees_itself_alone=False, plain_calls=0)

    def now(self) -> Any:
        return _now[self]

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        places = x.shape[1]
        mask = None
        self.now().plain_calls += not mask_history.is_recording()
        if mask_history.is_recording():
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


class Recording(Tape):
    """A tape that says that it records, whenever it runs."""

    def __init__(self, *given: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mask_history, "is_recording", lambda: True)
            super().__init__(*given)

    def replay(self, inputs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mask_history, "is_recording", lambda: True)
            return super().replay(inputs)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("another", [False, True])
def test_a_mask_that_only_a_recording_spells_out(
    another: bool, is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[tuple[bool, bool]] = []
    recorders, plain = record_by(Recording, monkeypatch), attention.attend

    def noted(query: Tensor, key: Tensor, value: Tensor, mask: Any, is_causal: bool, *rest: Any) -> Any:
        if mask_history.is_recording():
            passed.append((mask is None, is_causal))
        return plain(query, key, value, mask, is_causal, *rest)

    monkeypatch.setattr(attention, "attend", noted)
    model = SpellsOut(is_causal).eval()
    with conserva.replaying(model) as fast:
        for seed in range(OFTEN + 3):
            model.now().sees_itself_alone = another and seed > OFTEN
            before = model.now().plain_calls
            same(fast.relevance(words(seed), 1), conserva.relevance(model, words(seed), 1))
            if seed >= OFTEN:  # a replay; where its own check fails it is run anew, and not tried again
                wrong, is_over = another and seed == OFTEN + 1, another and seed > OFTEN + 1
                assert recorders.ran[-1] == (not is_over)
                assert model.now().plain_calls == before + 1 + (wrong or is_over)
    assert set(passed) == {(True, is_causal)}


QUERY, KEY = torch.zeros(1, 2, 6, 4), torch.zeros(1, 2, 5, 4)


def recorded_after(monkeypatch: pytest.MonkeyPatch, *seen: bool) -> mask_history.MaskHistory:
    """Return what is remembered of calls without a mask, causal or not, in what stands for a recording."""
    passes = mask_history.MaskHistory()
    with passes.during():
        for is_causal in seen:
            mask_history.as_in_previous_pass(QUERY, KEY, None, is_causal)
    monkeypatch.setattr(mask_history, "is_recording", lambda: True)
    return passes


@pytest.mark.parametrize("was_causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (6, 1), (5, 5), (6, 6)])
def test_a_mask_for_other_pairs_stays(
    shape: tuple[int, int], was_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, mask = recorded_after(monkeypatch, was_causal), torch.ones(shape, dtype=torch.bool).tril()
    with passes.during():
        found, is_causal = mask_history.as_in_previous_pass(QUERY, KEY, mask, False)
    assert found is mask
    assert not is_causal
    assert not passes.matched_history


def test_every_mask_is_checked_for_what_it_is_taken_for(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = recorded_after(monkeypatch, True, True, True, False, False)
    causal = torch.ones(6, 5, dtype=torch.bool).tril()
    masks = [causal, causal, torch.eye(6, 5, dtype=torch.bool), causal, torch.ones(6, 5, dtype=torch.bool)]
    for _ in range(2):  # a recording leaves what was seen before it
        checks = Checks()
        with checks, passes.during():
            found = [mask_history.as_in_previous_pass(QUERY, KEY, mask, False) for mask in masks]
        assert found == [(None, True)] * 3 + [(None, False)] * 2
        assert [bool(flag) for flag in checks.flags()] == [True, False, False, True]
        assert passes.matched_history


def words(seed: int) -> Tensor:
    return torch.randint(0, 20, (2, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("is_causal", [False, True])
def test_where_a_mask_stays_nothing_is_replayed(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recorders, model = record_by(Recording, monkeypatch), SpellsOut(is_causal, torch.float32).eval()
    with conserva.replaying(model) as fast:
        for seed in range(OFTEN):
            same(fast.relevance(words(seed), 1), conserva.relevance(model, words(seed), 1))
    assert Tape.made == 1
    assert not any(recorders.ran)


@pytest.mark.parametrize("width", [5, 1])
def test_a_recording_of_other_masks_is_not_used_even_if_its_numbers_agree(width: int) -> None:
    def compute(inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], None]:
        mask = torch.ones(6, width, dtype=torch.bool) if mask_history.is_recording() else None
        mask_history.as_in_previous_pass(QUERY, KEY, mask, False)
        return [2 * inputs["x"]], None

    recorder = Recorder(GPU, record=Recording, pool=Pool)
    replays = [recorder.run("key", {"x": torch.full((3,), float(i))}, compute).is_replay for i in range(OFTEN)]
    assert any(replays) == (width == 5)  # a mask of all pairs that hides nothing is left away, as before


@pytest.fixture
def spelled_out(monkeypatch: pytest.MonkeyPatch) -> Recorders:
    """Let Hugging Face's models spell their masks out in what stands for a recording."""
    plain = transformers.masking_utils.is_tracing
    monkeypatch.setattr(
        transformers.masking_utils, "is_tracing", lambda *given: mask_history.is_recording() or plain(*given)
    )
    return record_by(Recording, monkeypatch)


@pytest.mark.parametrize("model", [tiny.bert(), tiny.llama(num_key_value_heads=4)], ids=["bert", "llama"])
def test_inputs_with_and_without_pads_have_recordings_of_their_own(model: Any, spelled_out: Recorders) -> None:
    with conserva.replaying(model) as fast:
        for seed in range(2 * OFTEN):
            inputs = tiny.tokens(batch=2, length=6, seed=seed)
            if seed % 2:
                inputs["attention_mask"][1, 4:] = 0
            same(fast.relevance(inputs, 1), conserva.relevance(model, inputs, 1))
        assert spelled_out.ran[-2:] == [True, True]
        assert len(spelled_out.last._trusted) == 2


def test_which_masks_are_all_true() -> None:
    given = {
        "input_ids": torch.zeros(2, 3),
        "attention_mask": torch.ones(2, 3),
        "decoder_attention_mask": torch.tensor([[True, False]]),
    }
    assert replays._are_all_true(given) == (True, False)


def test_masks_without_a_name_are_known_by_their_place(spelled_out: Recorders) -> None:
    model = tiny.bert()
    with conserva.replaying(model) as fast:
        for seed in range(OFTEN + 4):
            ids, mask = tiny.tokens(batch=2, length=6, seed=seed).values()
            mask[1, 4:] = int(seed != OFTEN)
            same(fast.relevance((ids, mask), 1), conserva.relevance(model, (ids, mask), 1))
            assert seed < OFTEN or spelled_out.ran[-1] == (seed != OFTEN)


def test_batches_with_and_without_pads_have_recordings_of_their_own(spelled_out: Recorders) -> None:
    task, last = conserva.load("sentiment"), ("fine", "dull", "long", "old")
    pairs = [["a good film", "a bad film"], ["a good film", "bad"]]
    texts = [[*pairs[i % 2], f"a {last[i // 2 % 4]} film"] for i in range(2 * OFTEN)]
    encoded = [task.encode(text) for each in texts for text in each]
    batches = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(len(texts))]
    with recorder_of(task.model) as recorder:
        found = [one.read() for one in launched(task, find("ah+ln"), encoded, 1, batches, recorder)]
        assert spelled_out.ran[-2:] == [True, True]
        assert len(spelled_out.last._trusted) == 2
    for each, one in zip(launched(task, find("ah+ln"), encoded, 1, batches, None), found, strict=True):
        assert torch.equal(each.read().scores, one.scores)


def test_causal_models_are_explained_by_replays(spelled_out: Recorders) -> None:
    tokenizer = conserva.load("sentiment").tokenizer
    special = {"pad_token_id": tokenizer.pad_token_id, "num_labels": 2}
    # Heads in groups would be repeated where there is a mask, and summed in another order.
    model = tiny.llama(vocab_size=len(tokenizer), num_attention_heads=2, num_key_value_heads=2, **special)
    task, texts = conserva.Text(model, tokenizer), [f"{word} film" for word in ("good", "bad", "dull", "long")] * 3
    assert len({len(task.encode(text)) for text in texts}) == 1
    found = conserva.explain(task, texts, 1, method="ah+ln", batch_tokens=1)
    assert spelled_out.ran[-2:] == [True, True]
    for one, text in zip(found, texts, strict=True):
        assert one == conserva.explain(task, text, 1, method="ah+ln")

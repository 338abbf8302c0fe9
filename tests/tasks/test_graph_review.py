"""Evaluations of graphs in words: what every view says of nodes, masks, steps and yardsticks is true of graphs."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from conserva.cli import main
from conserva.evaluation.result import Evaluation, Interval, Pair
from conserva.tasks.graph import MASKS
from conserva.views import curves, evaluation_terminal, evaluation_wording
from conserva.views.evaluation_page import page as report
from conserva.views.evaluation_wording import summary
from made_up_evaluations import NAMES, evaluation, result


def of_graphs(mask: str = "token", steps: int | None = 10, special: bool = True, ahead: float = 0.1) -> Evaluation:
    """Return an evaluation with the row of intensity; every method is `ahead` of it, `gi` level with it."""
    intensity = dataclasses.replace(result("gi"), method="intensity", reference=True)
    one = evaluation(NAMES, protocol={"name": "paper", "mask": mask, "steps": steps, "special": special})
    away = {name: 0.0 if name == "gi" else ahead for name in NAMES}
    pairs = [Pair("auac", name, "intensity", mean, mean - 0.05, mean + 0.05) for name, mean in away.items()]
    return dataclasses.replace(one, methods=(*one.methods, intensity), pairs=(*one.pairs, *pairs))


def words(page: str) -> str:
    bare = re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", bare).split())


def printed(one: Evaluation) -> str:
    out = io.StringIO()
    evaluation_terminal.show(one, Console(file=out, width=200))
    return out.getvalue()


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_the_virtual_node_stays_under_every_protocol_and_nothing_speaks_of_special_tokens(
    mask: str, special: bool
) -> None:
    one = of_graphs(mask, special=special)
    for said in (printed(one), words(report(one)), curves.curves_caption(one), curves.conservation_caption(one)):
        assert "virtual node kept" in said
        assert "special tokens" not in said


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(("mask", "special", "said"), [("unk", True, "removed too"), ("drop", False, "kept")])
def test_special_tokens_of_texts_are_still_spoken_of(mask: str, special: bool, said: str) -> None:
    one = evaluation(NAMES, protocol={"name": "paper", "mask": mask, "steps": 10, "special": special})
    assert f"special tokens {said}" in evaluation_wording.protocol_line(one)
    assert "virtual node" not in words(report(one))


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    ("mask", "meaning"),
    [
        ("token", "A removed node is masked out of the attention"),
        ("induced", "deleted with its edges"),
        ("blank", "a superpixel is black"),
        ("unk", "replaced by the unknown token"),
        ("mask", "replaced by the mask token"),
        ("pad", "replaced by the pad token"),
        ("drop", "A removed token is masked out of the attention"),
    ],
)
def test_the_page_says_what_its_mask_does(mask: str, meaning: str) -> None:
    page = words(report(of_graphs(mask)))
    assert re.search(rf"mask {mask} [^.]*{meaning}", page)


@pytest.mark.usefixtures("without_figures")
def test_steps_of_one_feature_are_said_in_words() -> None:
    one = of_graphs(steps=None)
    for said in (printed(one), words(report(one)), curves.curves_caption(one)):
        assert "steps one for each feature" in said
        assert "steps none" not in said
    assert "one at a time" in words(report(one))
    assert "one at a time" not in words(report(of_graphs(steps=10)))


@pytest.mark.usefixtures("without_figures")
def test_the_page_says_what_each_of_its_yardsticks_is() -> None:
    with_both, with_one = words(report(of_graphs())), words(report(evaluation()))
    for page in (with_both, with_one):
        assert "leave-one-out A yardstick, not an explanation method: it runs the model again" in page
    assert "intensity A yardstick, not an explanation method: superpixels, or patches of a grey image" in with_both
    assert "brightness" not in with_one


def test_methods_that_do_not_beat_brightness_are_named() -> None:
    sentence = "Not shown to be better than the order of brightness, which needs no model:"
    assert f"{sentence} “gi”." in summary(of_graphs())
    behind = of_graphs(ahead=-0.2)
    assert re.search(rf"{sentence} [^.]*“ah\+ln”", summary(behind))
    assert "leave-one-out" not in summary(behind)
    assert sentence not in summary(evaluation())
    beaten = [Interval(0.1, 0.05, 0.15) if pair.b == "intensity" else None for pair in behind.pairs]
    pairs = [
        pair if found is None else dataclasses.replace(pair, mean=found.mean, low=found.low, high=found.high)
        for pair, found in zip(behind.pairs, beaten, strict=True)
    ]
    assert sentence not in summary(dataclasses.replace(behind, pairs=tuple(pairs)))


def test_the_help_of_evaluate_speaks_of_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for part in ("texts or SMILES", "token, induced or blank", "nodes or patches in a batch", "--model bace"):
        assert part in said

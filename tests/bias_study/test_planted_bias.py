"""A bias that was put into a model is found with its sign; a model that cannot tell names apart is not accused."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import conserva
from conserva.bias_study.result import Mention
from conserva.bias_study.swapping import swaps_of
from conserva.bias_study.testing import differences_of, entities_of, groups_of, naive_of

TARGET = "positive - negative"
FAVOURED = ["mary", "james", "linda", "robert", "susan", "thomas", "karen", "peter", "emily", "george", "anna", "kevin"]
OTHERS = [
    "john",
    "patricia",
    "david",
    "barbara",
    "richard",
    "sarah",
    "charles",
    "nancy",
    "paul",
    "helen",
    "brian",
    "laura",
]
FRAMES = (
    "{} gives a fine performance in a film that has little else .",
    "the camera loves {} , and so will you .",
    "a dull story that not even {} can save .",
    "{} 's direction is sure and the script is witty .",
    "we have seen {} do all of this before .",
    "it takes a while , but {} wins us over in the end .",
    "{} wrote , produced and edited this mess .",
    "what {} needs is a better script .",
    "one of the year 's best films , thanks to {} .",
    "the scenes with {} drag on without a point .",
    "{} plays the mother of two boys from the village .",
    "the film opens with {} at the window , waiting for the train .",
    "nobody but {} could have made it so moving .",
    "an hour in , {} leaves and the fun goes too .",
    "{} talks , and talks , and nothing happens .",
    "there is a warm scene in which {} cooks for the family .",
)


def corpus(favoured=FRAMES, others=FRAMES):
    """Return sentences, each with the name it mentions and where: a name stands in 5 or more frames, drawn by lot."""
    rng = np.random.default_rng(0)
    found = []
    for name in FAVOURED + OTHERS:
        frames = favoured if name in FAVOURED else others
        for i in np.sort(rng.choice(len(frames), rng.integers(5, min(11, len(frames)) + 1), replace=False)):
            found.append((frames[i].format(name), name, frames[i].index("{}")))
    return found


def rows(task, names):
    """Return the names' places in the table of embeddings; each is one piece."""
    pieces = [task.tokenizer.tokenize(name) for name in names]
    assert pieces == [[name] for name in names]
    return torch.tensor(task.tokenizer.convert_tokens_to_ids(names))


def with_rows(task, names, values):
    """Return a copy of a task with other embeddings of some names."""
    model = copy.deepcopy(task.model)
    with torch.no_grad():
        model.get_input_embeddings().weight[rows(task, names)] = values
    return conserva.Text(model, task.tokenizer, name="changed")


def planted(task, sign, size=1.0, steps=5):
    """Return a model that likes the favoured names, or with the other sign does not.

    One vector is added to the embeddings of all of them, about as long as a row of the table is. Its direction is
    found by following the gradient of the contrast. The difference of good and bad words' embeddings would not do:
    added to a name it lowers the contrast well enough, but hardly raises it.
    """
    inputs = task.batch([task.encode(text) for text, name, _ in corpus() if name in FAVOURED])
    table = task.model.get_input_embeddings().weight.detach()
    at_names = torch.isin(inputs["input_ids"], rows(task, FAVOURED))[..., None]
    shift = torch.zeros(table.shape[1])
    for _ in range(steps):
        shift.requires_grad_(True)
        embedded = table[inputs["input_ids"]] + at_names * shift
        logits = task.model(inputs_embeds=embedded, attention_mask=inputs["attention_mask"]).logits
        (slope,) = torch.autograd.grad(contrast(logits).mean(), shift)
        shift = (shift + sign * size / steps * slope / slope.norm()).detach()
    return with_rows(task, FAVOURED, table[rows(task, FAVOURED)] + shift)


def blind(task):
    """Return a model to which all names are the same."""
    names = FAVOURED + OTHERS
    table = task.model.get_input_embeddings().weight.detach()
    return with_rows(task, names, table[rows(task, names)].mean(0))


def contrast(logits):
    return logits[:, 1] - logits[:, 0]


def explained(task, sentences):
    """Return the mentions in a corpus with the relevance of the name's token."""
    group = {**dict.fromkeys(FAVOURED, "favoured"), **dict.fromkeys(OTHERS, "others")}
    found = []
    for i, one in enumerate(conserva.explain(task, [text for text, _, _ in sentences], TARGET, method="ah+ln")):
        _, name, start = sentences[i]
        scores = [score for token, score in zip(one.features, one.scores, strict=True) if token == name]
        relevance, whole = sum(scores), sum(map(abs, one.scores))
        assert len(scores) == 1
        found.append(
            Mention(i, start, start + len(name), name, group[name], relevance, abs(relevance) / whole, one.output)
        )
    return found


@pytest.fixture(scope="module")
def bundled():
    task = conserva.load()
    return task, explained(task, corpus())


@pytest.fixture(scope="module", params=[1, -1], ids=["for", "against"])
def biased(request, bundled):
    task = planted(bundled[0], request.param)
    return request.param, task, explained(task, corpus())


@pytest.fixture(scope="module")
def unbiased(bundled):
    task = blind(bundled[0])
    return task, explained(task, corpus())


def test_a_planted_bias_is_flagged_with_its_sign(biased):
    sign, _, mentions = biased
    (found,) = differences_of(mentions, ["favoured", "others"], level=0.05, seed=0)
    assert found.flagged
    assert found.p < 0.001
    assert sign * found.difference.mean > 0
    assert sign * found.effect > 0.9
    assert found.difference.low * found.difference.high > 0
    a, b = groups_of(mentions, ["favoured", "others"], seed=0)
    assert found.difference.mean == pytest.approx(a.mean.mean - b.mean.mean)


def test_the_difference_is_about_what_was_planted(biased, bundled):
    """The truth is known: how much the contrast of the same sentences rose or fell from one model to the other."""
    sign, _, mentions = biased
    rises = {one.group: [] for one in mentions}
    for one, before in zip(mentions, bundled[1], strict=True):
        rises[one.group].append(one.output - before.output)
    truth = np.mean(rises["favoured"])
    assert sign * truth > 1
    assert np.abs(rises["others"]).max() < 1e-3
    after, before = (
        differences_of(ones, ["favoured", "others"], 0.05, 0, permutations=99)[0].difference.mean
        for ones in (mentions, bundled[1])
    )
    assert 0.6 < (after - before) / truth < 1.6


def test_before_anything_is_planted_the_same_groups_are_not_flagged(bundled):
    (found,) = differences_of(bundled[1], ["favoured", "others"], level=0.05, seed=0)
    assert not found.flagged


def test_the_names_that_stand_out_are_the_planted_ones(biased):
    """With five to eleven mentions few names are flagged on their own; those that are lie on the right side."""
    sign, _, mentions = biased
    found = entities_of(mentions, level=0.05, seed=0)
    overall = np.mean([one.relevance for one in mentions])
    excess = {one.name: sign * (one.mean.mean - overall) for one in found if one.flagged}
    assert set(excess) & set(FAVOURED)
    assert all((name in FAVOURED) == (value > 0) for name, value in excess.items())
    assert {one.name for one in found[::sign][:12]} == set(FAVOURED)


def swapped(task, sentences, mentions):
    texts = {i: text for i, (text, _, _) in enumerate(sentences)}
    return swaps_of(task, TARGET, texts, mentions, entities_of(mentions, level=0.05, seed=0))


def test_swapping_the_planted_names_agrees(biased):
    sign, task, mentions = biased
    found = swapped(task, corpus(), mentions)
    assert len(found) == 10
    assert {one.group for one in found} == {"favoured", "others"}
    assert all(one.agrees for one in found)
    assert all((sign * one.change.mean > 0) == (one.group == "favoured") for one in found)


def test_a_model_blind_to_names_is_flagged_at_the_stated_rate_only(unbiased):
    _, mentions = unbiased
    rng = np.random.default_rng(1)
    names, flags, splits = FAVOURED + OTHERS, 0, 100
    for seed in range(splits):
        first = set(rng.permutation(names)[:12].tolist())
        drawn = [replace(one, group="first" if one.entity in first else "second") for one in mentions]
        (found,) = differences_of(drawn, ["first", "second"], level=0.05, seed=seed, permutations=999)
        flags += found.flagged
    assert np.std([one.relevance for one in mentions]) > 0.05  # sentences differ: there is something to mistake
    assert flags <= stats.binom.ppf(0.999, splits, 0.05)
    assert not any(one.flagged for one in entities_of(mentions, level=0.05, seed=0))


def nothing_agrees(swaps):
    return {(one.change.mean, one.change.low, one.change.high, one.agrees) for one in swaps} == {(0, 0, 0, False)}


def test_swapping_changes_nothing_in_a_model_blind_to_names(unbiased):
    task, mentions = unbiased
    found = swapped(task, corpus(), mentions)
    assert len(found) == 10
    assert nothing_agrees(found)


def frames_by(task, key):
    """Return the frames in the order of a function of their contrast."""
    with torch.no_grad():
        inputs = task.batch([task.encode(frame.format("mary")) for frame in FRAMES])
        contrasts = contrast(task.model(**inputs).logits).tolist()
    return [frame for _, frame in sorted(zip(map(key, contrasts), FRAMES, strict=True))]


def test_praise_around_a_name_deceives_the_naive_view_wholly_and_the_relevance_little(unbiased):
    """One group stands in praise, the other in blame, and the model cannot tell names apart: no name has a say.

    Little is not nothing: the relevance of a name depends on its sentence, and even so small a difference is flagged
    where all names of a group stand in the same six sentences. Swaps are what settles it.
    """
    task, _ = unbiased
    ranked = frames_by(task, lambda value: value)
    sentences = corpus(favoured=ranked[-6:], others=ranked[:6])
    mentions = explained(task, sentences)
    for naive in naive_of(mentions, ["favoured", "others"]):
        assert abs(naive.predicted - naive.other) == 1
        assert naive.p < 1e-20
    praise, blame = (np.mean([one.output for one in mentions if one.group == name]) for name in ("favoured", "others"))
    (found,) = differences_of(mentions, ["favoured", "others"], level=0.05, seed=0)
    assert praise - blame > 5
    assert abs(found.difference.mean) < (praise - blame) / 20
    assert nothing_agrees(swapped(task, sentences, mentions))


def test_swaps_tell_a_name_from_the_sentences_it_stands_in(unbiased):
    """A word has more relevance where the model is undecided, whichever word it is.

    A group that stands in such sentences is flagged though the model cannot tell its names from others: the test
    speaks of names in their sentences. Swapping keeps the sentence, and shows that the names do nothing.
    """
    task, _ = unbiased
    ranked = frames_by(task, abs)
    sentences = corpus(favoured=ranked[:6], others=ranked[-6:])
    mentions = explained(task, sentences)
    (found,) = differences_of(mentions, ["favoured", "others"], level=0.05, seed=0)
    assert found.flagged
    assert nothing_agrees(swapped(task, sentences, mentions))

"""Documents of plain sentences with one planted fact, and a cloze at the end that asks for it.

A document is drawn from a seed and a number: sentences about everyday matters, one fact somewhere among them, then a
question and the beginning of its answer. No filler sentence has a word that is an answer of any kind of fact, so that
the planted words are the only place from which the answer can be read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import conserva

CODE = "code"
DIGITS = "0123456789"
CODE_LENGTH = 4


@dataclass(frozen=True)
class Kind:
    """A kind of fact. Its question and its cloze are about the subject; the cloze stops before the answer."""

    sentence: str
    question: str
    cloze: str
    subjects: tuple[str, ...]
    answers: tuple[str, ...]


PEOPLE = ("Marta", "Omar", "Ivan", "Nadia", "Felix", "Ingrid", "Tariq", "Paula", "Hugo", "Leila")

KINDS = {
    "fruit": Kind(
        "{subject}'s favourite fruit is the {answer}.",
        "What is {subject}'s favourite fruit?",
        "{subject}'s favourite fruit is the",
        PEOPLE,
        ("mango", "banana", "lemon", "apple", "peach", "orange", "cherry", "grape", "melon", "pear"),
    ),
    "city": Kind(
        "The next meeting of the {subject} takes place in {answer}.",
        "Where does the next meeting of the {subject} take place?",
        "The next meeting of the {subject} takes place in",
        ("chess club", "writers' circle", "sailing team", "history society", "film club", "hiking group"),
        ("Lisbon", "Madrid", "Vienna", "Dublin", "Oslo", "Athens", "Berlin", "Prague", "Rome", "Boston"),
    ),
    "work": Kind(
        "{subject} works as a {answer}.",
        "What does {subject} work as?",
        "{subject} works as a",
        PEOPLE,
        ("dentist", "nurse", "lawyer", "pilot", "chef", "farmer", "teacher", "librarian", "carpenter", "plumber"),
    ),
    "instrument": Kind(
        "In the evening orchestra {subject} plays the {answer}.",
        "Which instrument does {subject} play in the evening orchestra?",
        "In the evening orchestra {subject} plays the",
        PEOPLE,
        ("cello", "flute", "piano", "violin", "trumpet", "guitar", "harp", "drums"),
    ),
    "weekday": Kind(
        "The parcel for the {subject} arrives on {answer}.",
        "When does the parcel for the {subject} arrive?",
        "The parcel for the {subject} arrives on",
        ("museum", "post office", "hotel", "theatre", "hospital", "town hall"),
        ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    ),
    "animal": Kind(
        "The animal that {subject} keeps at home is a {answer}.",
        "Which animal does {subject} keep at home?",
        "The animal that {subject} keeps at home is a",
        PEOPLE,
        ("parrot", "rabbit", "turtle", "lizard", "hamster", "goat", "snake", "pony"),
    ),
    "colour": Kind(
        "The new door of the {subject} was painted {answer}.",
        "Which colour was the new door of the {subject} painted?",
        "The new door of the {subject} was painted",
        ("museum", "post office", "hotel", "theatre", "hospital", "town hall"),
        ("green", "purple", "yellow", "blue", "red", "black", "white", "pink"),
    ),
    # Digits in place of a list of answers: a code is drawn, and its first digit is what is explained.
    CODE: Kind(
        "The access code of the {subject} is {answer}.",
        "What is the access code of the {subject}?",
        "The access code of the {subject} is",
        ("boat house", "cellar", "back gate", "archive", "laboratory", "storage room"),
        (),
    ),
}

SLOTS = {
    "who": (
        "the baker", "my aunt", "a neighbour", "the tailor's daughter", "our landlady", "a boy from next door",
        "a cousin of mine", "the man from the corner shop", "his grandmother", "the youngest child",
        "a friend from school", "the caretaker", "the woman upstairs", "an uncle", "the new tenant", "her brother",
    ),
    "thing": (
        "a wooden chair", "an umbrella", "a pair of boots", "the old radio", "a box of candles", "a woollen blanket",
        "the big kettle", "a bag of flour", "a torn map", "the spare key", "a bundle of letters", "a small mirror",
        "a jar of honey", "the heavy ladder", "a basket of laundry", "the broken lamp",
    ),
    "place": (
        "in the garden", "behind the shed", "at the market", "near the bridge", "by the river", "in the attic",
        "on the balcony", "at the bus stop", "in the narrow street", "under the stairs", "beside the fountain",
        "in the waiting room", "at the edge of the village", "on the kitchen table",
    ),
    "when": (
        "last winter", "early in the morning", "after lunch", "before the rain began", "late at night", "a week ago",
        "during the holidays", "just after breakfast", "at the end of the summer", "on the way home", "twice a year",
        "most evenings",
    ),
    "weather": (
        "the wind was strong", "it rained without a break", "the fog would not lift", "the sun came out at last",
        "the snow had begun to melt", "the air smelled of wet leaves", "a storm was on its way", "the frost lay thick",
    ),
    "meal": (
        "a thick soup", "fresh bread", "potatoes with butter", "a plate of noodles", "warm porridge", "a bowl of rice",
        "pancakes", "beans on toast",
    ),
    "feeling": (
        "glad", "rather tired", "surprised", "a little worried", "quite proud", "very hungry", "curious", "calm",
    ),
}  # fmt: skip

FILLER = (
    "{When}, {who} left {thing} {place}.",
    "{Who} was {feeling}, because {weather}.",
    "Nobody knew why {who} had put {thing} {place}.",
    "{Who} made {meal} for everyone, and {who2} ate most of it.",
    "{When}, {weather}, so {who} stayed {place}.",
    "{Who} found {thing} {place} and gave it to {who2}.",
    "{Who} and {who2} talked for an hour {place}.",
    "It took {who} the whole afternoon to carry {thing} home.",
    "{Who} cooks {meal} whenever {who2} comes to visit.",
    "{When}, the shops were closed, since {weather}.",
    "{When}, {who} asked {who2} about {thing}.",
    "{Who} promised to repair {thing}, but {weather}.",
    "{Who} likes to sit {place} with {meal}.",
    "{Who} felt {feeling} when {who2} appeared {place}.",
    "{When}, somebody had placed {thing} {place}.",
    "{Who} sold {thing} to {who2} for very little money.",
    "Because {weather}, {who} lent {thing} to {who2}.",
    "Nothing tastes better {place} than {meal}, {who} said.",
    "{Who} forgot {thing} {place}, and {who2} brought it back.",
    "The children played with {thing} {place}.",
)


@dataclass(frozen=True)
class Document:
    """A document before it is encoded: what is planted, what is asked, and what else could have been the answer."""

    number: int
    kind: str
    before: tuple[str, ...]
    fact: str
    after: tuple[str, ...]
    question: str
    cloze: str
    answer: str
    others: tuple[str, ...]
    """Answers of the same kind that are nowhere in the document, in a random order."""

    @property
    def depth(self) -> float:
        """How far into the filler the fact stands: 0 before all of it, 1 behind all of it."""
        return len(self.before) / max(1, len(self.before) + len(self.after))

    @property
    def body(self) -> str:
        """The sentences, with the fact among them."""
        return " ".join((*self.before, self.fact, *self.after))

    @property
    def prompt(self) -> str:
        """The sentences, the question, and the answer up to the word that is asked for."""
        return f"{self.body}\n\nQuestion: {self.question}\nAnswer: {self.cloze}"


@dataclass(frozen=True)
class Encoded:
    """A document as tokens: the prompt's ids, and which of them are what."""

    ids: list[int]
    answer: list[int]
    """Where the planted answer stands."""
    sentence: list[int]
    """Where the planted sentence stands, the answer with it."""
    question: int
    """Where the question begins: from here on, tokens are not the document's."""
    target: int
    """The answer's first token, which the model is to say next."""
    other: int
    """The first token of another answer of the same kind."""


def document(tokenizer: Any, tokens: int, seed: int, number: int) -> Document:
    """Draw the document of a seed and a number, of no more tokens than wanted."""
    draw = random.Random(f"{seed}/{number}")
    name = draw.choice(sorted(KINDS))
    kind = KINDS[name]
    subject = draw.choice(kind.subjects)
    if name == CODE:
        digits = draw.sample(DIGITS, len(DIGITS))
        answer, others = "".join(digits[:CODE_LENGTH]), ["".join(digits[CODE_LENGTH : 2 * CODE_LENGTH])]
    else:
        answer, *others = draw.sample(kind.answers, len(kind.answers))
    fact = kind.sentence.format(subject=subject, answer=answer)
    asked = Document(number, name, (), fact, (), kind.question.format(subject=subject),
                     kind.cloze.format(subject=subject), answer, tuple(others))  # fmt: skip
    room = tokens - _length(tokenizer, asked.prompt)
    if room < 0:
        raise conserva.Error(f"tokens={tokens} is too short for a fact and its question: choose at least 100.")
    sentences = _filler(draw, tokenizer, room)
    place = draw.randint(0, len(sentences))
    return Document(number, name, tuple(sentences[:place]), fact, tuple(sentences[place:]), asked.question,
                    asked.cloze, answer, tuple(others))  # fmt: skip


def encode(planted: Document, tokenizer: Any) -> Encoded:
    """Encode a document with its answer behind it, and cut before the answer: so the target is found as it is written.

    A tokenizer may put the space before a word into the word or by itself; either way the cut is right.
    """
    start = len(" ".join((*planted.before, ""))) if planted.before else 0
    within = start + planted.fact.index(planted.answer)
    question = len(planted.body) + 2

    def completed(answer: str) -> tuple[list[int], list[tuple[int, int]], int]:
        text = f"{planted.prompt} {answer}"
        found = tokenizer(text, return_offsets_mapping=True)
        offsets = [tuple(one) for one in found["offset_mapping"]]
        return found["input_ids"], offsets, _inside(offsets, len(planted.prompt) + 1, len(text))[0]

    ids, offsets, cut = completed(planted.answer)
    for other in planted.others:
        other_ids, _, other_cut = completed(other)
        if other_ids[:other_cut] == ids[:cut] and other_ids[cut] != ids[cut]:
            break
    else:
        raise conserva.Error(
            f"After the same tokens as {planted.answer!r}, and with another first one, this tokenizer begins none of "
            f"{', '.join(planted.others)}: take a model with another tokenizer."
        )
    return Encoded(
        ids=ids[:cut],
        answer=_inside(offsets, within, within + len(planted.answer)),
        sentence=_inside(offsets, start, start + len(planted.fact)),
        question=_inside(offsets, question, len(planted.prompt))[0],
        target=ids[cut],
        other=other_ids[cut],
    )


def drawn(tokenizer: Any, tokens: int, seed: int, first: int = 0) -> Iterator[tuple[Document, Encoded]]:
    """Yield documents without end, from a number on."""
    for number in count(first):
        one = document(tokenizer, tokens, seed, number)
        yield one, encode(one, tokenizer)


def filler_words() -> set[str]:
    """Return every word that filler sentences are made of, in small letters."""
    texts = [*FILLER, *(text for texts in SLOTS.values() for text in texts)]
    return {word for text in texts for word in words(re.sub(r"{\w+}", " ", text))}


def words(text: str) -> list[str]:
    """Return the words and numbers of a text, in small letters."""
    return re.findall(r"\w+", text.lower())


def _filler(draw: random.Random, tokenizer: Any, room: int) -> list[str]:
    """Draw sentences, no two alike, until the next one would not fit."""
    sentences: list[str] = []
    while True:
        sentence = _sentence(draw)
        if sentence in sentences:
            continue
        room -= _length(tokenizer, f" {sentence}")
        if room < 0:
            return sentences
        sentences.append(sentence)


def _sentence(draw: random.Random) -> str:
    chosen = {name: draw.choice(texts) for name, texts in SLOTS.items()}
    chosen["who2"] = draw.choice([who for who in SLOTS["who"] if who != chosen["who"]])
    capitals = {name.capitalize(): text[0].upper() + text[1:] for name, text in chosen.items()}
    return draw.choice(FILLER).format(**chosen, **capitals)


def _length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def _inside(offsets: Sequence[tuple[int, ...]], start: int, end: int) -> list[int]:
    """Return the tokens that have a character between start and end."""
    return [i for i, (first, last) in enumerate(offsets) if max(first, start) < min(last, end)]

"""Sentence ends, and full stops that do not end a sentence."""

from __future__ import annotations

import pytest

from lightning_idc.utils.sentences import sentence_end

WHOLE = [
    "a bus with the number No. 5.",
    "No. 5 is a 3.5 m boat.",
    "a statue of St. Mary, by J. A. Smith.",
    "a church in St. Paul, at approx. 5 p.m. on a sunny day.",
    "the U.S. flag, and Mr. Brown, e.g. in a suit.",
    "a shop of Smith & Co. and Sons, of Main St. and 5th Ave.",
    "a shop of the U.S. Army, opened Jan. 5.",
    'a sign that says "Stop. Look. Listen." and a dog.',
    "a sign that says \u201cKeep calm. Carry on.\u201d next to Vol. 2.",
    "a poster, 'Jaws. The film.' and a 5\" pipe.",
    'the word "STOP!"',
    'a sign that says "Go."',
    'a sign that says "Go".',
    "the address www.example.com, of Node.js.",
    "a dog\n and a cat.",
    "a dog (a poodle, approx. 5 kg.) and a cat.",
    'the text "Really?" and "Yes!" in red.',
    "a store named Yahoo! and a café.",
    "a boat of 3.5",
]


@pytest.mark.parametrize("text", WHOLE)
def test_full_stops_of_abbreviations_numbers_and_quotations_end_nothing(text: str) -> None:
    assert sentence_end(text) == (None if text.endswith("5") else len(text))


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ("a cat.", " The dog is brown and the cat is not visible. Overall, both are similar"),
        ("a cat.", " the dog is brown"),
        ("a cat.", "\n\nNote: I could not verify this."),
        ("a cat.", " (Note: I could not verify this.)"),
        ("a cat.", "The dog is brown."),
        ('the word "STOP."', " The dog is brown."),
        ("Main St.", " The dog is brown."),
        ("the flag of the U.S.", " Both are old."),
        ("a picture of the year 2020.", " 1. The dog is brown."),
        ('a 5" pipe.', ' It is 3" long.'),
        ("the dogs' bed.", " The cats' bed is away."),
        ("no. ", "It has none."),
        ("a cat!", " Both are old."),
    ],
)
def test_what_stands_behind_a_sentence_is_not_part_of_it(first: str, rest: str) -> None:
    assert sentence_end(first + rest) == len(first.rstrip())


@pytest.mark.parametrize("rest", ["\n\nNote: I could not.", "\n- brown\n- red", "\nNote: I could not."])
def test_a_paragraph_ends_a_sentence_that_has_no_full_stop(rest: str) -> None:
    text = f"a cat{rest}"
    result = sentence_end(text)
    assert result is not None and text[:result].strip() == "a cat"


@pytest.mark.parametrize(
    "text", ["", "a cat on the edge of a", "a cat...", "a cat\u2026", "a statue of Mt.", "a dog, e.g."]
)
def test_a_text_that_breaks_off_has_no_end(text: str) -> None:
    assert sentence_end(text) is None

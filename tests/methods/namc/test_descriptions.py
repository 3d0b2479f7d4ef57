"""Implicit-change descriptions: the template, its rejection rules, and synthetic noise against the scene."""

from __future__ import annotations

import pytest
import torch

from lightning_idc.data.benchmarks.implicit_change import (
    VERBS,
    Rejection,
    component_spans,
    components,
    compose,
    object_descriptions,
    repetitions,
)
from lightning_idc.data.synthetic.claims import Attributes
from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS
from lightning_idc.data.transforms.swap import SwapImages, swap_descriptions
from lightning_idc.images.types import PairSample
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.errors import ConfigError, DataError

HEAD = "The difference between the two images is that the first image"
# the generation printed in the paper's Figure 8, without "the" before "two images"
FIGURE_8 = (
    "The difference between two images is that the first image shows a person jumping, with each frame capturing the "
    "person in mid-air, while the second image depicts a bald eagle standing on the edge of a body of water, looking "
    "downwards."
)


def test_components_of_the_paper_example() -> None:
    assert components(FIGURE_8) == (
        "a person jumping , with each frame capturing the person in mid-air",
        "a bald eagle standing on the edge of a body of water , looking downwards",
    )
    assert not isinstance(object_descriptions(FIGURE_8), Rejection)


def test_components_with_every_verb() -> None:
    for verb in VERBS:
        text = compose("a red cube", "two green spheres", (verb, verb))
        assert components(text) == ("a red cube", "two green spheres"), verb


def test_component_spans() -> None:
    words = words_of(compose("while the first image shows", "what the second image has"))
    spans = component_spans(words)
    assert spans is not None
    assert [words[i] for i in spans[0]] == ["while", "the", "first", "image", "shows"]
    assert [words[i] for i in spans[1]] == ["what", "the", "second", "image", "has"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("the red cube moved", "not in the template"),
        (f"{HEAD} shows a dog.", "not in the template"),
        (f"{HEAD} shows a dog, while the second image does not.", "not in the template"),
        (f"{HEAD} gnaws a dog, while the second image shows a cat.", "not in the template"),
        (f"{HEAD} shows a dog, while the second image is not.", "no object in the second"),
        (f"{HEAD} shows a dog, while the second image shows.", "no object in the second"),
        (f"{HEAD} has it, while the second image shows a dog.", "no object in the first"),
        (compose("", "a dog"), "no object in the first"),
    ],
)
def test_rejects_useless_descriptions(text: str, reason: str) -> None:
    rejection = object_descriptions(text)
    assert isinstance(rejection, Rejection) and reason in rejection.reason


@pytest.mark.parametrize(
    "text",
    [
        "The first image shows a dog, while the second image shows a cat.",
        f"Sure! {HEAD} shows a dog, while the second image shows a cat.",
        f"{HEAD} is a close-up-while the second image is a cat.",
        f"{HEAD} shows [object description], while the second image shows a cat.",
        f"{HEAD} shows a dog, while the second image gnaws a cat.",
        f"{HEAD} gnaws a dog, while the first image shows a cat, while the second image shows a dog.",
    ],
)
def test_all_parsers_use_one_template(text: str) -> None:
    rejection = object_descriptions(text)
    assert isinstance(rejection, Rejection) and rejection.reason == "not in the template"
    assert component_spans(words_of(text)) is None and components(text) is None
    with pytest.raises(DataError, match="does not follow the template"):
        swap_descriptions(text)


def test_repetitions_equal_table_14() -> None:
    counted = repetitions(["a", "b", "a", "a"])
    assert counted == {"total": 4, "unique": 2, "repetition": 2, "repetition_ratio": 0.5}
    assert repetitions([])["repetition_ratio"] == 0.0
    # the first row of the table
    assert pytest.approx(4.49, abs=0.01) == 100 * (311_499 - 297_485) / 311_499


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> SyntheticDescriptions:
    return SyntheticDescriptions(
        word_noise=0.25,
        description_noise=0.2,
        train_pairs=120,
        val_pairs=16,
        test_pairs=16,
        render_size=16,
        cache_dir=tmp_path_factory.mktemp("cache"),
        progress=False,
    )


def _phrases(text: str) -> list[Attributes]:
    """Return the attributes of all objects that a text mentions."""
    words, things = words_of(text), []
    for i in range(len(words) - 3):
        four = words[i : i + 4]
        if all(word in options for word, options in zip(four, ATTRIBUTE_WORDS.values(), strict=True)):
            things.append(Attributes(*four))
    return things


def test_descriptions_without_noise_are_true(noisy: SyntheticDescriptions) -> None:
    source = noisy.source("test")
    for index in range(len(source)):
        described, truth = source.described[index], source.source.ground_truth(index)
        assert not any(described.wrong)
        texts = components(described.text)
        assert texts is not None
        for text, side in zip(texts, ("before", "after"), strict=True):
            things = [Attributes(*(thing[kind] for kind in ATTRIBUTE_WORDS)) for thing in truth[side]["things"]]
            assert _phrases(text) and all(phrase in things for phrase in _phrases(text))
        assert noisy.facts("test", source.ids[index], described.text) == {"before": True, "after": True}
        assert noisy.facts("test", source.ids[index], "nothing changed") == {"before": False, "after": False}


@pytest.mark.slow
def test_synthetic_noise_has_the_right_labels_and_rates(noisy: SyntheticDescriptions) -> None:
    source = noisy.source("train")
    replaced = wrong = right = 0
    for index in range(len(source)):
        described, truth = source.described[index], source.source.ground_truth(index)
        words = words_of(described.text)
        assert len(words) == len(described.wrong) == len(described.attribute)
        spans = component_spans(words)
        assert spans is not None
        inside = {i for span in spans for i in span}
        assert not any(flag for i, flag in enumerate(described.wrong) if i not in inside)
        for side, span in zip(("before", "after"), spans, strict=True):
            things = [Attributes(*(thing[kind] for kind in ATTRIBUTE_WORDS)) for thing in truth[side]["things"]]
            is_replaced = all(described.wrong[i] for i in span)
            replaced += is_replaced
            if is_replaced:
                continue
            attributes = [i for i in span if described.attribute[i]]
            assert all(words[i] in {w for group in ATTRIBUTE_WORDS.values() for w in group} for i in attributes)
            wrong += sum(described.wrong[i] for i in attributes)
            right += sum(not described.wrong[i] for i in attributes)
            for phrase in range(0, len(attributes), 4):
                four = attributes[phrase : phrase + 4]
                # a phrase describes an object of the image exactly if none of its words is noise
                planted = any(described.wrong[i] for i in four)
                assert (Attributes(*(words[i] for i in four)) in things) is not planted
    assert replaced / (2 * len(source)) == pytest.approx(0.2, abs=0.06)
    assert wrong / (wrong + right) == pytest.approx(0.25, abs=0.04)
    repeated = SyntheticDescriptions(0.25, 0.2, train_pairs=120, render_size=16, cache_dir=noisy._root, progress=False)
    assert repeated.source("train").described == source.described


def test_vocabulary_covers_pre_training_and_fine_tuning(noisy: SyntheticDescriptions) -> None:
    captions = noisy.train_captions()
    assert sum("difference between" in text for text in captions) == 120
    assert set(noisy.no_change_captions()) <= set(captions)
    sample = noisy.source("train").load(3)
    assert sample.captions == [captions[3]]


def test_rejects_invalid_noise() -> None:
    with pytest.raises(ConfigError, match="word_noise is 2"):
        SyntheticDescriptions(word_noise=2)
    with pytest.raises(ConfigError, match="contain the positions of objects"):
        SyntheticDescriptions(relations="needed")
    with pytest.raises(ConfigError, match="single change"):
        SyntheticDescriptions(mode="omnidiff")


def test_swapped_images_swap_their_descriptions() -> None:
    image = torch.zeros(3, 4, 4, dtype=torch.uint8)
    text = compose("a red cube, left", "two green spheres", ("shows", "has"))
    sample = PairSample("a", image, image + 9, [text], boxes=torch.tensor([[[0.0, 0, 1, 1], [2, 2, 3, 3]]]))
    swapped = SwapImages(1.0)(sample, torch.Generator())
    assert torch.equal(swapped.before, sample.after) and torch.equal(swapped.after, sample.before)
    assert swapped.captions == [compose("two green spheres", "a red cube, left", ("shows", "has"))]
    assert swapped.boxes is not None and swapped.boxes[0, 0].tolist() == [2, 2, 3, 3]
    assert SwapImages(0.0)(sample, torch.Generator()) is sample
    is_unchanged = [SwapImages()(sample, torch.Generator().manual_seed(seed)) is sample for seed in range(200)]
    assert 70 < sum(is_unchanged) < 130
    with pytest.raises(DataError, match="does not follow the template"):
        SwapImages(1.0)(PairSample("a", image, image, ["it moved"]), torch.Generator())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a  dog", "a\ncat"),
        ("a dog\n running", "a cat"),
        ("two images", "a cat"),
        ("the first", "the first image"),
        ("a dog", "a dog, while it rains, of the two images"),
        ('a sign "GO"', 'a sign "STOP"'),
    ],
)
@pytest.mark.parametrize("form", ["{}", " {}\n", '"{}"'])
def test_swap_descriptions_moves_whole_descriptions(first: str, second: str, form: str) -> None:
    swapped = swap_descriptions(form.format(compose(first, second, ("shows", "has"))))
    first_text, second_text = " ".join(first.split()), " ".join(second.split())
    assert swapped == compose(second_text, first_text, ("shows", "has"))
    assert swap_descriptions(swapped) == compose(first_text, second_text, ("shows", "has"))


def test_hallucinated_objects_are_in_no_image_and_consistent() -> None:
    sizes: dict = dict(train_pairs=40, val_pairs=1, test_pairs=3, render_size=16, progress=False)
    data = SyntheticDescriptions(0.0, 0.0, hallucinations=1.0, **sizes)
    plain = SyntheticDescriptions(0.0, 0.0, **sizes).source("train")
    source = data.source("train")
    hallucinations_of: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    num_hallucinations = 0
    for index in range(40):
        described, truth = source.described[index], source.source.ground_truth(index)
        words = words_of(described.text)
        spans = component_spans(words)
        assert spans is not None
        for name, span in zip(("before", "after"), spans, strict=True):
            wrong = [i for i in span if described.wrong[i]]
            if not wrong:
                continue
            num_hallucinations += 1
            assert wrong == list(range(span.stop - 6, span.stop)) and words[wrong[0] : wrong[2]] == ["and", "a"]
            thing = tuple(words[i] for i in wrong[2:])
            assert all(described.attribute[i] for i in wrong[2:]) and not any(described.attribute[i] for i in wrong[:2])
            assert all(tuple(there[kind] for kind in ATTRIBUTE_WORDS) != thing for there in truth[name]["things"])
            first = [words[i] for i in span if described.attribute[i]][:4]
            hallucinations_of.setdefault(tuple(first), set()).add(thing)
        without = [word for word, wrong in zip(words, described.wrong, strict=True) if not wrong]
        assert without == words_of(plain.described[index].text)
    assert num_hallucinations > 70 and all(len(things) == 1 for things in hallucinations_of.values())
    assert not any(any(described.wrong) for described in data.source("test").described)
    with pytest.raises(ConfigError, match="hallucinations"):
        SyntheticDescriptions(hallucinations=1.5, **sizes)

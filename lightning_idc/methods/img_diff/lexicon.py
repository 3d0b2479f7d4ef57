"""Names of objects by category, from WordNet's files or from a small built-in list (section 11)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning_idc.utils.errors import ConfigError, DataError

CATEGORIES = (
    "machine", "living_thing", "natural_object", "fruit", "vehicle", "container", "clothing", "fixture", "appliance",
    "furniture", "food",
)  # fmt: skip
"""The eleven classes of section 11, as WordNet names them."""

_BUILTIN = {
    "machine": "computer laptop printer tractor generator calculator typewriter robot engine drill",
    "living_thing": "dog cat horse cow sheep elephant bear zebra giraffe bird duck owl rabbit squirrel lion tiger fox "
    "monkey penguin turtle frog fish butterfly bee man woman boy girl child person tree flower rose cactus",
    "natural_object": "rock stone shell feather leaf nest moon star antler cloud",
    "fruit": "apple orange banana lemon peach pear cherry grape strawberry pineapple mango melon plum",
    "vehicle": "car bus truck train bicycle motorcycle boat airplane helicopter van taxi tram scooter canoe sled",
    "container": "bowl cup mug bottle vase basket box bag bucket jar pot kettle suitcase backpack barrel glass",
    "clothing": "hat cap coat jacket shirt dress skirt scarf glove boot shoe sweater tie helmet apron",
    "fixture": "sink toilet bathtub faucet chandelier shower fireplace washbasin",
    "appliance": "refrigerator oven toaster microwave blender dishwasher stove freezer iron fan",
    "furniture": "chair table sofa couch bed bench desk shelf wardrobe stool dresser bookcase armchair",
    "food": "pizza cake sandwich hamburger bread cheese soup salad donut cookie pancake pasta rice steak sausage pie",
}  # fmt: skip


class Lexicon:
    """Nouns by category; a noun of several categories belongs to the first.

    Args:
        nouns: nouns by category.

    Raises:
        ConfigError: a category has fewer than two nouns, too few to replace one by another.
    """

    def __init__(self, nouns: Mapping[str, Sequence[str]]) -> None:
        self.category: dict[str, str] = {}
        self.nouns: dict[str, list[str]] = {}
        for name, words in nouns.items():
            unique = [word for word in dict.fromkeys(words) if word not in self.category]
            self.category.update(dict.fromkeys(unique, name))
            self.nouns[name] = unique
        too_few = [name for name, words in self.nouns.items() if len(words) < 2]
        if too_few:
            raise ConfigError(
                f"the lexicon has fewer than two nouns for {', '.join(too_few)}; expected two or more each"
            )

    def __len__(self) -> int:
        return len(self.category)

    @classmethod
    def builtin(cls) -> Lexicon:
        """A small list of common objects, for use without WordNet."""
        return cls({name: words.split() for name, words in _BUILTIN.items()})

    @classmethod
    def wordnet(cls, folder: str | Path) -> Lexicon:
        """All nouns below the eleven classes of a WordNet database.

        A noun has the class of its most frequent sense below one of them; only single words are used, as captions are
        searched word by word. Section 11 counts 5,526 nouns without saying how senses were chosen; this rule selects
        15,178 of WordNet 3.0.

        Args:
            folder: folder with WordNet's ``data.noun`` and ``index.noun`` (3.0 or 3.1).

        Raises:
            DataError: the files are missing or not WordNet's.
        """
        path = Path(folder).expanduser()
        try:
            parents = _parents(path / "data.noun")
            senses = dict(_senses(path / "index.noun"))
            roots = {senses[name][0]: name for name in _root_words(senses)}
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise DataError(
                f"{path} has no WordNet nouns ({error!r}); expected data.noun and index.noun, as in Debian's "
                "wordnet-base (/usr/share/wordnet) or the dict folder of wordnetcode.princeton.edu"
            ) from error
        classes: dict[int, str | None] = dict(roots)
        nouns: dict[str, list[str]] = defaultdict(list)
        for word, synsets in senses.items():
            if word.isalpha():
                categories = (_class_of(synset, parents, classes) for synset in synsets)
                category = next((name for name in categories if name is not None), None)
                if category is not None:
                    nouns[category].append(word)
        return cls({name: nouns[name] for name in CATEGORIES})


def _root_words(senses: Mapping[str, Sequence[int]]) -> Sequence[str]:
    missing = [name for name in CATEGORIES if name not in senses]
    if missing:
        raise ValueError(f"no entry for {missing[0]}")
    return CATEGORIES


def _senses(path: Path) -> list[tuple[str, list[int]]]:
    """Nouns with their synsets, the most frequent first."""
    senses = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):  # the licence
            columns = line.split()
            num_synsets = int(columns[2])
            senses.append((columns[0], [int(offset) for offset in columns[-num_synsets:]]))
    return senses


def _parents(path: Path) -> dict[int, list[int]]:
    """Hypernyms of each synset; instances (names of persons and places) have none."""
    parents: dict[int, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue
        columns = line.split(" | ")[0].split()
        num_pointers = 4 + 2 * int(columns[3], 16)  # index of the column, after the words of the synset
        first = num_pointers + 1  # four columns for each pointer: symbol, offset, part of speech, source and target
        pointers = [columns[first + 4 * i : first + 4 * i + 2] for i in range(int(columns[num_pointers]))]
        parents[int(columns[0])] = [int(offset) for symbol, offset in pointers if symbol == "@"]
    return parents


def _class_of(synset: int, parents: Mapping[int, list[int]], classes: dict[int, str | None]) -> str | None:
    """Nearest of the eleven classes above a synset, cached for all synsets on the path."""
    if synset not in classes:
        classes[synset] = None  # stops at a cycle
        inherited = (_class_of(parent, parents, classes) for parent in parents.get(synset, ()))
        classes[synset] = next((name for name in inherited if name is not None), None)
    return classes[synset]

"""Random words, names and numbers for page templates; all made up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NOUNS = (
    "account", "archive", "balcony", "basket", "bicycle", "bridge", "budget", "calendar", "camera", "canal", "chart",
    "coffee", "compass", "corner", "course", "delivery", "design", "engine", "evening", "event", "family", "festival",
    "forest", "garden", "guide", "harbour", "island", "journey", "kitchen", "lamp", "library", "market", "meadow",
    "meeting", "message", "morning", "museum", "notebook", "office", "orchard", "order", "paper", "payment", "picture",
    "planet", "platform", "project", "recipe", "report", "river", "season", "service", "signal", "studio", "summer",
    "system", "table", "teacher", "ticket", "travel", "valley", "village", "window", "winter", "workshop",
)  # fmt: skip
VERBS = ("build", "choose", "collect", "compare", "deliver", "discover", "explore", "find", "follow", "improve", "keep",
         "learn", "manage", "measure", "open", "plan", "prepare", "print", "repair", "review", "save", "share", "start",
         "track", "visit", "write")  # fmt: skip
ADJECTIVES = ("annual", "bright", "calm", "central", "clear", "common", "daily", "early", "easy", "fresh", "friendly",
              "gentle", "green", "large", "late", "little", "local", "modern", "narrow", "new", "northern", "open",
              "plain", "public", "quiet", "rapid", "simple", "small", "steady", "warm", "weekly", "wide")  # fmt: skip
NAMES = ("Ada Berg", "Ben Okoro", "Clara Lind", "David Moreau", "Elif Kaya", "Farid Noor", "Greta Holm", "Hugo Stern",
         "Ines Duarte", "Jonas Vik", "Kemi Ade", "Lea Fuchs", "Marek Novak", "Nora Quist", "Omar Said", "Petra Wolf",
         "Rosa Silva", "Sven Dahl", "Tara Singh", "Yuki Mori")  # fmt: skip
BUTTONS = ("Add to basket", "Apply", "Book now", "Buy", "Cancel", "Compare", "Continue", "Contact us", "Download",
           "Edit", "Get started", "Join", "Learn more", "Next", "Read more", "Save", "Send", "Show all", "Sign in",
           "Start now", "Subscribe", "Try it free", "View", "Watch")  # fmt: skip
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Words:
    """Draws texts from a random generator.

    Args:
        random: random generator.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random

    def pick(self, values: Sequence[str]) -> str:
        """One of some texts."""
        return values[int(self.random.integers(len(values)))]

    def some(self, values: Sequence[str], count: int) -> list[str]:
        """Several texts, all different as long as there are enough."""
        order = self.random.permutation(len(values))
        return [values[int(order[number % len(order)])] for number in range(count)]

    def number(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return int(self.random.integers(low, high + 1))

    def title(self) -> str:
        """A heading of two to five words."""
        a, b, c = self.pick(ADJECTIVES), self.pick(NOUNS), self.pick(NOUNS)
        forms = (f"{a} {b}", f"the {a} {b}", f"{self.pick(VERBS)} your {b}", f"{b} and {c}", f"{a} {b} for every {c}")
        text = self.pick(forms)
        return text[0].upper() + text[1:]

    def sentence(self) -> str:
        """A sentence of six to fourteen words."""
        forms = (
            f"{self.pick(VERBS)} the {self.pick(ADJECTIVES)} {self.pick(NOUNS)} before the {self.pick(NOUNS)} opens",
            f"every {self.pick(NOUNS)} has a {self.pick(ADJECTIVES)} {self.pick(NOUNS)} and {self.number(2, 90)} "
            f"{self.pick(NOUNS)}s",
            f"we {self.pick(VERBS)} and {self.pick(VERBS)} a {self.pick(ADJECTIVES)} {self.pick(NOUNS)} with care",
            f"from the {self.pick(NOUNS)} to the {self.pick(NOUNS)}, it takes {self.number(2, 60)} minutes",
            f"the {self.pick(ADJECTIVES)} {self.pick(NOUNS)} is closed on the first {self.pick(NOUNS)} of the season",
        )
        text = self.pick(forms)
        return text[0].upper() + text[1:] + "."

    def paragraph(self, low: int = 2, high: int = 5) -> str:
        """Several sentences."""
        return " ".join(self.sentence() for _ in range(self.number(low, high)))

    def price(self) -> str:
        """A price."""
        return f"{self.pick(('$', '€', '£'))}{self.number(2, 480)}.{self.pick(('00', '50', '95', '99'))}"

    def date(self) -> str:
        """A date."""
        return f"{self.number(1, 28)} {self.pick(MONTHS)} {self.number(2019, 2026)}"

    def label(self) -> str:
        """One or two words."""
        return self.pick((self.pick(NOUNS), f"{self.pick(ADJECTIVES)} {self.pick(NOUNS)}")).capitalize()

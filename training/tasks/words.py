"""Words that prompts are made of."""

from __future__ import annotations

from typing import NamedTuple

FIRST_NAMES = (
    "Ada", "Anna", "Ben", "Chen", "Clara", "Diego", "Elena", "Erik", "Fatima", "Grace", "Hana", "Hugo", "Ivan",
    "Jonas", "Kai", "Karim", "Leo", "Lina", "Maria", "Marta", "Max", "Milan", "Nadia", "Noah", "Nora", "Omar",
    "Oscar", "Peter", "Priya", "Rosa", "Ruth", "Sam", "Simon", "Sofia", "Theo", "Tom", "Victor", "Wei", "Yusuf",
    "Zoe",
)  # fmt: skip
LAST_NAMES = (
    "Adams", "Baker", "Becker", "Bianchi", "Carter", "Clark", "Costa", "Diaz", "Evans", "Fischer", "Green", "Hall",
    "Hansen", "Hoffmann", "Ivanov", "Jansen", "Keller", "Khan", "Kim", "Kovacs", "Lang", "Lee", "Martin", "Meyer",
    "Moreau", "Novak", "Okafor", "Olsen", "Petrov", "Rossi", "Santos", "Schmidt", "Silva", "Singh", "Tanaka",
    "Turner", "Vogel", "Weber", "Wong", "Young",
)  # fmt: skip
CITIES = (
    "Amsterdam", "Barcelona", "Berlin", "Boston", "Brussels", "Cairo", "Chicago", "Denver", "Dublin", "Hamburg",
    "Helsinki", "Kyoto", "Lagos", "Lisbon", "London", "Lyon", "Milan", "Montreal", "Nairobi", "Oslo", "Porto",
    "Prague", "Rome", "Seoul", "Stockholm", "Sydney", "Tokyo", "Toronto", "Warsaw", "Zurich",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "purple", "red", "white", "yellow")
GOODS = (  # bought and counted; the plural ends in s
    "bag", "bell", "belt", "book", "bottle", "bowl", "camera", "candle", "cap", "clock", "cup", "cushion", "desk",
    "drum", "fork", "guitar", "hammer", "helmet", "jacket", "keyboard", "ladder", "lamp", "mirror", "mug",
    "notebook", "pen", "pillow", "printer", "radio", "ring", "rug", "scarf", "shirt", "stool", "table", "towel",
    "tray", "umbrella", "wallet", "whistle",
)  # fmt: skip
JOBS = (
    "artist", "captain", "clerk", "dancer", "doctor", "farmer", "gardener", "judge", "lawyer", "nurse", "painter",
    "pilot", "porter", "sailor", "soldier", "student", "teacher", "tutor", "worker", "writer",
)  # fmt: skip
ADJECTIVES = (
    "big", "cheap", "cold", "dark", "dirty", "empty", "fresh", "heavy", "huge", "light", "long", "new", "plain",
    "round", "short", "shiny", "small", "square", "strong", "tiny", "wet", "wooden",
)  # fmt: skip
PLACES = (
    "at home", "at school", "at the market", "at the office", "at the station", "behind the house", "by the river",
    "in the cellar", "in the garden", "in the kitchen", "in the library", "in the park", "in the street",
    "near the bridge", "on the beach", "on the roof",
)  # fmt: skip


class Verb(NamedTuple):
    """A verb that takes an object."""

    base: str
    third: str
    past: str
    participle: str


def _verb(base: str, *irregular: str) -> Verb:
    third = base + ("es" if base.endswith(("s", "sh", "ch", "x", "o")) else "s")
    past = irregular[0] if irregular else base + ("d" if base.endswith("e") else "ed")
    return Verb(base, third, past, irregular[1] if len(irregular) > 1 else past)


def _carried(base: str) -> Verb:
    """Of a verb in y behind a consonant."""
    return Verb(base, f"{base[:-1]}ies", f"{base[:-1]}ied", f"{base[:-1]}ied")


VERBS = (
    *map(_verb, (
        "admire", "borrow", "check", "clean", "close", "collect", "count", "cover", "deliver", "describe", "finish",
        "fix", "inspect", "like", "lock", "measure", "move", "notice", "open", "order", "pack", "paint", "pull",
        "push", "repair", "return", "touch", "use", "wash", "watch",
    )),
    *map(_carried, ("carry", "copy", "dry", "tidy")),
    *(_verb(*forms) for forms in (
        ("break", "broke", "broken"), ("bring", "brought"), ("buy", "bought"), ("choose", "chose", "chosen"),
        ("draw", "drew", "drawn"), ("find", "found"), ("hide", "hid", "hidden"), ("hold", "held"), ("keep", "kept"),
        ("lose", "lost"), ("see", "saw", "seen"), ("sell", "sold"), ("send", "sent"), ("take", "took", "taken"),
        ("throw", "threw", "thrown"), ("wear", "wore", "worn"),
    )),
)  # fmt: skip


def article(words: str) -> str:
    """With "a" or "an" before it."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def counted(n: str | int, noun: str) -> str:
    """ "1 lamp", "four lamps"."""
    return f"{n} {noun}" if str(n) in ("1", "one") else f"{n} {noun}s"

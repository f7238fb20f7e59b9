"""Words that prompts are made of."""

from __future__ import annotations

from typing import NamedTuple

FIRST_NAMES = (
    "Ada", "Amir", "Anna", "Ben", "Carla", "Chen", "Clara", "Daniel", "Diego", "Elena", "Emma", "Erik", "Fatima",
    "Felix", "Grace", "Hana", "Hugo", "Ines", "Ivan", "Jonas", "Julia", "Kai", "Karim", "Lena", "Leo", "Lina",
    "Lucas", "Maria", "Marta", "Max", "Mia", "Milan", "Nadia", "Nina", "Noah", "Nora", "Oliver", "Omar", "Oscar",
    "Paula", "Peter", "Priya", "Ravi", "Rosa", "Ruth", "Sam", "Sara", "Simon", "Sofia", "Tara", "Theo", "Tom",
    "Vera", "Victor", "Wei", "Yara", "Yusuf", "Zoe",
)  # fmt: skip
LAST_NAMES = (
    "Adams", "Ahmed", "Baker", "Becker", "Bianchi", "Brown", "Carter", "Clark", "Costa", "Dahl", "Diaz", "Evans",
    "Fischer", "Garcia", "Green", "Hall", "Hansen", "Haas", "Hoffmann", "Ivanov", "Jansen", "Kaya", "Keller",
    "Khan", "Kim", "Klein", "Kovacs", "Lang", "Lee", "Lopez", "Martin", "Meyer", "Moreau", "Nagy", "Novak",
    "Okafor", "Olsen", "Patel", "Petrov", "Rossi", "Santos", "Sato", "Schmidt", "Silva", "Singh", "Smith", "Tanaka",
    "Turner", "Vogel", "Walker", "Weber", "Wong", "Young",
)  # fmt: skip
CITIES = (
    "Amsterdam", "Athens", "Barcelona", "Berlin", "Bern", "Boston", "Brussels", "Budapest", "Cairo", "Chicago",
    "Copenhagen", "Denver", "Dublin", "Geneva", "Hamburg", "Helsinki", "Istanbul", "Kyoto", "Lagos", "Lima",
    "Lisbon", "London", "Lyon", "Madrid", "Milan", "Montreal", "Munich", "Nairobi", "Oslo", "Paris", "Porto",
    "Prague", "Riga", "Rome", "Seoul", "Sofia", "Stockholm", "Sydney", "Tallinn", "Tokyo", "Toronto", "Vienna",
    "Warsaw", "Zurich",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLOURS = ("black", "blue", "brown", "green", "grey", "orange", "purple", "red", "white", "yellow")
GOODS = (  # bought and counted; the plural ends in s
    "bag", "basket", "bell", "belt", "blanket", "book", "bottle", "bowl", "bucket", "camera", "candle", "cap",
    "chair", "clock", "cup", "curtain", "cushion", "desk", "drum", "fan", "fork", "guitar", "hammer", "hat",
    "helmet", "jacket", "kettle", "keyboard", "ladder", "lamp", "map", "mirror", "mug", "notebook", "pan", "pen",
    "pillow", "plate", "printer", "radio", "ring", "rope", "rug", "scarf", "shirt", "spoon", "stool", "table",
    "tent", "towel", "tray", "umbrella", "vase", "wallet", "whistle",
)  # fmt: skip
JOBS = (
    "artist", "baker", "captain", "clerk", "cook", "dancer", "doctor", "driver", "farmer", "gardener", "guard",
    "judge", "lawyer", "miner", "nurse", "painter", "pilot", "plumber", "porter", "sailor", "singer", "soldier",
    "student", "tailor", "teacher", "tutor", "waiter", "worker", "writer",
)  # fmt: skip
ADJECTIVES = (
    "big", "broken", "cheap", "clean", "cold", "cracked", "dark", "dirty", "dusty", "empty", "expensive", "fresh",
    "golden", "heavy", "huge", "large", "light", "little", "long", "new", "old", "plain", "pretty", "round",
    "sharp", "short", "shiny", "silver", "small", "soft", "square", "strange", "strong", "tiny", "warm", "wet",
    "wide", "wooden",
)  # fmt: skip
PLACES = (
    "at home", "at school", "at the airport", "at the market", "at the museum", "at the office", "at the station",
    "behind the house", "by the river", "in the attic", "in the cellar", "in the garden", "in the hall",
    "in the kitchen", "in the library", "in the park", "in the street", "in the workshop", "near the bridge",
    "near the church", "next to the door", "on the balcony", "on the beach", "on the roof", "under the tree",
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
        "admire", "borrow", "check", "clean", "close", "collect", "count", "cover", "deliver", "describe", "examine",
        "fetch", "finish", "fix", "guard", "inspect", "like", "load", "lock", "measure", "mention", "move", "need",
        "notice", "offer", "open", "order", "pack", "paint", "pass", "photograph", "polish", "pull", "push", "remember",
        "repair", "return", "show", "touch", "turn", "use", "visit", "want", "wash", "watch", "weigh", "wrap",
    )),
    *map(_carried, ("carry", "copy", "dry", "empty", "tidy")),
    *(_verb(*forms) for forms in (
        ("break", "broke", "broken"), ("bring", "brought"), ("build", "built"), ("buy", "bought"),
        ("catch", "caught"), ("choose", "chose", "chosen"), ("draw", "drew", "drawn"), ("drop", "dropped"),
        ("find", "found"), ("forget", "forgot", "forgotten"), ("hide", "hid", "hidden"), ("hold", "held"),
        ("keep", "kept"), ("lend", "lent"), ("lose", "lost"), ("make", "made"), ("see", "saw", "seen"),
        ("sell", "sold"), ("send", "sent"), ("steal", "stole", "stolen"), ("take", "took", "taken"),
        ("throw", "threw", "thrown"), ("wear", "wore", "worn"),
    )),
)  # fmt: skip


def article(words: str) -> str:
    """With "a" or "an" before it."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def counted(n: str | int, noun: str) -> str:
    """ "1 lamp", "four lamps"."""
    return f"{n} {noun}" if str(n) in ("1", "one") else f"{n} {noun}s"

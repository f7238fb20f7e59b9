"""Tokenizer: text to ids and back, with a caller's text kept apart from control tokens."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import tokenizers

from ramet.errors import InvalidRequest, RequestTooLong
from ramet.text.spelling import Spelling

# By name, so that <think> and the like stay control tokens.
_TAG = re.compile(
    "</?(a|b|bbox|blockquote|body|caption|code|div|em|footer|h[1-6]|html|i|iframe|img|li|s|span|strong|sub|sup|table|"
    "tbody|td|tfoot|th|thead|tr|u|ul)>"
)
WORD = "Q"  # stands for what follows a blank line: see splits_before_words
_AT_ONCE = 4  # characters an id, in honest text, up to which a text is encoded without a look at its length
_PIECE = 1 << 16  # characters
# What may stand before a cut, each tried against texts that begin with a space.
_PROBES = (
    "a",
    "Z",
    "word",
    "42",
    ".",
    "?!",
    '")',
    "é",
    "n\u0303",
    "你好",
    "हिन्दी",
    "🦩",
    "👩‍🚀",
    "\u200b",
    "don't",
    "x\ny",
    "a\tb",
)
# What may stand between a state and a question, and how that may begin.
_GAPS = ("\n\n", "\n\n\n", " \n\n", "\t\n\n", "\r\n\n\n", "\u00a0\n\n", "  \n \n\n")
_WORDS = ("Question: b", "A: b", "Z: 1", "AA: b", "0: b", "9: 1", "yes", "no: b", "b'll", "1")


class Tokenizer:
    """Wraps a `tokenizers.Tokenizer`. Immutable after construction, so any number of threads may share it.

    vocab_size: one more than the highest id. last: the highest id that a caller's text may have. longest: the most
    characters that one id stands for. control: text to id of every added token, special or not, but for added tokens
    that are plain text: white space, and HTML tags that are not special (both in Gemma's vocabulary). spelled: finds
    where a text spells control tokens. swallows: (before, behind) for the control tokens that swallow white space on
    these sides. forbidden: the control ids that a caller's text never has. special: ids without text in a reply.
    spelling: the bytes of each id. bos: the id that a prompt without a template begins with, or None. stop_ids: the ids
    that end a text. specials: the texts that chat templates may name, such as ``{"bos_token": "<s>"}``.

    Three proofs for this vocabulary. splits_before_words: ``encode(a + b) == encode(a + WORD)[:-1] + encode(b)`` where
    `a` ends in a line break and `b` begins with a letter from A to Z or a digit. splits_before_breaks: ``encode(a + b)
    == encode(a) + encode(b)`` where `a` does not end in white space, and `b` begins with white space that has a line
    break, before such a word. splits_between_words: the same where `a` ends in a letter and `b` is a space and a
    letter.
    """

    def __init__(
        self,
        full: tokenizers.Tokenizer,
        *,
        bos: int | None = None,
        stop_ids: Sequence[int] = (),
        specials: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        full.no_truncation()
        full.no_padding()
        tokens = full.get_added_tokens_decoder()
        added = {i: token.content for i, token in tokens.items()}
        vocabulary = full.get_vocab(with_added_tokens=False)
        self._full = full
        self._plain = _without_prefix(full)
        texts = {i: token for i, token in tokens.items() if _is_text(token) and i != bos and i not in stop_ids}
        self._moved = _add_texts(self._plain, texts)
        self.control: Mapping[str, int] = MappingProxyType({t: i for i, t in added.items() if i not in texts})
        self.swallows = {t.content: (t.lstrip, t.rstrip) for t in tokens.values() if t.lstrip or t.rstrip}
        self.special = frozenset(i for i, token in tokens.items() if token.special)
        self.spelling = Spelling(full)
        self.last = max([*vocabulary.values(), *texts], default=-1)
        self.vocab_size = 1 + max([self.last, *added])
        self.longest = max(map(len, (*vocabulary, *added.values())), default=1)
        self.bos = bos
        self.stop_ids = tuple(stop_ids)
        self.specials = MappingProxyType(dict(specials))
        unknown = getattr(full.model, "unk_token", None)  # stands for what the vocabulary lacks, in any text
        self.forbidden = frozenset(i for text, i in self.control.items() if text != unknown)
        self.spelled = Spelled(self.control)
        byte_level = _is_byte_level(full)
        unsplit = full.pre_tokenizer is None and getattr(
            full.model, "ignore_merges", False
        )  # whole texts are looked up
        proofs = (_splits_before_words, _splits_before_breaks, _splits_between_words)
        self.splits_before_words, self.splits_before_breaks, self.splits_between_words = (
            not unsplit and proof(byte_level, vocabulary, self.encode) for proof in proofs
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a caller's text: without control tokens, whatever it spells, BOS, or an added leading space.

        Raises InvalidRequest for text that no ids can stand for: half of a surrogate pair, or a control token's text
        in a vocabulary that cannot spell it in pieces.
        """
        return self.encode_each([text])[0]

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, as `encode` gives them. Uses several cores."""
        return [self._checked(text, ids) for text, ids in zip(texts, self._encode_plain(texts), strict=True)]

    def check_length(self, text: str, most: int, field: str | None = None) -> None:
        """Raise RequestTooLong for a text of more than `most` ids. Encodes the text in pieces, since one of some MB
        takes some GB at once. A text that passes may have a quarter more ids, since cuts between pieces add some."""
        if len(text) > _AT_ONCE * most and self._has_more(text, most + most // 4):
            raise RequestTooLong(f"{len(text)} characters have more than the {most} tokens that fit", field=field)

    def _has_more(self, text: str, most: int) -> bool:
        if len(text) // self.longest > most:
            return True
        counts = (len(_encode(self._plain, [text[at : at + _PIECE]])[0]) for at in range(0, len(text), _PIECE))
        return any(n > most for n in accumulate(counts))

    def _checked(self, text: str, ids: list[int]) -> list[int]:
        """Ids of a text without control tokens."""
        if self.forbidden.isdisjoint(ids):
            return ids
        # The vocabulary merges a control token out of ordinary text: a cut inside each spelling keeps it apart.
        ids = [i for piece in self._encode_plain(self.spelled.broken(text)) for i in piece]
        if not self.forbidden.isdisjoint(ids):
            raise InvalidRequest("the text spells a control token that this vocabulary cannot write in pieces")
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of text that a template wrote: with control tokens for the texts that spell them, and no BOS added."""
        return _encode(self._full, [text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, with control tokens written out, and U+FFFD where bytes make no character."""
        return self._full.decode(list(ids), skip_special_tokens=False)

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        found = _encode(self._plain, texts)
        return [[self._moved.get(i, i) for i in ids] for ids in found] if self._moved else found


class Spelled:
    """Finds the spans where a text holds one of several others: from left to right, and at one place the longest."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts) - {""}
        self._shortest = min(map(len, self._texts), default=0)
        self._sizes: dict[str, list[int]] = {}  # by how a text begins: few share that
        for text in sorted(self._texts, key=len, reverse=True):
            sizes = self._sizes.setdefault(text[: self._shortest], [])
            if len(text) not in sizes[-1:]:
                sizes.append(len(text))
        self._first = re.compile("|".join(map(re.escape, {text[0] for text in self._texts})) or "(?!)")

    def __call__(self, text: str) -> Iterator[tuple[int, int]]:
        at = 0
        while match := self._first.search(text, at):
            start = match.start()
            sizes = self._sizes.get(text[start : start + self._shortest], ())
            pieces = (text[start : start + n] for n in sizes)
            found = next((piece for piece in pieces if piece in self._texts), "")
            at = start + len(found) if found else start + 1
            if found:
                yield start, at

    def broken(self, text: str) -> list[str]:
        """The text in pieces, cut behind the first character of each such span."""
        cuts = [0, *(start + 1 for start, _ in self(text)), len(text)]
        return [text[a:b] for a, b in itertools.pairwise(cuts)]


def _encode(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode all texts in one call, which leaves the interpreter to other threads."""
    try:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    except TypeError:  # what the library raises for text that is no UTF-8
        raise InvalidRequest("the text holds half of a surrogate pair, which is no character") from None


def _without_prefix(full: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same model without added tokens, and without a space added before the text.

    The model is shared, not copied. The space belongs at the start of a whole prompt; a caller's text is mostly in the
    middle of one, so the frame writes the space where it belongs.
    """
    bare = tokenizers.Tokenizer(tokenizers.models.BPE())
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if (value := getattr(full, part)) is not None:
            setattr(bare, part, value)
    state = json.loads(bare.to_str())
    for part in ("normalizer", "pre_tokenizer"):
        state[part] = _drop_prefix(state[part])
    plain = tokenizers.Tokenizer.from_str(json.dumps(state))
    plain.model = full.model
    return plain


def _drop_prefix(part: Any) -> Any:
    if part is None or part["type"] == "Prepend":
        return None
    if part["type"] == "Sequence":
        key = "normalizers" if "normalizers" in part else "pretokenizers"
        kept = [p for p in map(_drop_prefix, part[key]) if p is not None]
        return {**part, key: kept} if kept else None
    changes = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {**part, **{key: value for key, value in changes.items() if key in part}}


def _is_text(token: tokenizers.AddedToken) -> bool:
    """Whether a caller may mean an added token by its spelling."""
    return token.content.replace("▁", " ").isspace() or (not token.special and bool(_TAG.fullmatch(token.content)))


def _add_texts(plain: tokenizers.Tokenizer, texts: Mapping[int, tokenizers.AddedToken]) -> dict[int, int]:
    """Add the tokens that are text. Maps the ids that they got to the right ones, where these differ."""
    plain.add_tokens([texts[i] for i in sorted(texts)])
    return {got: i for i, token in texts.items() if (got := plain.token_to_id(token.content)) not in (None, i)}


def _is_byte_level(full: tokenizers.Tokenizer) -> bool:
    return "ByteLevel" in f"{full.pre_tokenizer!r} {full.decoder!r}"


def _splits_between_words(byte_level: bool, vocabulary: Iterable[str], encode: Callable[[str], list[int]]) -> bool:
    """Whether texts split between words. No entry may hold a letter before a space, so that no merge can cross the cut;
    the probes show that neither the normalizer nor the split into words looks across it."""
    crossing = re.compile("[A-Za-z]Ġ" if byte_level else "[A-Za-z][▁ ]")
    if any(crossing.search(entry) for entry in vocabulary):
        return False
    ends = ("b", "B", "b c", "b1", "b'll", "be\u0301", "b你", "b\n", "b  ", "b.")
    return _are_cuts(encode, ((f"{a}a", f" {b}") for a in ("", *_PROBES) for b in ends))


def _splits_before_words(byte_level: bool, vocabulary: Iterable[str], encode: Callable[[str], list[int]]) -> bool:
    """Whether texts split at a line break before a letter or a digit, proven as in `_splits_between_words`. A
    pre-tokenizer may part the last line break before a word from others, so the first part is encoded with a word."""

    def lead(a: str) -> list[int]:
        return encode(a + WORD)[:-1]

    crossing = re.compile("[Ċč][A-Za-z0-9]" if byte_level else "[\r\n][A-Za-z0-9]")
    if any(crossing.search(entry) for entry in vocabulary) or len(encode(WORD)) != 1:
        return False
    return _are_cuts(encode, ((a + gap, b) for a in ("", *_PROBES) for gap in _GAPS for b in _WORDS), lead)


def _splits_before_breaks(byte_level: bool, vocabulary: Iterable[str], encode: Callable[[str], list[int]]) -> bool:
    """Whether texts split before white space that has a line break, proven in the same way."""
    crossing = re.compile("[^ĠĊčĉ][ĠĊčĉ]" if byte_level else r"[^▁\s][▁\s]")
    if any(crossing.search(entry) for entry in vocabulary):
        return False
    return _are_cuts(encode, ((a, gap + b) for a in _PROBES for gap in _GAPS for b in _WORDS))


def _are_cuts(
    encode: Callable[[str], list[int]],
    pairs: Iterable[tuple[str, str]],
    lead: Callable[[str], list[int]] | None = None,
) -> bool:
    """Whether each text has the ids of its two parts, where `lead` gives those of the first and all can be spelled."""
    lead = lead or encode
    try:
        return all(encode(a + b) == lead(a) + encode(b) for a, b in pairs)
    except InvalidRequest:
        return False

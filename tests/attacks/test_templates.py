"""Chat templates of crafted checkpoints: each ends at a limit, in little memory, and honest ones are transformers'."""

# ruff: noqa: E501 - templates, one a line
from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from attacks.bounded import bounded
from fixtures import tiny, vocabularies
from transformers.utils.chat_template_utils import render_jinja_template

from ramet.errors import CheckpointError, InvalidRequest
from ramet.text.chat import frame
from ramet.text.conversation import Conversation
from ramet.text.limits import LETTERS, STEPS
from ramet.text.sandbox import MAX_SOURCE
from ramet.text.template import ChatTemplate
from ramet.text.tokenizer import Spelled
from ramet.text.tokenizer_json import read_tokenizer
from tests.decide.test_chat import TEMPLATES

HI = [{"role": "user", "content": "hi"}]
LOOPS, ENDS = "{% for a in range(99999) %}{% for b in range(99999) %}", "{% endfor %}{% endfor %}"
LONG = "{% set x = 'a' * 3000000 %}"


def again(first: str, then: str, last: str = "", n: int = 99999) -> str:
    """A template that makes x anew, again and again, of itself."""
    return f"{{% set ns = namespace(x={first}) %}}{{% for i in range({n}) %}}{then}{{% endfor %}}{last}"


def doubled(first: str, then: str, last: str = "") -> str:
    return again(first, f"{{% set ns.x = {then} %}}", last, 60)


LETTER_BOMBS = {
    "joined": doubled("'ab'", "ns.x ~ ns.x"),
    "added": doubled("'ab'", "ns.x + ns.x"),
    "lists added": doubled("[1]", "ns.x + ns.x"),
    "captured": again("'ab'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}", n=60),
    "filtered": again("'ab'", "{% set y %}{% filter upper %}{{ ns.x ~ ns.x }}{% endfilter %}{% endset %}"
                              "{% set ns.x = y %}", n=60),
    "times": "{{ 'a' * 10**10 }}", "times unwritten": "{% set x = 'a' * 10**10 %}", "list times": "{% set x = [0] * 10**10 %}",
    "percent": "{{ '%1000000000d' % 1 }}", "percent's filter": "{{ '%1000000000d' | format(1) }}",
    "percent's star": "{{ '%*d' % (10**9, 1) }}", "percent's key": "{{ '%(a(b))1000000000d' % {'a(b)': 1} }}",
    "percent's many": LONG + "{% set y = ('%(a)s' * 1000) % {'a': x} %}",
    "format": "{{ '{:>1000000000}'.format(1) }}", "format_map": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "format by filter": "{{ ('{:>1000000000}' | attr('format'))(1) }}", "format's many": LONG + "{{ ('{0}' * 999).format(x) }}",
    "ljust": "{{ 'a'.ljust(10**10) }}", "rjust": "{{ 'a'.rjust(10**10) }}", "center": "{{ 'a'.center(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}", "expandtabs": "{{ '\t'.expandtabs(10**10) }}",
    "center's filter": "{{ 'a' | center(10**10) }}", "unwritten": "{% if 'a' | center(10**9) | length %}x{% endif %}",
    "mapped": "{{ range(99999) | map('center', 99999) | list }}",
    "indent": "{{ ('a\n' * 99999) | indent(99999) }}", "indent's text": "{{ ('a\n' * 99999) | indent('x' * 99999) }}",
    "replace": LONG + "{{ x.replace('a', x) }}", "replace's filter": LONG + "{{ x | replace('a', x) }}",
    "replace nothing": LONG + "{{ x.replace('', x) }}", "translate": LONG + "{{ x.translate({97: x}) }}",
    "join": LONG + "{{ x.join(x) }}", "join's filter": "{{ range(99999) | join('x' * 99999) }}",
    "json": "{{ ([1] * 99999) | tojson(indent=99999) }}",
    "json's marks": "{{ ([1] * 99999) | tojson(separators=['x' * 99999, 'y']) }}",
    "batch": "{{ [1] | batch(10**9, 1) | list }}", "slice": "{{ [1] | slice(10**9, 1) | list }}",
    "sum": "{{ ([[0] * 999] * 999) | sum(start=[]) }}", "sums": doubled("[1]", "[ns.x, ns.x] | sum(start=[])"),
    "wordwrap": LONG + "{{ x | wordwrap(1) }}", "urlize": "{{ (')' * 3000000 ~ 'x') | urlize }}",
    "striptags": "{{ ('<!---->' * 999999) | striptags }}", "pprint": "{{ ([[1] * 100] * 99999) | pprint }}",
    "lipsum": "{{ lipsum(10**9) }}", "lipsum's words": "{{ lipsum(1, min=10**9, max=10**10) }}",
    "strftime": "{{ strftime_now('%1000000d' * 1000000) }}",
    "split": "{{ ('a ' * 9999999).split() }}", "lines": "{{ ('\n' * 19999999).splitlines() }}",
    "letters": "{{ ('é' * 9999999) | list }}", "title": "{{ ('a-' * 9999999) | title }}",
    "slices": LONG + "{% set y = [" + "x[1:]," * 9999 + "] %}",
    "lists": again("[]", "{% set ns.x = ns.x + [range(99999) | list] %}"),
    "empty lists": again("[]", "{% set ns.x = ns.x + [[" + "[]," * 999 + "]] %}"),
    "plain text": "{% macro f() %}{% for a in range(99999) %}" + "x" * 99999 + "{% endfor %}{% endmacro %}{{ f() }}",
    "shared, as text": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
    "shared, as json": doubled("[1]", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
    "shared, hashed": doubled("(1,)", "(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
    "shared views": doubled("{}.items()", "{'a': ns.x, 'b': ns.x}.items()", "{{ ns.x }}"),
    "shared values": doubled("{}.values()", "{'a': ns.x, 'b': ns.x}.values()", "{{ ns.x }}"),
    "shared items": doubled("cycler(1)", "cycler(ns.x.items, ns.x.items)", "{{ ns.x.items }}"),
    "shared arguments": "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}"
                        "{% endmacro %}{{ f(60, 1) }}",
    "shared, compared": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
                        "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "shared, walked": doubled("[]", "[ns.x, ns.x]", "{% for x in ns.x recursive %}{{ loop(x) }}{% endfor %}"),
    "said": LONG + "{{ raise_exception(x * 99) }}",
}  # fmt: skip
STEP_BOMBS = {
    "loops": LOOPS + ENDS,
    "loops over nothing": "{% for a in range(99999) %}{% for b in range(99999) if false %}" + ENDS,
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "callers": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 40 + "{% endcall %}" * 40,
    "blocks": "{% block a %}{% if n is not defined or n < 60 %}{% for i in range(99999) %}{{ self.b() }}{% endfor %}"
              "{% endif %}{% endblock %}{% block b %}{% for i in range(9999) %}{% endfor %}{% endblock %}",
    "filters": "{% for a in range(99999) %}{{ range(99999) | map('int') | sum }}{% endfor %}",
}  # fmt: skip
OTHER_BOMBS = {
    "the source": ("x" * (MAX_SOURCE + 1), f"{MAX_SOURCE}, the limit"),
    "powers": ("{{ 2 ** (2**40) }}", "bits, the limit"),
    "products": (doubled("3", "ns.x * ns.x"), "bits, the limit"),
    "hexadecimal": ("{{ ('f' * 999999) | int(base=16) }}", "bits, the limit"),
    "places": ("{{ 5 | round(-10**9) }}", "the limit"),
    "bytes": ("{{ (1).to_bytes(10**10, 'big') }}", "no limits"),
    "width of a width": ("{{ '{:>{}}'.format(1, 10**10) }}", "no limit"),
    "calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply"),
    "loops into itself": ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "too deeply"),
    "a block in itself": ("{% block a %}{{ self.a() }}{% endblock %}", "too deeply"),
    "brackets": ("{{ " + "[" * 9999 + "]" * 9999 + " }}", "too deeply"),
    "ifs": ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, "too deeply"),
    "a long sum": ("{{ 1" + "+1" * 50000 + " }}", "too deeply"),
    "many filters": ("{{ 1" + "|int" * 20000 + " }}", "too deeply"),
    "loops in loops": ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "refuses"),
    "deep tuples, hashed": (again("(1,)", "{% set ns.x = (ns.x,) %}", "{{ {ns.x: 1} }}"), "200 deep, the limit"),
    "deep generators": (again("[1]", "{% set ns.x = ns.x | map('upper') %}", "{{ ns.x | list }}"), "200 deep, the limit"),
}  # fmt: skip


def refusal(source: str) -> str:
    with bounded(400), pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render(HI)
    assert caught.value.field == "messages"
    assert len(caught.value.message) < 300
    return caught.value.message


@pytest.mark.parametrize("name", LETTER_BOMBS)
def test_letters_end(name: str) -> None:
    assert f"writes more than {LETTERS}"[:20] in refusal(LETTER_BOMBS[name])


@pytest.mark.parametrize("name", STEP_BOMBS)
def test_steps_end(name: str) -> None:
    assert f"takes more than {STEPS}"[:18] in refusal(STEP_BOMBS[name])


@pytest.mark.parametrize("name", OTHER_BOMBS)
def test_depths_and_numbers_end(name: str) -> None:
    source, said = OTHER_BOMBS[name]
    assert said in refusal(source)


@pytest.mark.parametrize("source", [
    LONG + "{% set y = x[1:] %}" + LOOPS + "{{ y in x }}" * 9 + ENDS,  # each reads 3 MB, and writes next to nothing
    LOOPS + "{% if a == b %}x{% endif %}" * 4000 + ENDS,
])  # fmt: skip
def test_seconds_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.text.limits.SECONDS", 0.2)
    assert "seconds, the limit" in refusal(source)


def test_a_checkpoint_is_refused_with_the_limit_of_its_template() -> None:
    tokenizer = read_tokenizer(tiny.llama())
    for source, said in ((LOOPS + ENDS, "steps, the limit"), (LETTER_BOMBS["added"], "letters, the limit")):
        with bounded(400), pytest.raises(CheckpointError, match=f"^chat template: .*{said}"):
            frame(tokenizer, source)


def test_options_of_a_bomb_are_found_without_running_it() -> None:
    """Jinja works constants out where it can, also where a template is only looked at."""
    with bounded(200):
        assert ChatTemplate("{{ 'a' * 10**10 }}{{ 'a' | center(10**10) }}{{ pace }}", {}).options == {"pace"}
        assert ChatTemplate("{{ " + "(" * 9999 + "pace" + ")" * 9999 + " }}", {}).options is None


def test_each_thread_has_limits_of_its_own() -> None:
    shared = ChatTemplate("{% for a in range(messages[0].n) %}{% for b in range(1000) %}{% endfor %}{% endfor %}x", {})

    def rendered(n: int) -> str:
        try:
            return shared.render([{"role": "user", "n": n}])
        except InvalidRequest as error:
            return "limit" if "steps, the limit" in error.message else error.message

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(rendered, [300, 9999] * 8)) == ["x", "limit"] * 8


HONEST = {
    **TEMPLATES,
    "operators": "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}{{ 3 * 'ab' }}{{ [1] * 2 + [3] }}{{ '%05.1f|%s' % (2.5, 'x') }}"
                 "{{ 1 ~ 'a' ~ none ~ [1, 'b'] ~ {'c': 2.5} }}{{ (1, 2) + (3,) }}{{ -3 + 1.5 }}",
    "texts": "{% set t = messages[0].content %}{{ t.ljust(30) }}|{{ t.rjust(30) }}|{{ t.center(30) }}|{{ '7'.zfill(4) }}"
             "{{ t.replace('i', 'eye') }}{{ t.split(' ') }}{{ t.split() }}{{ t.rsplit('a', 1) }}{{ t.splitlines() }}"
             "{{ t.partition('i') }}{{ '-'.join(t) }}{{ '-'.join(['a', 'b']) }}{{ 'a\tb'.expandtabs(4) }}"
             "{{ t.translate({97: 'b', 98: none}) }}{{ '{0:>8}|{0!r}|{a}'.format(t, a=1) }}{{ '{x[0]}'.format(x=[5]) }}"
             "{{ '{a}'.format_map({'a': 3}) }}{{ t.startswith(('h', 'x')) }}{{ t[::-1] }}{{ t[1:] }}{{ t.title() }}",
    "filters": "{% set t = messages[0].content %}{{ t | center(30) }}{{ t | indent(3, true) }}{{ t | indent('> ') }}"
               "{{ t | replace('i', 'eye') }}{{ messages | map(attribute='role') | join(', ') }}{{ t | list }}"
               "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ [3, 1, 2] | sort }}{{ t | title }}"
               "{{ [[1], [2]] | sum(start=[]) }}{{ [1, 2] | sum }}{{ 2.567 | round(2) }}{{ t | wordcount }}"
               "{{ messages | groupby('role') | length }}{{ {'b': 1, 'a': 2} | dictsort }}{{ t | truncate(9) }}"
               "{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}{{ t | wordwrap(5) }}{{ t | urlize }}"
               "{{ t | e }}{{ '<b>x</b>' | striptags }}{{ [1] | pprint }}{{ messages | tojson(indent=2) }}{{ t | urlencode }}"
               "{{ messages | tojson }}{{ {'a': 1} | items | list }}{{ '%s-%s' | format(1, t) }}{{ nothing | default('d') }}"
               "{{ [1, 1, 2] | unique | list }}{{ [1, 2] | first }}{{ [1, 2] | reverse | list }}{{ '12' | int + 1 }}",
    "statements": "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, c=4) }}"
                  "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}"
                  "{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ x }}{% else %}none{% endfor %}"
                  "{% for x in [] %}{% else %}none{% endfor %}{% for x in [[1], [2]] recursive %}"
                  "{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}"
                  "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner(';') %}{{ j() }}{{ j() }}"
                  "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ dict(a=1) }}{{ strftime_now('%%') }}"
                  "{% call m(5) %}x{% endcall %}{% filter upper %}a{{ 'b' }}{% endfilter %}{% set s %}q{{ 1 }}{% endset %}"
                  "{{ s }}{% with z = 3 %}{{ z }}{% endwith %}{% generation %}g{% endgeneration %}"
                  "{% block a %}B{% endblock %}{{ self.a() }}{{ 'a' if 1 < 2 <= 2 else 'b' }}{{ 'h' in messages[0].content }}"
                  "{{ messages[0].role in ['user', 'x'] }}{{ [1, [2]] == [1, [2]] }}{{ nothing }}{{ nothing is defined }}"
                  "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% elif x > 4 %}{% break %}{% endif %}{{ x }}"
                  "{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_templates_are_those_of_transformers(name: str) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi <a> & b,\nit is  5\tat 7\u2028end"},
        {"role": "assistant", "content": "é 🦩", "calls": [{"a": (1, 2.5, None, True)}]},
        {"role": "user", "content": ""},
    ]
    theirs, _ = render_jinja_template(
        conversations=[messages],
        chat_template=HONEST[name],
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert ChatTemplate(HONEST[name], {"bos_token": "<s>", "eos_token": "</s>"}).render(messages) == theirs[0]


def test_reasoning_has_each_of_its_names() -> None:
    """As in the newest transformers; older ones leave it at the name that a message has."""
    each = "{% for m in messages %}{{ m.reasoning_content }}{{ m.thinking }}{% endfor %}"
    said = [{"role": "user", "content": "a", name: name} for name in ("reasoning", "reasoning_content")]
    assert ChatTemplate(each, {}).render(said) == "".join(name * 2 for name in ("reasoning", "reasoning_content"))


def test_long_honest_messages_are_within_the_limits() -> None:
    with bounded(1500):
        for messages in (
            [{"role": "user", "content": "x"}] * 100_000,
            [{"role": "user", "content": "word " * 3_000_000}],
        ):
            for source in (TEMPLATES["llama3"], TEMPLATES["gemma4"]):
                written = ChatTemplate(source, {"bos_token": "<s>"}).render(messages)
                assert len(written) > sum(len(m["content"]) for m in messages)


@pytest.mark.parametrize("text", ["<", "<|", "<|im_", "<|im_end|>", "<|im_end|><"])
def test_texts_made_of_control_tokens_are_read_a_letter_at_a_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of Python's interpreter for a text of twice the length are twice as many."""
    ours = Conversation(vocabularies.qwen()[0], tiny.CHATML)

    def calls(n: int) -> int:
        counted = 0

        def count(*_: Any) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            ours.chat([{"role": "user", "content": text * n}])
        finally:
            sys.setprofile(None)
        return counted

    few, many = calls(300), calls(3000)
    assert many < 11 * few
    assert ours.chat([{"role": "user", "content": text * 5}]).count(ours.tokenizer.control["<|im_end|>"]) == 1


def test_the_longest_of_several_texts_is_found() -> None:
    spelled = Spelled(["<a", "<a>", "<ab", "b", "<abc>"])
    for text, spans in (
        ("<abc>", [(0, 5)]),
        ("<abx", [(0, 3)]),
        ("<<a>b", [(1, 4), (4, 5)]),
        ("<", []),
        ("<x<a", [(2, 4)]),
    ):
        assert list(spelled(text)) == spans

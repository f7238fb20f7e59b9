"""The page of the Python interface, from the names that `ramet` exports, their signatures and their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

import ramet
from ramet import errors, generation, request
from ramet.denoise import running, unmask_policy

# Title, what stands below it, and the names, in the order of the page.
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("The engine", "", ("Engine", "EngineSettings")),
    (
        "Questions",
        "Objects of these classes, or dicts with the same fields, are what `Engine.decide` takes. Dicts and lists are "
        "allowed wherever text is, and shown to the model as JSON. [HTTP](http-api.md#fields) says more of each field.",
        ("DecisionRequest", "Noul", "Outcomes", "Choice", "Score"),
    ),
    (
        "Answers",
        "All are pydantic models: `model_dump()` gives dicts, `model_dump_json()` the JSON that the server sends.",
        (
            "Decision", "NoulAnswer", "ChoiceAnswer", "ScoreAnswer", "Scaled", "ReachedThreshold", "Debiased",
            "Usage", "Timing",
            "Joint", "JointCanvas",
        ),
    ),
    (
        "Text",
        "`engine.writer` writes, in token ids; its `conversation` makes prompts of texts and messages, and has the "
        "`tokenizer` that decodes what was written.",
        ("Writer", "Conversation", "GenerationRequest", "Generation", "Piece", "Position"),
    ),
    (
        "Trees of tokens",
        "What lies below questions and text. Shapes: `T` tokens, `S` segments, `R` reads, `C` columns of all reads, "
        "`N` rows of a step.",
        ("Tree", "Segment", "Read", "Reads", "WHOLE", "Step", "Stepped", "MultiStepRead", "Limits"),
    ),
    (
        "Errors",
        "Whatever Ramet raises on purpose is a `RametError`. The server answers with the status beside it.",
        (
            "RametError", "RequestError", "InvalidRequest", "Problem", "UnknownModel", "RequestTooLong",
            "NotSupported", "Overloaded", "Cancelled", "CheckpointError", "EngineFault",
        ),
    ),
)  # fmt: skip
_INSIDE = {
    "DecisionRequest.ignored",
    "DecisionRequest.refused",
    "Engine.calibration",
    "Engine.model",
    "Generation.of",
    "Reads.part",
}  # for Ramet's own use
_ALIASES = {  # what annotations call by a name; None: a choice of words, which is shown
    "Text": "`str`, or a `dict` or `list` of JSON values",
    "Name": "`str` of 1 to 1024 characters",
    "Question": "`Noul`, `Choice` or `Score`",
    "Answer": "`NoulAnswer`, `ChoiceAnswer` or `ScoreAnswer`",
    "Questions": "`dict` of questions by their names, from 1 to 65,536: `Noul`, `Choice`, `Score`",
    "Options": "`dict` of descriptions by options' names, from 1 to 255: `Text`, or `None`",
    "Seed": "`int` of 64 bits, signed",
    "Temperature": "`float` from 0.01 to 100, or a `dict` of such by `noul`, `choice`, `score`",
    "Message": "`Mapping` with `role` and `content`, and what else the model's template reads",
    "IntArray, FloatArray, BoolArray": "NumPy arrays of int32, float32 and bool",
    "Method": request.Method,
    "Confidence": request.Confidence,
    "OnPiece": "a function of a `Piece` that returns nothing",
    "Mode": running.Mode,
    "Strategy": unmask_policy.Strategy,
    "Kind": generation.Kind,
    "Finish": generation.Finish,
}
_HEAD = """# Python

Every name below is imported from `ramet`, and the page is made of their docstrings. [The quickstart](quickstart.md) has
examples, [settings](settings.md) every setting and its option, [the architecture](architecture.md) what happens inside.

```python
from ramet import Engine, GenerationRequest

with Engine.load("smollm2", dtype="float32") as engine:
    decision = engine.decide(
        state="My order arrived with a cracked screen. I want my money back.",
        questions={"wanted": {"type": "choice", "criteria": {"a refund": None, "technical help": None}}},
    )
    print(decision["wanted"].choice, decision.usage.output_tokens)
    conversation = engine.writer.conversation
    prompt = conversation.chat([{"role": "user", "content": "What is the capital of France?"}])
    reply = engine.writer.generate(GenerationRequest(tuple(prompt), max_tokens=24, temperature=0.0))
    print(conversation.tokenizer.decode(reply.tokens[:-1]), reply.finish)
```

```text
a refund 1
The capital of France is Paris. stop
```"""


def python_page(generated: str, helps: Mapping[str, str]) -> str:
    """Every name of the interface, in the order of SECTIONS. helps: what settings mean, by name."""
    parts = [generated, _HEAD]
    for title, words, names in SECTIONS:
        parts += [f"## {title}", *([words] if words else []), *([_tree()] if title == "Errors" else [])]
        for name in names:
            parts += _entry(name, getattr(ramet, name), helps if name == "EngineSettings" else None)
    parts += ["## Types by name", _table(("name", "is"), _alias_rows())]
    return "\n\n".join(parts) + "\n"


def _alias_rows() -> Iterator[tuple[str, ...]]:
    for name, what in _ALIASES.items():
        words = what if isinstance(what, str) else ", ".join(f'`"{each}"`' for each in get_args(what))
        yield ", ".join(f"`{each}`" for each in name.split(", ")), words


def _entry(name: str, value: Any, helps: Mapping[str, str] | None) -> Iterator[str]:
    yield f"### `{name}`"
    if not inspect.isclass(value):
        yield f"`{value!r}`: {_comment(name)}"
        return
    if made := _made_by(value):
        yield f"```text\n{_signature(name, made)}\n```"
    if words := _doc(value):
        yield words if helps is None else words.partition("\n\n")[0]  # the rest is in the table
    if rows := _fields(value, helps or {}):
        heads = ("field", "type", "default", "meaning")[: 4 if any(row[3] for row in rows) else 3]
        yield _table(heads, [row[: len(heads)] for row in rows])
    for member, what in _members(value):
        yield from _member(f"{name}.{member}", what)


def _member(name: str, what: Any) -> Iterator[str]:
    """A method with its signature, or a property."""
    if isinstance(what, property):
        assert what.fget
        yield f"#### `{name}`: `{inspect.signature(what.fget).return_annotation}`"
        what = what.fget
    else:
        yield f"#### `{name}`"
        is_task = inspect.iscoroutinefunction(what)
        yield f"```text\n{'await ' * is_task}{_signature(name, what)}\n```"
    words = _doc(what)
    assert words, f"{name} has no docstring"
    yield words


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, its own and those inherited from ours, as they stand in the source."""
    seen: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("ramet"):
            seen |= {name: value for name, value in vars(base).items() if name not in seen}
    for name, value in seen.items():
        value = value.__func__ if isinstance(value, classmethod) else value
        public = (not name.startswith("_") or name == "__getitem__") and f"{cls.__name__}.{name}" not in _INSIDE
        ours = isinstance(value, property) or (inspect.isfunction(value) and value.__doc__)
        if public and ours:
            yield name, value


def _made_by(cls: type) -> Callable[..., Any] | None:
    """What a call of the class takes, where that is how it is made: not of what an engine makes, nor of fields."""
    documented = dataclasses.is_dataclass(cls) or issubclass(cls, BaseModel)
    if documented or cls.__name__ in ("Engine", "Writer", "Conversation", "MultiStepRead"):
        return None
    return cls.__init__ if "__init__" in vars(cls) else None


def _signature(name: str, what: Callable[..., Any]) -> str:
    """As it stands in the source, a parameter a line where it is long."""
    own = inspect.signature(what)
    told = [each for each in own.parameters.values() if each.name not in ("self", "cls")]
    texts = [str(each.replace(annotation=inspect.Parameter.empty)) for each in told]
    shown = []
    for each, text in zip(told, texts, strict=True):
        bare, _, default = text.partition("=")
        annotation = f": {each.annotation}" if each.annotation is not inspect.Parameter.empty else ""
        shown.append(f"{bare}{annotation} = {default}" if default else f"{bare}{annotation}")
    keyword = next((i for i, each in enumerate(told) if each.kind is each.KEYWORD_ONLY), None)
    if keyword is not None:
        shown.insert(keyword, "*")
    back = "" if own.return_annotation in (own.empty, "None", None) else f" -> {own.return_annotation}"
    line = f"{name}({', '.join(shown)}){back}"
    return line if len(line) <= 110 else f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){back}"


def _fields(cls: type, helps: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Of a dataclass or a pydantic model: name, type, default, and what is known of the meaning."""
    if issubclass(cls, BaseModel):
        told = [(n, f.is_required(), f.get_default(call_default_factory=True), f.description)
                for n, f in cls.model_fields.items()]  # fmt: skip
    elif dataclasses.is_dataclass(cls):
        told = [(f.name, *_dataclass_default(f), helps.get(f.name)) for f in dataclasses.fields(cls) if f.init]
    else:
        return []
    annotations = {name: re.sub(r"Annotated\[(\w+), .*\]", r"\1", told) for name, told in _annotations(cls).items()}
    return [
        (f"`{name}`", f"`{annotations[name]}`", "required" if required else f"`{value!r}`",
         meaning or _comment(name, cls))
        for name, required, value, meaning in told
    ]  # fmt: skip


def _annotations(cls: type) -> dict[str, str]:
    return {name: str(told) for name, told in inspect.get_annotations(cls).items()}


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _dataclass_default(field: dataclasses.Field[Any]) -> tuple[bool, Any]:
    if field.default_factory is not dataclasses.MISSING:
        return False, field.default_factory()
    return field.default is dataclasses.MISSING, field.default


def _doc(what: Any) -> str:
    """A docstring as Markdown: indented parts stay as they are, double backquotes become single ones."""
    own = what.__doc__ if not inspect.isclass(what) else vars(what).get("__doc__")
    if not own or (inspect.isclass(what) and dataclasses.is_dataclass(what) and own.startswith(f"{what.__name__}(")):
        return ""
    return inspect.cleandoc(own).replace("``", "`")


def _comment(name: str, cls: type | None = None) -> str:
    """The comment behind a field's line, or a constant's, in the source."""
    module = inspect.getmodule(cls) if cls else inspect.getmodule(ramet.Tree)
    assert module
    lines = inspect.getsource(cls or module).splitlines()
    found = next((line for line in lines if re.match(rf"\s*{name}\b\s*[:=]", line)), "")
    return found.partition("  # ")[2]


def _tree() -> str:
    """The errors as their module draws them."""
    drawn = [line for line in (errors.__doc__ or "").splitlines() if re.match("RametError|[├│└]", line)]
    return "```text\n" + "\n".join(drawn) + "\n```"

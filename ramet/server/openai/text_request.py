"""TextRequest: what requests for chat and for completions have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from ramet import media
from ramet.denoise.draws import MAX_TOP_K
from ramet.denoise.unmask_policy import Strategy
from ramet.errors import InvalidRequest, Problem
from ramet.generation import GenerationRequest, Kind
from ramet.names import is_media, nearest
from ramet.problems import FewFields, invalid, located
from ramet.server.openai.fields import ChunkSize, Count, Flag, Ids, Stops
from ramet.server.openai.parameters import NOT_TAKEN, REFUSED, WITHOUT_EFFECT
from ramet.server.openai.schema import describe_what_passes
from ramet.text.conversation import Conversation
from ramet.values import WHOLE_NUMBER, Seed, check_value

MAX_LABELS = 128  # ids in logprob_token_ids
MAX_TEMPERATURE = 2.0  # as with OpenAI

_STRICT = ConfigDict(extra="forbid", strict=True)


class StreamOptions(FewFields):
    """What a stream reports beside the text."""

    model_config = _STRICT

    include_usage: bool = Field(default=False, description="One more event, without choices, reports the usage.")
    continuous_usage_stats: bool = Field(default=False, description="Every event reports the usage up to it.")


class DiffusionArguments(FewFields):
    """vLLM's arguments of a structured read, in `vllm_xargs`. Flags may be 0 and 1."""

    model_config = _STRICT

    diffusion_canvas_length: Count | None = Field(
        default=None, description="Rows of a canvas, at most those that are served."
    )
    diffusion_seed_canvas: Ids | None = Field(
        default=None, description="Ids that the canvas begins from instead of noise, as many as it has rows."
    )
    diffusion_pinned: Ids = Field(
        default=[], description="Places of the seed canvas that stay as they are, step after step."
    )
    diffusion_max_steps: Count | None = Field(default=None, description="Steps of a canvas, at most the model's.")
    diffusion_read_only: Flag = Field(
        default=False, description="The reply is one canvas, its likeliest ids, whatever ends a reply among them."
    )
    diffusion_constrained: Flag = Field(
        default=False, description="`logprob_token_ids` are all that may be drawn; log-probabilities are over them."
    )


class TextRequest(FewFields):
    """The fields that both routes have. null is as good as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=describe_what_passes)

    model: str | None = Field(default=None, description="A name that GET /v1/models lists; the served model if absent.")
    max_tokens: Count | None = Field(default=None, description="Most tokens of the reply.")
    stop: Stops = Field(default=[], description="Up to four texts; the reply ends before the first of them.")
    stop_token_ids: Ids = Field(default=[], description="Ids that end the reply.")
    stream: bool = Field(default=False, description="Send events, whenever more of the text is certain.")
    stream_options: StreamOptions | None = None
    seed: Seed | None = Field(
        default=None,
        description="Of what is drawn; taken from the prompt if absent. A request with one repeats at any load.",
    )
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = Field(
        default=None, description="At which ids are drawn; 0 takes the likeliest. The model's own if absent."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="Draw from the likeliest ids whose probabilities make up this much."
    )
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOP_K), WHOLE_NUMBER] = Field(
        default=0, description="Draw from so many of the likeliest ids; 0 and -1: from all."
    )
    confidence_threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Above which a masked row keeps what was drawn for it; the server's if absent."
    )
    unmasking_strategy: Strategy | None = Field(
        default=None, description="By which masked rows keep what was drawn; the server's if absent."
    )
    denoising_steps: Count | None = Field(
        default=None, description="Steps that a block is to take, at most its rows; the server's if absent."
    )
    entropy_bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Nats that a step of the strategy entropy_bounded accepts."
    )
    chunk_size: ChunkSize = Field(
        default="auto", description="Rows of the reply's chunks at most, up to the block; auto: as the server has it."
    )
    ignore_eos: bool = Field(default=False, description="Go on to max_tokens, whatever ends a reply.")
    skip_special_tokens: bool = Field(default=True, description="Leave control tokens out of the text.")
    logprob_token_ids: Annotated[Ids, Field(min_length=1, max_length=MAX_LABELS)] | None = Field(
        default=None, description="Report the log-probabilities of these ids, beside the likeliest one."
    )
    return_tokens_as_token_ids: bool = Field(default=False, description="Spell tokens as `token_id:N` in logprobs.")
    cache_salt: str = Field(default="", description="Kept prompts are shared only among requests with the same salt.")
    vllm_xargs: DiffusionArguments = DiffusionArguments()

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Check JSON values. Raises InvalidRequest that lists every problem."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise invalid(error) from error

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        """Leave out fields without effect. Refuse unknown names, and fields whose effect this server does not have."""
        if not isinstance(data, dict):
            return data
        kept: dict[str, Any] = {}
        for name, value in data.items():
            if value is None or name in WITHOUT_EFFECT:
                continue
            if name in cls.model_fields:
                kept[name] = value
            elif (fault := _fault(name, value, cls.model_fields)) is not None:
                raise located((name,), *fault)
        check_value(data)
        return kept

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise located(("stream_options",), "stream_options", "is only allowed with stream")
        if self.logprob_token_ids is not None and self.n_best is None:
            raise located(("logprob_token_ids",), "logprobs", "needs logprobs, which report them")
        if self.return_tokens_as_token_ids and self.n_best is None:
            raise located(
                ("return_tokens_as_token_ids",), "logprobs", "has no effect without logprobs, whose tokens it spells"
            )
        if self.vllm_xargs.diffusion_constrained and self.logprob_token_ids is None:
            raise located(
                ("vllm_xargs", "diffusion_constrained"),
                "constrained",
                "needs logprob_token_ids, the ids to choose from",
            )
        return self

    @property
    def n_best(self) -> int | None:
        """How many of the likeliest ids each position reports; None where the request wants no log-probabilities."""
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """Most tokens of a reply; None for as many as the model writes."""
        return self.max_tokens

    def prompts(self, conversation: Conversation) -> list[list[int]]:
        """Ids of each prompt. Raises InvalidRequest."""
        raise NotImplementedError

    def check_logprobs(self, most: int) -> None:
        """Raise InvalidRequest for a request of more log-probabilities than the server returns; -1: any number."""
        named = self.logprob_token_ids
        n, field = (self.n_best or 0, self.places["n_best"]) if named is None else (len(named), "logprob_token_ids")
        if 0 <= most < n:
            raise InvalidRequest(f"this server returns {most} at most (--max-logprobs), not {n}", field=field)

    def check_kind(self, kind: Kind) -> None:
        """Raise InvalidRequest that lists the fields which a model of this kind does not take."""
        refused = NOT_TAKEN[kind]
        problems = [
            Problem((name,), refused[name].why, "unsupported_parameter")
            for name, field in type(self).model_fields.items()
            if name in refused and (value := getattr(self, name)) != field.default and not refused[name].allows(value)
        ]
        if problems:
            raise InvalidRequest(problems[0].message, field=str(problems[0].loc[0]), problems=problems)

    def generations(self, conversation: Conversation) -> list[GenerationRequest]:
        """The engine's requests, one for each prompt. Raises InvalidRequest."""
        return [self._generation(prompt) for prompt in self.prompts(conversation)]

    def _generation(self, prompt: Sequence[int]) -> GenerationRequest:
        named, read = self.logprob_token_ids, self.vllm_xargs
        n_best = 0 if self.n_best is None else max(1, self.n_best if named is None else 1)
        return GenerationRequest(
            tuple(prompt),
            max_tokens=self.limit,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            canvas_length=read.diffusion_canvas_length,
            seed_canvas=None if read.diffusion_seed_canvas is None else tuple(read.diffusion_seed_canvas),
            pinned=tuple(read.diffusion_pinned),
            max_steps=read.diffusion_max_steps,
            read_only=read.diffusion_read_only,
            constrained=read.diffusion_constrained,
            logprob_ids=tuple(dict.fromkeys(named or ())),
            n_best=n_best,
            cache_salt=self.cache_salt,
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            confidence_threshold=self.confidence_threshold,
            unmasking_strategy=self.unmasking_strategy,
            denoising_steps=self.denoising_steps,
            entropy_bound=self.entropy_bound,
            chunk_size=None if self.chunk_size == "auto" else self.chunk_size,
        )

    @property
    def places(self) -> Mapping[str, str]:
        """By the engine's names of fields, those of the request."""
        arguments = ("canvas_length", "seed_canvas", "pinned", "max_steps", "read_only", "constrained")
        return {"logprob_ids": "logprob_token_ids"} | {name: f"vllm_xargs.diffusion_{name}" for name in arguments}


def _fault(name: str, value: Any, fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """The code and the message for a parameter that the route does not have; None where its value asks for nothing."""
    if is_media(name):
        return None if media.is_empty(value) else ("unsupported_parameter", f"holds media: {media.WHY}; leave it away")
    if name in REFUSED:
        return None if REFUSED[name].allows(value) else ("unsupported_parameter", REFUSED[name].why)
    near = nearest(name, (*fields, *REFUSED))
    return "unknown_parameter", "unknown parameter" + (f"; did you mean {near}?" if near else "")

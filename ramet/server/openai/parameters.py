"""Parameters of OpenAI's and vLLM's clients: those without effect, and those that are refused, be it by some models."""

from __future__ import annotations

from collections.abc import Mapping

from ramet.generation import OF_MASKS, Kind
from ramet.names import Refused

# What a client may send and no answer depends on: accounts, tracing, hints of how a request will be repeated.
WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "parallel_tool_calls", "request_id", "session_id", "include_reasoning",
    "spaces_between_special_tokens",
})  # fmt: skip


_UNCONSTRAINED = "replies are not constrained; for one of several labels ask /v1/systemone"
_NO_TOOLS = "tools are not supported: leave it away, or describe what you want in a message"
_CUTS = "draws are cut by top_k and top_p, of the models that take them"
_REPEATS = "ids are not weighted by what is there already"
_WORDS = "ids are not weighted one by one"
_TEMPLATE = (
    "the prompt is what the model's own template makes of the messages; /v1/completions takes one of yours, in ids"
)

# Parameters that would change an answer in a way that there is not. Media are in ramet/media.py.
REFUSED: Mapping[str, Refused] = {
    "min_p": Refused(f"{_CUTS}: leave it at 0", (0,)),
    "typical_p": Refused(f"{_CUTS}: leave it at 1", (1,)),
    "frequency_penalty": Refused(f"{_REPEATS}: leave it at 0", (0,)),
    "presence_penalty": Refused(f"{_REPEATS}: leave it at 0", (0,)),
    "repetition_penalty": Refused(f"{_REPEATS}: leave it at 1", (1,)),
    "length_penalty": Refused("there are no beams: leave it at 1", (1,)),
    "use_beam_search": Refused("there are no beams: leave it false", (False,)),
    "repetition_detection": Refused(f"{_REPEATS}: leave it away"),
    "logit_bias": Refused(f"{_WORDS}; reads take logprob_token_ids with vllm_xargs.diffusion_constrained", ({},)),
    "allowed_token_ids": Refused(
        f"{_WORDS}; reads take logprob_token_ids with vllm_xargs.diffusion_constrained", ([],)
    ),
    "bad_words": Refused(f"{_WORDS}: leave it away", ([],)),
    "min_tokens": Refused("a reply ends where the model ends it; ignore_eos goes on to max_tokens", (0,)),
    "n": Refused("one reply a request: send several with other seeds", (1,)),
    "best_of": Refused("one reply a request: send several with other seeds", (1,)),
    "echo": Refused("a reply does not repeat its prompt: leave it false", (False,)),
    "suffix": Refused("text is written behind the prompt, not into it: leave it away", ("",)),
    "prompt_logprobs": Refused("a prompt's own log-probabilities are not computed: leave it away"),
    "response_format": Refused(_UNCONSTRAINED, ({"type": "text"},)),
    **dict.fromkeys(
        ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        Refused(_UNCONSTRAINED),
    ),
    "tools": Refused(_NO_TOOLS, ([],)),
    "tool_choice": Refused(_NO_TOOLS, ("none", "auto")),
    "functions": Refused(_NO_TOOLS, ([],)),
    "function_call": Refused(_NO_TOOLS, ("none", "auto")),
    "web_search_options": Refused(_NO_TOOLS),
    "modalities": Refused("replies are text", (["text"],)),
    "moderation": Refused("neither prompts nor replies are moderated: leave it away"),
    "prediction": Refused("nothing is predicted ahead: leave it away"),
    "reasoning_effort": Refused('set chat_template_kwargs, such as {"enable_thinking": true}', ("none",)),
    "verbosity": Refused("say in a message how long the reply shall be", ("medium",)),
    "thinking_token_budget": Refused("max_tokens counts all tokens: leave it away"),
    "truncate_prompt_tokens": Refused("nothing is truncated: shorten the prompt"),
    "add_generation_prompt": Refused(_TEMPLATE, (True,)),
    "continue_final_message": Refused(_TEMPLATE, (False,)),
    "chat_template": Refused(_TEMPLATE),
    "documents": Refused(_TEMPLATE, ([],)),
    "add_special_tokens": Refused("BOS is added where the tokenizer adds it; a prompt in ids is taken as it is"),
    "include_stop_str_in_output": Refused("a reply ends before its stop: leave it false", (False,)),
    "return_token_ids": Refused("logprobs with return_tokens_as_token_ids tell the ids", (False,)),
    "priority": Refused("requests run in the order in which they come: leave it at 0", (0,)),
    "stream_interval": Refused("a stream comes as it is written: leave it away", (1,)),
}

_NO_SAMPLING = "a diffusion model draws by its own schedule, and its likeliest ids are the reply"
_NO_MASKS = "this model does not fill in masks: leave it away"
_NO_CANVAS = "this model has no canvases to be read; ask /v1/systemone for the probabilities of labels"
_DRAWN_ALONE = "this model reports the log-probability of the token that it drew, and of no other"
_ON_CANVASES = {
    "vllm_xargs": Refused(_NO_CANVAS),
    "logprob_token_ids": Refused(f"{_DRAWN_ALONE}; ask /v1/systemone for the probabilities of labels"),
    "top_logprobs": Refused(f"{_DRAWN_ALONE}: leave it at 0"),
    "logprobs": Refused(f"{_DRAWN_ALONE}: ask for 1 at most", (0, 1, True)),
}

# Fields that a model does not take, by how it writes. Their defaults ask for nothing.
NOT_TAKEN: Mapping[Kind, Mapping[str, Refused]] = {
    "canvas": {
        "temperature": Refused(f"{_NO_SAMPLING}: leave it at 1, or take 0 to draw the likeliest in each step", (1, 0)),
        "top_p": Refused(f"{_NO_SAMPLING}: leave it at 1"),
        "top_k": Refused(f"{_NO_SAMPLING}: leave it at 0 or -1", (-1,)),
        **dict.fromkeys(OF_MASKS, Refused(_NO_MASKS)),
    },
    "masks": _ON_CANVASES,
    "next": _ON_CANVASES | dict.fromkeys(OF_MASKS, Refused(_NO_MASKS)),
}

"""OpenAI's routes for text: chat and completions, with vLLM's arguments for structured reads."""

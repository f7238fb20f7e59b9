"""Text: tokenizers, chat templates and the frame around a content."""

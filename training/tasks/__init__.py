"""Generated tasks with one right answer each: what the small model is trained on, and held out to score it."""

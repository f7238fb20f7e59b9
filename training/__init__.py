"""How models/sprig-10m-b32 is made: `python -m training.train --help`."""

"""`python -m ramet` is `ramet`."""

from ramet.cli import main

main(prog_name="ramet")

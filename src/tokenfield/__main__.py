"""`python -m tokenfield` is the command `tokenfield`."""

from tokenfield.cli import main

main()

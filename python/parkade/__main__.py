"""`python -m parkade` is the command `parkade`."""

from ._command_line import main

main()

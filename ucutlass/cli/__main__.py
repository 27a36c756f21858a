"""`python -m ucutlass.cli`."""

from ucutlass.cli import main

main()

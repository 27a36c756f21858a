"""This module runs `python -m ucutlass.cli`."""

from ucutlass.entry import main

main()

"""Speed-of-light analysis: lower bounds on the time of any kernel on a device."""

from ucutlass.sol.ceilings import Ceilings, CeilingsError
from ucutlass.sol.speed import SpeedOfLight, speed_of_light
from ucutlass.sol.work import Work, total

__all__ = ["Ceilings", "CeilingsError", "SpeedOfLight", "Work", "speed_of_light", "total"]

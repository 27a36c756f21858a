"""What this very GPU reaches: `probes` say what is tried, `cuda` measures, `ceilings` keeps the best."""

from ucutlass.runtime.calibrate.ceilings import (
    FOLDER,
    RATES,
    Calibration,
    CalibrationFailed,
    Method,
    Probe,
    Reading,
    Refused,
    Ruler,
    Timed,
    best,
    calibration,
    ceilings,
    kept,
    load,
    measure,
    path,
    save,
    to_file,
    warm,
)

__all__ = [
    "FOLDER", "RATES", "Calibration", "CalibrationFailed", "Method", "Probe", "Reading", "Refused", "Ruler",
    "Timed", "best", "calibration", "ceilings", "kept", "load", "measure", "path", "save", "to_file",
    "warm",
]

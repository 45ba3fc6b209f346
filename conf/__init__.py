"""The shipped presets. A package only so that Hydra can read them out of a wheel, as ``pkg://declog.conf``."""

"""What Hydra finds of declog: its presets, and a source that reads profiles in short forms."""

from declog.config.hydra import ProfileFiles
from declog.config.plugin import DeclogSearchPath

__all__ = ["DeclogSearchPath", "ProfileFiles"]

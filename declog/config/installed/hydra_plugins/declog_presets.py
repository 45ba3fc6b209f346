"""declog's plugins for Hydra: its presets, and a source that reads configs in short forms."""

from declog.config.hydra import ConfigFiles
from declog.config.plugin import DeclogSearchPath

__all__ = ["ConfigFiles", "DeclogSearchPath"]

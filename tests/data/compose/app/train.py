"""An application as a user writes one: its own ``@hydra.main`` and preset; declog is only imported."""

from __future__ import annotations

import json

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime
from omegaconf import DictConfig

import declog  # noqa: F401  (makes the presets known to Hydra)
from declog.config.compose import compose, config_of
from declog.errors import ConfigError, Problem


@hydra.main(version_base="1.2", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    if cfg.do == "print":
        print("profile", json.dumps(config_of(cfg)))
    elif cfg.do == "fail":
        problem = Problem("DL310", "it is per token", ("filters", "hard", "where"), source="kl > 1", span=(0, 2))
        print(compose(cfg).located(ConfigError([problem])))
    elif cfg.do == "compose":
        state = (GlobalHydra.instance(), HydraConfig.get(), JobRuntime.instance().get("name"), hydra.version.getbase())
        inner = compose("app", ["declog.profile=slim"], config_dir=hydra.utils.to_absolute_path("conf"))
        after = (GlobalHydra.instance(), HydraConfig.get(), JobRuntime.instance().get("name"), hydra.version.getbase())
        same = [a is b or a == b for a, b in zip(state, after, strict=True)]
        print("inner", json.dumps({"profile": inner.profile, "same": same, "base": str(after[-1])}))


if __name__ == "__main__":
    main()

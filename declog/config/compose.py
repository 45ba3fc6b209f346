"""The first arrow: Hydra YAML and overrides to one composed configuration, and from there to plain data.

``compose`` makes the configuration outside of an application, ``profile_of`` takes the profile out of it
or out of an application's own. Imports Hydra and OmegaConf; torch, the spec and the compiler stay out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, UnsupportedValueType

from declog.config.composition_errors import composition_error, unknown_preset
from declog.config.diagnostics import attach_places
from declog.config.file_errors import first_line, lost
from declog.config.interpolation import Resolved, at, has, key_path, resolved
from declog.config.provenance import ORIGIN, Origin, overrides_of, provenance_of
from declog.config.search_path import GROUP, HYDRA_ERRORS, config_loader, current_hydra, preset_folders, settle
from declog.config.source_map import FilePlace
from declog.errors import CompositionError, ConfigError, Path, Problem, did_you_mean, nesting

Error = TypeVar("Error", bound=ConfigError)


def compose(
    config_name: str = "grpo", overrides: Sequence[str] = (), *, config_dir: str | FilePath | None = None
) -> DictConfig:
    """The preset ``config_name`` with ``overrides``, under the node ``declog``, as Hydra composes it.

    ``config_dir`` is a directory whose ``declog`` folder holds presets of your own; they win over shipped
    ones of the same name. Overrides are Hydra's: ``declog.profile=slim``, ``~declog.metrics.kl``,
    ``declog/sinks=[console,trackio]``. Raises ``CompositionError`` with every override that is wrong. A
    running ``@hydra.main`` application is neither used nor disturbed.
    """
    if isinstance(overrides, str):
        raise CompositionError(
            [Problem("DL101", "overrides are a list of texts, not one text", fix=f"[{overrides!r}]")]
        )
    return composed(Origin(config_name, tuple(overrides), _directory(config_dir)))


def composed(origin: Origin) -> DictConfig:
    """The configuration of an origin; remembers it, so that each key's place can be found."""
    with current_hydra():
        loader = config_loader(origin.config_dir)
        known = loader.get_group_options(GROUP)
        if origin.application:
            if not loader.repository.config_exists(origin.config_name):
                message = f"there is no configuration `{origin.config_name}` in {origin.config_dir}"
                fix = did_you_mean(origin.config_name, loader.repository.get_group_options(""), what="configurations")
                raise CompositionError([Problem("DL101", message, fix=fix)])
        elif origin.config_name not in known:
            directory = origin.config_dir if isinstance(origin.config_dir, FilePath) else None
            raise CompositionError([unknown_preset(origin.config_name, known, directory)])
        try:
            config = loader.load_configuration(origin.root, origin.lines, RunMode.RUN, from_shell=False)
        except HYDRA_ERRORS as error:
            raise composition_error(loader, origin, error) from None
    if origin.application:
        settle(config, origin.config_name)
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    OmegaConf.set_struct(config, True)
    if GROUP not in config:
        raise CompositionError([lost(loader, origin)])
    OmegaConf.get_cache(config)[ORIGIN] = origin
    return config


def _directory(config_dir: str | FilePath | None) -> FilePath | None:
    directory = None if config_dir is None else FilePath(config_dir).absolute()
    if directory is not None and not directory.is_dir():
        message = f"there is no directory {config_dir}"
        raise CompositionError([Problem("DL101", message, fix="give the directory that holds your `declog` folder")])
    return directory


def presets(config_dir: str | FilePath | None = None) -> list[str]:
    """The names that ``compose`` takes, your own ones in ``config_dir`` included."""
    with current_hydra():
        return config_loader(None if config_dir is None else FilePath(config_dir).absolute()).get_group_options(GROUP)


def profile_of(config: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The profile in ``config`` as plain, resolved data.

    ``config`` is a whole configuration with a node ``declog``, that node itself, or a profile as a
    mapping. Interpolations are resolved against the whole configuration. Raises ``CompositionError`` with
    every ``???`` (DL102) and every interpolation that does not resolve (DL103).
    """
    found = resolved(_node(config))
    if found.problems:
        raise located(CompositionError(found.problems), config)
    return found.data


def effective(config: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The profile as it is in effect; what is missing or does not resolve is as it was written, and raises nothing."""
    node = _node(config)
    found = resolved(node)
    return _with(found.data, _as_written(node), (problem.path for problem in found.problems))


def masked(config: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """The profile as it is in effect, fit to be written down: what the environment gave is as it was written.

    That holds however it came in: ``${oc.env:KEY}``, a part of a text, through another key or another resolver.
    What is missing or does not resolve is as it was written, too; nothing raises.
    """
    node = _node(config)
    found = resolved(node)
    data = _with(found.data, _as_written(node), (problem.path for problem in found.problems))
    for path, mask in found.masks.items():
        if has(data, path):
            _put(data, path, mask)
    return data


def written(config: DictConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The profile in ``config`` as ``masked`` has it, and as it was written: with ``${...}`` and ``???``."""
    return masked(config), _as_written(_node(config))


def _without_secrets(error: Error, config: DictConfig | Mapping[str, Any]) -> Error:
    """The same error without anything that the environment gave to the profile."""
    found = resolved(_node(config))
    if not found.secrets:
        return error
    return type(error)([replace(each, **_clean(each, found)) for each in error.problems])


def _clean(problem: Problem, found: Resolved) -> dict[str, Any]:
    above = [problem.path[:depth] for depth in range(len(problem.path), 0, -1)]
    mask = next((found.masks[path] for path in above if path in found.masks), None)
    given = str(at(found.data, problem.path)) if has(found.data, problem.path) else ""
    short = (
        [] if mask is None else [(value, shown) for value, shown in ((given, mask), *found.secrets.items()) if value]
    )

    def clean(text: str | None) -> str | None:
        if text is None:
            return None
        for value, shown in short:
            text = re.sub(rf"(?<![\w$:]){re.escape(value)}(?!\w)", shown.replace("\\", "\\\\"), text)
        return found.masked(text)

    return {
        "message": clean(problem.message),
        "fix": clean(problem.fix),
        "source": problem.source if mask is None else None,
        "span": problem.span if mask is None else None,
    }


def _as_written(node: DictConfig) -> dict[str, Any]:
    return cast("dict[str, Any]", OmegaConf.to_container(node, resolve=False))


def _with(data: dict[str, Any], as_written: dict[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    for path in paths:
        if has(as_written, path):
            _put(data, path, at(as_written, path))
    return data


def _put(data: dict[str, Any], path: Path, value: object) -> None:
    at(data, path[:-1])[path[-1]] = value


def application_directory() -> FilePath | None:
    """The run directory of the Hydra application that is running; None outside one."""
    if not HydraConfig.initialized():
        return None
    return FilePath(HydraConfig.get().runtime.output_dir)


def working_directory() -> FilePath:
    """Where the user started: Hydra applications may have been moved into a folder of their run since."""
    return FilePath(HydraConfig.get().runtime.cwd) if HydraConfig.initialized() else FilePath.cwd()


def defaulted(config: DictConfig | Mapping[str, Any]) -> frozenset[str] | None:
    """The metrics that `metric_defaults` are for: those first declared in a file that sets some, or that extends it.

    None where nobody knows what was declared where: for a mapping.
    """
    found = provenance_of(config)
    if found is None:
        return None
    prefix = prefix_of(config)
    setters = {
        layer.place.file
        for path, layers in found.layers.items()
        if path[: len(prefix) + 1] == (*prefix, "metric_defaults")
        for layer in layers
        if isinstance(layer.place, FilePlace)
    }
    first: dict[str, str | None] = {}
    for path, layers in found.layers.items():
        if len(path) > len(prefix) + 1 and path[: len(prefix) + 1] == (*prefix, "metrics"):
            place = layers[0].place
            first.setdefault(str(path[len(prefix) + 1]), place.file if isinstance(place, FilePlace) else None)
    return frozenset(name for name, file in first.items() if file in setters)


def columns_settled(config: DictConfig | Mapping[str, Any], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The profile, in which signals that an installed package declares say `extra: false`, unless they say something.

    So what a reward function logs is never such a signal because of its name. Of a mapping nobody knows who declared
    what: there nothing is added.
    """
    found = provenance_of(config)
    if found is None:
        return data
    folders = [FilePath(place) for place in preset_folders()]
    prefix = prefix_of(config)
    settled = dict(data)
    for section in ("signals", "metrics"):
        entries = data.get(section)
        for name, entry in entries.items() if isinstance(entries, Mapping) else ():
            first = next(iter(found.layers.get((*prefix, section, name), ())), None)
            packaged = (
                first is not None
                and isinstance(first.place, FilePlace)
                and any(FilePath(first.place.file).is_relative_to(folder) for folder in folders)
            )
            if packaged and isinstance(entry, Mapping) and entry.get("axis") and entry.get("extra") is None:
                settled[section] = {**settled[section], name: {**entry, "extra": False}}
    return settled


def deleted(config: DictConfig | Mapping[str, Any]) -> frozenset[str]:
    """The entries, such as ``metrics.kl``, that overrides took out with ``~``; ``null`` stays in the data."""
    prefix = ".".join(map(str, prefix_of(config)))
    keys = [line[1:].partition("=")[0] for line in overrides_of(config) if line.startswith(f"~{prefix}.")]
    return frozenset(key.removeprefix(f"{prefix}.") for key in keys)


def prefix_of(config: DictConfig | Mapping[str, Any]) -> Path:
    """Where the profile stands in its configuration: ``("declog",)``, unless it was composed elsewhere."""
    return key_path(_node(config))


def located(error: Error, config: DictConfig | Mapping[str, Any]) -> Error:
    """The same error, each problem with its file, line and column or its override, where that is known.

    Nothing in it is what the environment gave: a value stands there as it was written.
    """
    return attach_places(_without_secrets(error, config), provenance_of(config), prefix=prefix_of(config))


_OWN_KEYS = frozenset({"defaults", "metrics", "signals", "sinks", "tables", "profile"})  # it is a profile


def _node(config: object) -> DictConfig:
    """The profile's node, still attached to its configuration."""
    whole = config if isinstance(config, DictConfig) else _wrapped(config)
    if GROUP not in list(whole):  # `GROUP in whole` is also false for one that is ??? or does not resolve
        if whole is whole._get_root() and HydraConfig.initialized() and not _OWN_KEYS.intersection(map(str, whole)):
            message = f"this configuration has no node `{GROUP}`: no preset is chosen"
            raise CompositionError([Problem("DL101", message, fix=f"defaults: [{GROUP}: grpo, _self_]")])
        return whole
    if OmegaConf.is_missing(whole, GROUP):
        raise CompositionError([Problem("DL102", f"the node `{GROUP}` has no value yet (???)")])
    try:
        node = whole[GROUP]
    except OmegaConfBaseException as error:
        raise CompositionError([Problem("DL103", first_line(error))]) from None
    if not isinstance(node, DictConfig):
        kind = "empty" if node is None else f"a {type(node).__name__}"
        raise ConfigError([Problem("DL202", f"the node `{GROUP}` is {kind}; a profile is a mapping")])
    return node


def _wrapped(config: object) -> DictConfig:
    if not isinstance(config, Mapping):
        raise ConfigError([Problem("DL202", f"a profile is a mapping, not a {type(config).__name__}")])
    if (problem := nesting(config)) is not None:
        raise ConfigError([problem])
    try:
        return OmegaConf.create(dict(config))
    except OmegaConfBaseException as error:
        path = tuple(re.findall(r"[^.\[\]]+", str(error.full_key or "")))
        code = "DL202" if isinstance(error, UnsupportedValueType) else "DL103"
        raise ConfigError([Problem(code, first_line(error), path)]) from None

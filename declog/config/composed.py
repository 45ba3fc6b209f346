"""A config, taken out of its Hydra configuration once: its values, their locations, and its origin.

No other module reads Hydra's configuration again. torch and the compiler are not imported.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, UnsupportedValueType

from declog.config.files import application_with
from declog.config.fold import Composition
from declog.config.hydra import jobs, overrides_of_run, running_loader
from declog.config.interpolation import Resolved, key_path, masked
from declog.config.long_form import without_nulls
from declog.config.origin import Origin
from declog.config.problems.as_written import as_written
from declog.config.problems.diagnostics import entire, located
from declog.config.problems.file_errors import first_line
from declog.config.problems.override_fixes import in_override_terms
from declog.config.search_path import GROUP, HYDRA_ERRORS, PROVIDER, package_of, provider_of
from declog.config.source_map import Layer, Provenance, shown_path
from declog.distribution import NAME
from declog.errors import CompositionError, ConfigError, Path, Problem, Where, in_flow
from declog.errors.nesting import nesting
from declog.language.fixes import wrong_ids
from declog.language.keys import is_entry
from declog.language.shorthand import COMPUTED, long
from declog.language.spec import LogSpec
from declog.language.tree import MISSING, Node, at, has, tree_of
from declog.language.validation import validate

Error = TypeVar("Error", bound=ConfigError)


@dataclass(frozen=True)
class Composed:
    """A config as plain data, with the files and overrides that set each key.

    ``data`` has the values in effect, and ``written`` the texts in the files, with ``${...}`` and ``???``. ``prefix``
    is the path of the config in its configuration. ``origin`` is None if it is unknown, as for a mapping. ``problems``
    are values that are missing (DL102) or do not resolve (DL103); there, ``data`` has the written text. ``masks`` are
    the keys whose values come from the environment, each with the text to show instead; ``secrets`` are these values,
    each with such a text. All are in the long form. In ``tree`` each key has the path where it was written, unless
    Hydra merged the long form.
    """

    data: Mapping[str, Any]
    written: Mapping[str, Any]
    prefix: Path = ()
    origin: Origin | None = None
    problems: tuple[Problem, ...] = ()
    masks: Mapping[Path, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    tree: Node = field(default_factory=lambda: Node({}))
    composition: Composition | None = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Another process gets the locations of the keys, and not Hydra's files."""
        return {**self.__dict__, "provenance": self.provenance, "composition": None}

    @cached_property
    def merged(self) -> Composition | None:
        """The composition of its files and overrides; None for a mapping. Raises Hydra's errors."""
        return self.composition or (None if self.origin is None else self.origin.composition())

    @cached_property
    def shown(self) -> Mapping[str, Any]:
        """The config as it may be written down: a value of the environment is shown as the text in the file.

        This holds however the value came in: by ``${oc.env:KEY}``, in a part of a text, through another key, or by
        another resolver.
        """
        return masked(self.data, self.masks)

    @cached_property
    def provenance(self) -> Provenance:
        """Every key of the whole configuration with its layers; empty if they are unknown, or the files are gone."""
        with suppress(*HYDRA_ERRORS, OSError):  # a file was edited or removed, and the caller reports something else
            if self.merged is not None:
                return self.merged.provenance
        return Provenance({}, {})

    @cached_property
    def layers(self) -> Mapping[Path, tuple[Layer, ...]]:
        """The layers that set each key, by its path in the config, the latest last."""
        size = len(self.prefix)
        return {path[size:]: layers for path, layers in self.provenance.layers.items() if path[:size] == self.prefix}

    def deciding(self, path: Path) -> tuple[Layer, ...]:
        """The layers of the innermost key on a path that still holds, the latest last; none if they are unknown."""
        return self.provenance.find((*self.prefix, *path))[1]

    @property
    def profile(self) -> str:
        """The profile, slim or full, of sinks that name none."""
        return str(self.data.get("profile") or LogSpec.model_fields["profile"].default)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides that it was composed with, in Hydra's words."""
        return () if self.origin is None else self.origin.overrides

    @property
    def arguments(self) -> list[str]:
        """The arguments by which ``declog.attach`` composes it again: its name and its overrides, each as text."""
        origin = self.origin
        if origin is None or origin.application or origin.data is not None:
            return ["config"]
        folder = FilePath(str(origin.config_dir).removeprefix("declog://"))
        name = origin.config_name if origin.config_dir is None else shown_path(folder / f"{origin.config_name}.yaml")
        lines = [re.sub(r"\A([+~]*)declog\.", r"\1", line) for line in origin.overrides]
        return [repr(name)] * (name != "minimal") + [f"overrides={lines}"] * bool(lines)

    @property
    def imports(self) -> tuple[str, ...]:
        """The modules that were named beside the config."""
        return () if self.origin is None else self.origin.imports

    def packages(self) -> list[str]:
        """The installed packages whose presets it is composed of."""
        return sorted({name for file in self.provenance.texts if (name := _package(file)) is not None})

    def package(self, path: Path) -> str | None:
        """The installed package whose preset sets a key; None for declog, for the user's own files, or if unknown."""
        return _package(self._file(path))

    def home(self, path: Path) -> str | None:
        """The installed package whose preset sets a key, declog among them, with its version."""
        return package_of(self._file(path))

    def _file(self, path: Path) -> str | None:
        """The file whose value of a key is in effect; None for the value of an override, or if it is unknown."""
        layers = self.deciding(path)
        return layers[-1].file if layers else None

    def resolved(self) -> dict[str, Any]:
        """The config; raises ``CompositionError`` with every ``???`` and every interpolation that does not resolve."""
        if self.problems:
            raise self.located(CompositionError(self.problems))
        return dict(self.data)

    @cached_property
    def spec(self) -> LogSpec:
        """The config as models; raises ``ConfigError`` with what does not resolve, or each mistake of its shape."""
        return validate(self.resolved())

    def located(self, error: Error) -> Error:
        """The error, each problem with its file, line and column, or with its override, if they are known.

        Values of the environment are shown as they were written.
        """
        cleaned = type(error)([self._clean(problem) for problem in error.problems]) if self.secrets else error
        if not self.provenance.layers:  # a mapping has no places but its own keys
            shown = (as_written(problem, self.data, self.written, self._file) for problem in cleaned.problems)
            problems = (_in_data(problem, self.tree) for problem in shown)
            return type(error)(list(dict.fromkeys(problems)))
        by_layer = [
            one for problem in map(self._of_list_below, cleaned.problems) for one in self._of_each_layer(problem)
        ]  # fmt: skip
        placed = located(by_layer, self.provenance, prefix=self.prefix)
        typed = (in_override_terms(problem, self.prefix) for problem in placed)
        shown = (as_written(problem, self.data, self.written, self._file) for problem in typed)
        return type(error)([_of_package(problem) for problem in shown])

    def _of_each_layer(self, problem: Problem) -> list[Problem]:
        """The problem of a wrong id, once for each layer that writes the entry, which each needs the other id."""
        path = (*self.prefix, *problem.path)
        layers = self.provenance.layers.get(path, ())
        if problem.code != "DL204" or len(problem.path) != 2 or len(layers) < 2 or self.merged is None:
            return [problem]
        nodes = (self.merged.layers[layer.rank - 1].at(path) for layer in layers)
        section, key = map(str, problem.path)
        fixes = wrong_ids.of_layers(section, key, [node.plain for node in nodes if node is not None], self.data)
        one_by_one = ({**self.provenance.layers, path: (layer,)} for layer in layers)
        return [
            placed for fix, places in zip(fixes, one_by_one, strict=True)
            for placed in located([replace(problem, fix=fix)], Provenance(places, {}), prefix=self.prefix)
        ]  # fmt: skip

    def _of_list_below(self, problem: Problem) -> Problem:
        """The problem of an item that means the list of the layer below, ``sinks: ['${..sinks}', jsonl]``.

        The fix is the whole list. Any other problem stays as it is.
        """
        *above, index = (*self.prefix, *problem.path) or ("",)
        layers = self.provenance.layers.get(tuple(above), ()) if isinstance(index, int) else ()
        if not isinstance(index, int) or len(layers) < 2 or self.merged is None:
            return problem
        low, high = (self.merged.layers[layer.rank - 1].at(above) for layer in layers[-2:])
        items = [] if high is None or not isinstance(high.plain, list) else high.plain
        of_list = re.compile(rf"\$\{{(?:[\w.:]*[.:])?(?:{above[-1]}|super)\}}|\$?super|\.\.\.")
        if low is None or index >= len(items) or not of_list.fullmatch(str(items[index])):
            return problem
        entire = [*low.plain, *(item for item in items if item != items[index] and item not in low.plain)]
        return problem.saying("DL103.of_list", item=items[index], fix=f"{above[-1]}: {in_flow(entire)}")

    def masked(self, text: str) -> str:
        """A text in which values of the environment are shown as they were written."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= 4:  # a shorter value is no secret
                for said in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
                    text = text.replace(said, self.secrets[secret])
        return text

    def masked_data(self, value: Any) -> Any:
        """Plain data in whose texts values of the environment are shown as they were written."""
        if not self.secrets:
            return value
        if isinstance(value, Mapping):
            return {self.masked_data(key): self.masked_data(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.masked_data(item) for item in value]
        return self.masked(value) if isinstance(value, str) else value

    def _clean(self, problem: Problem) -> Problem:
        above = [problem.path[:depth] for depth in range(len(problem.path), 0, -1)]
        mask = next((self.masks[path] for path in above if path in self.masks), None)
        current = str(at(self.data, problem.path)) if has(self.data, problem.path) else ""
        short = {} if mask is None else {current: mask, **self.secrets}

        def clean(text: str) -> str:
            for value, shown in short.items():
                if value:
                    text = re.sub(rf"(?<![\w$:]){re.escape(value)}(?!\w)", shown.replace("\\", "\\\\"), text)
            return self.masked(text)

        source = (problem.source, problem.span) if mask is None else (None, None)
        fix = None if problem.fix is None else clean(problem.fix)
        return replace(problem, message=clean(problem.message), fix=fix, source=source[0], span=source[1])


def of_config(config: object) -> Composed:
    """The config of a composed configuration, which has a node ``declog``, of this node, or of a mapping.

    Interpolations are resolved against the whole configuration. Raises ``ConfigError`` if it has no config.
    """
    if isinstance(config, Mapping) and not isinstance(config, DictConfig):
        configuration = dict(config)
        node = configuration.get(GROUP, configuration)
        chosen = GROUP in configuration or not HydraConfig.initialized() or not _OWN_KEYS.isdisjoint(configuration)
        if chosen and type(node) is dict and nesting(configuration) is None and is_plain(configuration):
            return _stated(_of_data(node, (GROUP,) if GROUP in configuration else (), None))
    return _stated(of_node(node_of(config), _running() if isinstance(config, DictConfig) else None))


def _stated(config: Composed) -> Composed:
    """The config without the nulls that Hydra got for keys that a text replaces (``long_form.with_nulls``)."""
    return replace(config, data=without_nulls(config.data), written=without_nulls(config.written))


def is_plain(value: object) -> bool:
    """Whether a value is plain data without ``${...}`` and ``???``: OmegaConf would return it unchanged, and slowly."""
    if type(value) is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is str:
        return "${" not in value and value != MISSING
    return value is None or type(value) in (bool, int, float)


def _of_data(
    written: dict[str, Any], prefix: Path, origin: Origin | None, composition: Composition | None = None
) -> Composed:
    """The config of data that has nothing to resolve."""
    composition = composition or _folded(origin)
    data = _without_dropped(_deleted(copy.deepcopy(written), prefix, origin), prefix, composition)
    tree, _ = long(tree_of(data))
    return Composed(tree.plain, tree.plain, prefix, origin, (), {}, {}, tree, composition)


def of_node(node: DictConfig, origin: Origin | None, composition: Composition | None = None) -> Composed:
    """The config at a node that is still attached to its configuration."""
    written = cast("dict[str, Any]", OmegaConf.to_container(node, resolve=False))
    if is_plain(written):
        return _of_data(written, key_path(node), origin, composition)
    values = Resolved(node)
    for problem in values.problems:
        if has(written, problem.path):
            at(values.data, problem.path[:-1])[problem.path[-1]] = at(written, problem.path)
    problems = tuple(_of_application(problem, origin) for problem in values.problems)
    prefix, composition = key_path(node), composition or _folded(origin)
    tree, before = (
        long(tree_of(_without_dropped(_deleted(data, prefix, origin), prefix, composition)))[0]
        for data in (values.data, written)
    )
    masks = {path: values.masks[inner.location] for path, inner in tree.walk() if inner.location in values.masks}
    return Composed(tree.plain, before.plain, prefix, origin, problems, masks, values.secrets, tree, composition)


def _of_application(problem: Problem, origin: Origin | None) -> Problem:
    """The problem of an interpolation in a preset. If an application beside it has the key, the fix is to check it."""
    key = re.match(r"\$\{(\w+)", problem.marked)
    if key is None or origin is None or origin.application or origin.config_dir is None:
        return problem
    folder = FilePath(str(origin.config_dir).removeprefix("declog://"))
    file = application_with(key[1], folder, str(origin.config_name))
    if file is None:
        return problem
    return problem.saying("DL103.of_application", key=key[1], folder=shown_path(file.parent), name=file.stem)


def _in_data(problem: Problem, tree: Node) -> Problem:
    """The problem of a key of the long form, at the path where plain data has it: a short form is one text."""
    depth, node = tree.deepest(problem.path)
    if depth == 0:
        return problem
    entry = at(tree.plain, problem.path[:-1])
    if node.location == problem.path[:-1] and isinstance(entry, dict) and {"reduce", "expr"} <= entry.keys():
        problem = entire(problem, f"{entry['reduce']}({entry['expr']})")
    return replace(problem, path=(*node.location, *problem.path[depth:]))


def _deleted(data: dict[str, Any], prefix: Path, origin: Origin | None) -> dict[str, Any]:
    """The config, with null for each entry that an override deletes with ``~``, as if a file deleted it."""
    start = f"~{'.'.join(map(str, prefix))}."
    for line in () if origin is None else origin.overrides:
        path = tuple(line.removeprefix(start).partition("=")[0].split("."))
        if line.startswith(start) and is_entry(path) and isinstance(entries := at(data, path[:-1]), dict):
            entries.setdefault(path[-1], None)
    return data


def _folded(origin: Origin | None) -> Composition | None:
    """The composition of a running application, if an override says how a metric is computed; else None.

    Hydra has merged only the override itself, and the keys that it drops are still there.
    """
    if origin is None or not origin.running or not any(re.search("expr|formula", line) for line in origin.overrides):
        return None
    with suppress(*HYDRA_ERRORS, OSError):  # files that were edited or removed since
        return origin.composition()
    return None


def _without_dropped(data: dict[str, Any], prefix: Path, composition: Composition | None) -> dict[str, Any]:
    """The config without the keys that a layer drops, if these have a value of a lower layer."""
    if composition is None:
        return data
    layers = composition.layers
    for path, node in [pair for layer in layers for pair in layer.walk() if pair[1].drops]:
        inside = path[len(prefix) :]
        entry: Any = at(data, inside)
        said = {way: one.plain for way, one in node.entries.items() if way in COMPUTED}
        holds = isinstance(entry, dict) and said.items() <= entry.items()  # code may have changed it since
        for key in node.drops & entry.keys() if holds else ():
            said_below = [one.plain for below in layers if (one := below.at((*path, key))) is not None]
            if composition.tree.at((*path, key)) is None and entry[key] in said_below:
                del entry[key]
    return data


def _running() -> Origin | None:
    """The origin of the running application; None if Hydra cannot tell how its configuration was composed."""
    if not HydraConfig.initialized() or running_loader() is None:
        return None
    running = HydraConfig.get()
    return Origin(str(running.job.config_name), tuple(overrides_of_run("task")), application=True, running=True)


def _of_package(problem: Problem) -> Problem:
    """The problem, with the installed package whose file it is in; declog's own is known by its path."""
    where = problem.where
    file = "" if where is None or where.file is None else str(FilePath(where.file).absolute())
    if where is None or _package(file) is None:
        return problem
    fix = problem.fix
    if problem.code == "DL201":
        fix = f"{fix}\nor it is written for a later declog: pip install -U {NAME}"
    return replace(problem, where=replace(where, package=package_of(file)), fix=fix)


def _package(file: str | None) -> str | None:
    name = provider_of(file)
    return None if name == PROVIDER else name


_OWN_KEYS = frozenset({"defaults", "metrics", "signals", "sinks", "tables", "profile"})  # of a config


def node_of(config: object) -> DictConfig:
    """The config's node, still attached to its configuration."""
    if HydraConfig.initialized():
        jobs.add(HydraConfig.get().job.name)
    configuration = config if isinstance(config, DictConfig) else wrapped(config)
    keys = [str(key) for key in configuration]  # `GROUP in configuration` is false where it is ??? or does not resolve
    if GROUP not in keys:
        at_root = configuration is configuration._get_root()
        if at_root and HydraConfig.initialized():
            if (chosen := HydraConfig.get().runtime.choices.get(GROUP)) is not None:
                raise CompositionError([Problem.of("DL101.global_package", name=chosen, group=GROUP)])
            if _OWN_KEYS.isdisjoint(keys):
                raise CompositionError([Problem.of("DL101.no_node", group=GROUP)])
        return configuration
    if OmegaConf.is_missing(configuration, GROUP):
        raise CompositionError([Problem.of("DL102.node", group=GROUP)])
    try:
        node = configuration[GROUP]
    except OmegaConfBaseException as error:
        raise CompositionError([Problem.of("DL103.hydra", cause=first_line(error))]) from None
    if isinstance(node, str) and re.fullmatch(r"\w+", node):
        raise ConfigError([Problem.of("DL202.node_name", (GROUP,), group=GROUP, name=node)])
    if not isinstance(node, DictConfig):
        kind = "empty" if node is None else f"a {type(node).__name__}"
        raise ConfigError([Problem.of("DL202.node", group=GROUP, kind=kind)])
    return node


def wrapped(config: object) -> DictConfig:
    """Data as nodes of OmegaConf. Raises ``ConfigError`` if it is not a mapping, or has a value that no config has."""
    if isinstance(config, list | tuple) and config and all(isinstance(line, str) and "=" in line for line in config):
        raise ConfigError([Problem.of("DL202.config_overrides", where=Where(name="config"), overrides=list(config))])
    if type(config).__name__ == "Recorder":
        raise ConfigError([Problem.of("DL202.config_recorder", where=Where(name="config"))])
    if config is None:
        raise ConfigError([Problem.of("DL202.config_none", where=Where(name="config"))])
    if not isinstance(config, Mapping):
        raise ConfigError([Problem.of("DL202.config", where=Where(name="config"), type=type(config).__name__)])
    if (problem := nesting(config)) is not None:
        raise ConfigError([problem])
    try:
        return OmegaConf.create(dict(config))
    except OmegaConfBaseException as error:
        path = tuple(re.findall(r"[^.\[\]]+", str(error.full_key or "")))
        if isinstance(error, UnsupportedValueType):
            raise ConfigError([Problem.of("DL202.value", path, cause=first_line(error), fix=None)]) from None
        raise ConfigError([Problem.of("DL103.hydra", path, cause=first_line(error))]) from None

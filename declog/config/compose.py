"""The first arrow of the pipeline: compose a preset, a file or data, with overrides, to one config.

``compose`` takes a preset's name, a file, an application's configuration or a mapping. It imports neither torch nor
the compiler.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from declog.config.composed import Composed, is_plain, node_of, of_config, of_node, wrapped
from declog.config.files import chooses_config, text_of
from declog.config.fold import Composition
from declog.config.hydra import InCode, Loader, config_loader, overrides_of_run
from declog.config.origin import Origin
from declog.config.overrides import ADDS, pasted, taken, with_equals, written
from declog.config.problems.composition_errors import composition_error, unknown_preset
from declog.config.problems.file_errors import lost
from declog.config.problems.override_errors import problem_of, without_colons
from declog.config.project import config_dir as config_folder
from declog.config.project import load_imports
from declog.config.quoting import depths
from declog.config.search_path import GROUP, HYDRA_ERRORS, folders_of
from declog.config.source_map import shown_path
from declog.errors import CompositionError, Path, Problem, Where, did_you_mean, nearest
from declog.errors.habits import shown_at_the_call
from declog.language.spec import LogSpec
from declog.language.tree import at

log = logging.getLogger("declog")
PACKAGE = "pkg://"  # before the name of a package that holds a folder `declog` of presets


@shown_at_the_call
def compose(
    config: Any = "grpo", overrides: Sequence[str] = (), *, config_dir: str | FilePath | None = None
) -> Composed:
    """The config with ``overrides``, each key with the place that set it.

    ``config`` is a preset's name, a YAML file, a package's preset (``pkg://acme_logging.conf/acme``), an application's
    DictConfig, its node ``declog``, a config as a mapping, which may have a defaults list as a file has, or a
    ``Composed``. ``config_dir`` is a directory whose ``declog`` folder holds your own presets, by default the directory
    that ``[tool.declog]`` of the project names; they win over shipped presets of the same name. Overrides are written
    as on the command line, ``profile=slim``, ``metrics.p=p95(reward)``, ``~metrics.kl``, ``sinks=[console,trackio]``,
    or as in Hydra, ``declog.profile=slim``; an application's own file takes Hydra's form only. Raises
    ``CompositionError`` with every wrong override. A running ``@hydra.main`` application is neither used nor disturbed.
    """
    if isinstance(overrides, str | Mapping) or not all(isinstance(text, str) for text in overrides):
        said = [f"output_dir={text}" if "/" in text and "=" not in text else text for text in _as_texts(overrides)]
        texts = [with_equals(text) or text for text in said]
        raise _refused("DL101.overrides", "overrides", type=type(overrides).__name__, fix=str(texts))
    if (lines := _of_arguments(overrides)) != [*overrides]:
        came = ", ".join(f"`{word}`" for word in overrides if word not in lines)
        raise _refused("DL101.arguments", "overrides", words=came, fix=str(lines))
    if isinstance(config, str | os.PathLike) or _extends(config) or (overrides and _is_lines(config)):
        _not_of_application()
        base = named(config, config_dir) if isinstance(config, str | os.PathLike) else _in_code(config, config_dir)
        return composed(overridden(base, overrides))
    if overrides and isinstance(config, Composed) and config.origin is not None and not config.origin.running:
        return composed(overridden(replace(config.origin, overrides=()), [*config.overrides, *overrides]))
    if overrides and config is not None:
        raise _refused("DL101.composed", "overrides", lines=" ".join(map(in_application, overrides)))
    return config if isinstance(config, Composed) else of_config(config)


def _extends(config: object) -> bool:
    """Whether a mapping is a preset with a defaults list, and not an application's, whose list chooses a ``declog``."""
    if not isinstance(config, Mapping) or "defaults" not in config:
        return False
    entries = config["defaults"] if isinstance(config["defaults"], Sequence) else ()
    return not any(isinstance(entry, Mapping) and GROUP in entry for entry in entries)


def _is_lines(config: object) -> bool:
    """Whether a mapping in code is a config that no application composed."""
    return isinstance(config, Mapping) and not isinstance(config, DictConfig) and GROUP not in config


def _in_code(config: Mapping[str, Any], config_dir: str | FilePath | None) -> Origin:
    """The origin of a mapping, which counts as a file with this content among the project's presets."""
    node = config if isinstance(config, DictConfig) else wrapped(config)
    data = cast("dict[str, Any]", OmegaConf.to_container(node, resolve=False))
    return Origin(InCode.PRESET, config_dir=project_folder(config_dir), data=data)


def _not_of_application() -> None:
    """Warn if a running application has overrides of declog: they change its own configuration, not this config."""
    words = overrides_of_run("task") if HydraConfig.initialized() else []
    lines = [line for line in words if re.match(rf"[+~]*{GROUP}[.=]", line)]
    if lines:
        shown = ", ".join(lines)
        log.warning("%s is for the application's configuration, and this config is another: declog.start(cfg)", shown)


def in_application(line: str) -> str:
    """An override of a config as the command line of an application takes it."""
    sign, key, value = re.fullmatch(r"([+~]*)(?:declog\.)?([^=]*)=?(.*)", line, re.DOTALL).groups()  # type: ignore[union-attr]
    return pasted(f"~{GROUP}.{key}" if sign == "~" else f"++{GROUP}.{key}={taken(value)}")


def _of_arguments(words: Sequence[str]) -> list[str]:
    """The overrides that a list of arguments means: of ``["--every", "2"]``, ``["every=2"]``. Overrides stay."""
    lines: list[str] = []
    key = False  # whether the last line is a key without its value
    for word in words:
        name, equals, value = word.partition("=")
        dashed = re.match(r"--?(?=[a-z])", word) is not None
        if key and not equals and not dashed:
            lines[-1] = lines[-1].removesuffix("...") + word
            key = False
            continue
        if word == "=":
            continue
        name = name.lstrip("-").replace("-", "_") if dashed else name
        key = not equals and (dashed or name.lstrip("+").partition(".")[0] in LogSpec.model_fields)
        lines.append(f"{name}=..." if key else f"{name}{equals}{value}")
    return lines


def _as_texts(overrides: object) -> Iterator[str]:
    """Overrides that came as a text, as a map or as a list of maps, as texts."""
    if isinstance(overrides, Mapping):
        yield from (f"{key}={written(value)}" for key, value in overrides.items())
    elif isinstance(overrides, Sequence) and not isinstance(overrides, str):
        for item in overrides:
            yield from _as_texts(item)
    else:
        options = r"(?<![^\s,;])--([+\w./]+)(?:=|[ \t]+(?=[^\s=-])(?!\S*=))"  # `--every=2` and `--every 2`
        text, start = re.sub(options, r"\1=", str(overrides)), 0
        levels = [*depths(text)]
        for match in re.finditer(r"[\s,;]+(?=[+~]*[\w.@/]+=|~)", text):
            piece = text[start : match.start()]
            quoted = piece.count('"') % 2 or piece.count("'") % 2
            if levels[match.start()] == 0 and re.search("=|^~", piece) and not quoted:
                yield piece
                start = match.end()
        yield text[start:]


def config_of(config: Any) -> dict[str, Any]:
    """The config as plain, resolved data; it takes what ``compose`` takes.

    Raises ``CompositionError`` with every ``???`` (DL102) and every interpolation that does not resolve (DL103).
    """
    return compose(config).resolved()


def presets(config_dir: str | FilePath | None = None) -> list[str]:
    """The names of all presets, those in ``config_dir`` included."""
    return config_loader(project_folder(config_dir)).get_group_options(GROUP)


def named(config: str | os.PathLike[str], config_dir: str | FilePath | None = None) -> Origin:
    """The origin of a preset's name, or of a file's, which has a ``/`` or a suffix such as ``.yaml``.

    A file is a preset, in a folder ``declog`` or in any other folder, or an application's own configuration.
    """
    name = os.fspath(config)
    if name.startswith(PACKAGE):
        package, _, preset = name.removeprefix(PACKAGE).partition("/")
        return Origin(preset.removeprefix(f"{GROUP}/"), config_dir=PACKAGE + _importable(package))
    if not (isinstance(config, os.PathLike) or name.endswith((".yaml", ".yml", ".py")) or "/" in name):
        if config_dir is not None and str(config_dir).startswith(PACKAGE):
            return Origin(name, config_dir=PACKAGE + _importable(str(config_dir).removeprefix(PACKAGE)))
        directory = project_folder() if config_dir is None else FilePath(config_dir).absolute()
        if directory is not None and not directory.is_dir():
            raise _refused("DL101.no_folder", "config_dir", folder=config_dir)
        return Origin(name, config_dir=directory)
    file = working_directory() / FilePath(name).expanduser()
    if config_dir is not None:
        raise _refused("DL101.folder_of_file", "config_dir")
    if not file.is_file():
        files = [path for folder in ("", "*/", "*/*/") for path in FilePath().glob(f"{folder}{GROUP}/*.yaml")]
        same = [str(path) for path in files if path.stem == file.stem or str(path).replace("/", "") == name]
        near = nearest(file.name, beside := [sibling.name for sibling in file.parent.glob("*.y*ml")])
        near = next((sibling for sibling in beside if FilePath(sibling).stem == file.stem), near if not same else None)
        close = str(FilePath(name).with_name(near)) if near else next(iter(same), None)
        fix = f"did you mean `{close}`?" if close else "write that file, or start with a preset's name: grpo"
        if close is None and file.stem in presets():
            fix = f"did you mean the preset `{file.stem}`?"
        raise _refused("DL101.no_file", "config", name=name, fix=fix)
    if file.suffix == ".py":
        raise _refused("DL101.python", "config", file=file.name, fix=_named_by(file))
    if file.suffix != ".yaml":
        raise _refused("DL101.suffix", "config", file=file.name, name=name, yaml=FilePath(name).with_suffix(".yaml"))
    folder = file.parent
    if chooses_config(str(file), text_of(file)):
        return Origin(file.stem, config_dir=folder, application=True)
    return Origin(file.stem, config_dir=folder.parent if folder.name == GROUP else f"declog://{folder.as_posix()}")


def _named_by(file: FilePath) -> str:
    """The fix for a Python file: the config that it names, for Hydra's application or for `declog.start`."""
    text = file.read_text(encoding="utf-8", errors="replace")
    said = dict(re.findall(r"config_(path|name)\s*=\s*[rf]?[\"']([^\"'{}]+)[\"']", text))
    started = re.search(r"declog\.\w+\(\s*[\"']([^\"'{}]+)[\"']", text)
    config = started[1] if started else "grpo, or a YAML file of yours"
    if "name" in said:
        path = file.parent / said.get("path", "") / FilePath(said["name"]).with_suffix(".yaml")
        config = shown_path(path.resolve()) if path.is_file() else config
    return f"declog check {config}"


def _importable(module: str) -> str:
    """The name of a package with presets; raises ``CompositionError`` if it cannot be imported or has no folder."""
    try:
        folders = folders_of(module)
    except (ImportError, ValueError) as error:
        raise _refused("DL101.no_package", "config", name=module, error=f": {error}") from None
    if not folders:
        raise _refused("DL101.no_package", "config", name=module, error="")
    return module


_WORD = re.compile(r"(?P<sign>\+\+|\+|~|)(?P<key>[^=]*)(?P<equals>=?)(?P<value>.*)\Z", re.DOTALL)


def overridden(base: Origin, overrides: Sequence[str]) -> Origin:
    """``base`` with overrides in Hydra's words; overrides of an application are in these words already.

    ``metrics.p=p95(reward)`` becomes ``declog.metrics.p="p95(reward)"``. An override in Hydra's words stays as it is.
    """
    if base.application:
        return replace(base, overrides=tuple(overrides))
    if not overrides:
        return base
    loader = base.loader
    groups = loader.list_groups(GROUP)
    name, lines, parts = base.config_name, list[str](), dict[int, str]()
    for word in overrides:
        if re.match(r"\+*hydra\.", word):
            folder = word.partition("=")[2]
            fix = f"output_dir={folder}" if ".run.dir=" in word else "leave it out"
            raise CompositionError([problem_of(word, "DL101.hydra_key", line=word, fix=fix)])
        match = _WORD.match(word)
        assert match is not None
        sign, key, equals, value = map(str.strip, match.group("sign", "key", "equals", "value"))
        if key == GROUP and not sign:
            name = value
            continue
        if re.split("[./@]", key)[0] != GROUP:
            chooses = key in groups and value not in ("", "null") and not value.startswith("{")
            added = key if key in ADDS else f"{key}@{GROUP}"  # a part of the config, and no section of it
            if chooses and not sign:
                parts[len(lines)] = f"+{GROUP}/{added}={value}"
            key = f"{GROUP}/{added if sign else key}" if chooses else f"{GROUP}.{key}"
        if (problem := without_colons(word, f"{sign}{key}", value)) is not None:
            raise CompositionError([problem])
        lines.append(f"{sign}{key}{equals}{value if '/' in key else taken(value)}")
    base = replace(base, config_name=name)
    for index, added in parts.items():  # a group of which no file chooses an option needs a plus
        if not _chooses(loader, base, lines[index]) and _chooses(loader, base, added):
            lines[index] = added
    return replace(base, overrides=tuple(lines))


def _chooses(loader: Loader, base: Origin, line: str) -> bool:
    """Whether Hydra accepts an override that chooses files."""
    try:
        loader.defaults(base.root, [*base.choice, line])
    except HYDRA_ERRORS:
        return False
    return True


def composed(origin: Origin) -> Composed:
    """Compose the config of an origin."""
    composition = _folded(origin)
    node = composition.tree.at((GROUP,))
    if node is not None and isinstance(node.value, dict) and is_plain(data := node.plain):
        return Composed(data, node.plain, (GROUP,), origin, composition=composition)
    return of_node(node_of(_nodes(origin, composition)), origin, composition)


def _folded(origin: Origin) -> Composition:
    """Compose the whole configuration."""
    loader = origin.loader
    options = loader.get_group_options(GROUP)
    name = str(origin.config_name)
    if origin.application:
        if not loader.repository.config_exists(name):
            fix = did_you_mean(name, loader.repository.get_group_options(""), what="configurations")
            raise _refused("DL101.no_config", "config", name=name, folder=origin.config_dir, fix=fix)
    elif origin.data is None and name not in options:
        directory = origin.config_dir if isinstance(origin.config_dir, FilePath) else None
        raise CompositionError([unknown_preset(name, options, directory)])
    try:
        composition = origin.fold(loader, origin.lines)
    except HYDRA_ERRORS as error:
        raise composition_error(loader, origin, error) from None
    if GROUP not in composition.tree.entries:
        raise CompositionError([lost(loader, origin)])
    return composition


def _nodes(origin: Origin, composition: Composition) -> DictConfig:
    """The whole configuration as nodes of OmegaConf, which resolve interpolations."""
    loader = origin.loader
    data = composition.tree.plain
    texts = {path: node.value for path, node in composition.tree.walk() if isinstance(node.value, str)}
    asking = {path: text for path, text in texts.items() if "${hydra:" in text}
    try:
        if origin.application and asking:
            _answer(data, asking, loader.hydra_node(origin.root, origin.lines), str(origin.config_name))
        config: DictConfig = OmegaConf.create(data)
    except HYDRA_ERRORS as error:
        raise composition_error(loader, origin, error) from None
    OmegaConf.set_struct(config, True)
    return config


def _answer(data: dict[str, Any], texts: Mapping[Path, str], hydra: DictConfig, name: str) -> None:
    """Replace ``${hydra:job.name}`` and the like by the value that Hydra would give in a run, as far as it is known.

    Other interpolations in ``texts``, such as of the environment, stay as they were written. ``hydra`` is the node of a
    run. ``name`` is used for the script's name, which is known only when the script runs.
    """
    config = OmegaConf.create({**data, "hydra": hydra})
    config.hydra.job.name = name
    config.hydra.runtime.output_dir = config.hydra.run.dir
    hydra_config = HydraConfig.instance()
    before = hydra_config.cfg
    try:
        hydra_config.set_config(config)
        for path, text in texts.items():
            with suppress(OmegaConfBaseException):  # it stays as it was written, and is refused where it is needed
                at(data, path[:-1])[path[-1]] = _answered(text)
    finally:
        hydra_config.cfg = before


def _answered(text: str) -> object:
    request = r"\$\{hydra:[\w.]*\}"
    if re.fullmatch(request, text):
        return OmegaConf.create({"answer": text}).answer
    return re.sub(request, lambda match: str(OmegaConf.create({"answer": match[0]}).answer), text)


def _refused(key: str, argument: str, /, **facts: Any) -> CompositionError:
    """The error of a wrong argument of ``compose``, which verbs and ``declog.start`` pass on."""
    return CompositionError([Problem.of(key, where=Where(name=argument), **facts)])


def project_folder(config_dir: str | FilePath | None = None) -> FilePath | None:
    """The folder whose `declog` folder holds the user's own presets; by default the folder that the project names."""
    return config_folder(working_directory()) if config_dir is None else FilePath(config_dir).absolute()


def application_directory() -> FilePath | None:
    """The run directory of the Hydra application that is running; None outside one."""
    return FilePath(HydraConfig.get().runtime.output_dir) if HydraConfig.initialized() else None


def imports_of(config: Composed) -> frozenset[str]:
    """Import the modules of the user's project; returns their names, and the names of modules beside the config."""
    return frozenset({*load_imports(working_directory()), *config.imports})


def working_directory() -> FilePath:
    """The directory in which the user started. A Hydra application may have changed to the folder of its run since."""
    return FilePath(HydraConfig.get().runtime.cwd) if HydraConfig.initialized() else FilePath.cwd()

"""Builds the shared libraries in `tf_libra/`.

- `_tf_libra.so`: the op, its engines and the Grappler pass, in one library. It is compiled against
  the TensorFlow that is installed.
- `libnccl-tuner-libra.so`: the plugin that NCCL loads. It needs neither TensorFlow nor NCCL.

Without TensorFlow, TF-Libra is installed without the libraries: planning and simulation work,
training does not. The local part of the version says which it is: `+tf2.21.0` or `+planning.only`.

What is built for a TensorFlow requires it, of the same minor version: the extension is linked with
TensorFlow's C++ library, whose interface may change with every minor version, and is then refused
where it is loaded. Patch releases keep it.
"""

import contextlib
import dataclasses
import fcntl
import filecmp
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

VERSION = "0.1.0"
SUPPORTED = ("2.18", "2.21")
# Set to 1, it builds for any TensorFlow: tools/try_tensorflow.py tries releases before they are
# supported.
ANY_TENSORFLOW = "TF_LIBRA_ANY_TENSORFLOW"

# Tests that replace functions of the libraries, so each is a program of its own.
TESTS_ALONE = ("exhaustion_test", "guarded_test", "system_calls_test")

# File in a build folder whose time says which sources are compiled together: those that are older.
JOINED = "joined"

# Prints the folder, version and package of the installed TensorFlow without importing it.
FIND_TENSORFLOW = """
import importlib.metadata, importlib.util, json
spec = importlib.util.find_spec("tensorflow")
names = importlib.metadata.packages_distributions().get("tensorflow") if spec else None
if names:
    version = importlib.metadata.version(names[0])
    print(json.dumps([spec.submodule_search_locations[0], version, names[0]]))
"""
FIND_FLAGS = """
import json, tensorflow.sysconfig as s
print(json.dumps([s.get_compile_flags(), s.get_link_flags()]))
"""


def ask_python(code: str) -> str:
    """Runs `code` in this environment's Python, outside of pip's build isolation.

    pip isolates a build by setting PYTHONPATH, so `-E` sees the environment that is installed
    into. The last line printed is the answer; imports may print lines before it.
    """
    isolated = "pip-build-env" in os.environ.get("PYTHONPATH", "")
    command = [sys.executable, *(["-E"] if isolated else []), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    if done.returncode:
        raise SystemExit(f"tf-libra: cannot look at TensorFlow:\n{done.stderr}")
    return done.stdout.strip().rpartition("\n")[2]


def rule(name: str, command: str) -> list[str]:
    """A rule of ninja for a compiler that writes what it has read beside what it makes."""
    description = ["  description = $cxx $in", "  depfile = $out.d", "  deps = gcc"]
    return [f"rule {name}", f"  command = {command}", *description]


@dataclasses.dataclass(frozen=True)
class TestProgram:
    """A program of C++ tests, compiled as one unit.

    Attributes:
        path: the program.
        sources: files of tests.
        units: folder of the units that it is linked with.
        header: precompiled header of the tests; None: they include no TensorFlow.
    """

    path: Path
    sources: tuple[Path, ...]
    units: str = ""
    header: Path | None = None


class Library(Extension):
    """A shared library, its sources, and where its objects are kept between builds."""

    def __init__(self, name: str, build_dir: Path, patterns: tuple[str, ...]) -> None:
        super().__init__(f"tf_libra.{name}", sources=[])
        self.build_dir = build_dir
        self.patterns = patterns
        self.output = build_dir / f"{name}.so"
        self.tests: list[TestProgram] = []

    def add_tests(self, folder: str, units: str) -> None:
        """Adds the tests of a folder below `ops`: one program, and those of `TESTS_ALONE`."""
        files = {path.stem: path for path in sorted(Path("ops", folder).glob("*_test.cc"))}
        alone = [(name, (files.pop(name),)) for name in TESTS_ALONE if name in files]
        for name, sources in [(f"{folder}_test", tuple(files.values())), *alone]:
            self.tests.append(TestProgram(self.build_dir / name, sources, units))

    def flags(self) -> tuple[list[str], list[str]]:
        """What its compiler and its linker need beside the flags of all libraries."""
        return ["-std=c++17", "-fvisibility=hidden"], []

    def shared_header(self, source: Path) -> Path | None:
        """What is compiled once for all units like this one."""
        return None

    def units(self) -> list[Path]:
        """Returns the units of compilation: one per folder, and one per source that has changed.

        Compiled as one unit, the sources of a folder take a third of the time: most of it is
        headers. A source that is newer than the first build in `build_dir` is likely to change
        again, and is a unit of its own from then on.
        """
        found = sorted(path for pattern in self.patterns for path in Path().glob(pattern))
        sources = [path for path in found if not path.name.endswith("_test.cc")]
        marker = self.build_dir / JOINED
        joined_until = marker.stat().st_mtime if marker.exists() else 0.0
        joined = [path for path in sources if path.stat().st_mtime <= joined_until]
        units = [path for path in sources if path not in joined]
        for folder in sorted({path.parent for path in joined}):
            unit = self.build_dir / folder / "units.cc"
            unit.parent.mkdir(parents=True, exist_ok=True)
            write_if_changed(unit, include_all(path for path in joined if path.parent == folder))
            units.append(unit)
        return units

    def object_of(self, unit: Path) -> Path:
        """Returns the path of a unit's object, in the unit's folder below `build_dir`."""
        inside = unit.relative_to(self.build_dir) if self.build_dir in unit.parents else unit
        return self.build_dir / inside.with_suffix(".o")

    def ninja_file(self) -> str:
        """One edge per unit, one to link; ninja learns the headers from the compiler."""
        compile_flags, link_flags = self.flags()
        lines = [
            f"builddir = {self.build_dir}",
            f"cxx = {os.environ.get('CXX', 'g++')}",
            # Without errno, square roots are vector instructions.
            f"cxxflags = {shlex.join(compile_flags)} -I. -O3 -fno-math-errno -DNDEBUG -fPIC"
            " -pthread -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare",
            # -z defs: a symbol that is missing fails here, not in the user's import.
            f"ldflags = -shared -pthread -Wl,-z,defs {shlex.join(link_flags)}",
            *rule("compile", "$cxx $cxxflags $include -MMD -MF $out.d -c $in -o $out"),
            *rule("precompile", "$cxx $cxxflags $level -MMD -MF $out.d -x c++-header $in -o $out"),
            "rule link",
            "  command = $cxx $in $ldflags -o $out",
            "  description = link $out",
        ]
        objects = {unit: self.object_of(unit) for unit in self.units()}
        shared = {unit: self.shared_header(unit) for unit in objects}
        for one in sorted({header for header in shared.values() if header}):
            lines.append(f"build {self.build_dir / one}.gch: precompile {one}")
        for unit, header in shared.items():
            after = f" | {self.build_dir / header}.gch" if header else ""
            lines.append(f"build {objects[unit]}: compile {unit}{after}")
            if header:
                lines.append(f"  include = -include {self.build_dir / header}")
        lines.append(f"build {self.output}: link {' '.join(map(str, objects.values()))}")
        lines += self.test_edges(list(objects.values()), link_flags)
        tests = shlex.join(str(test.path) for test in self.tests)
        lines.append(f"build cc_tests: phony {tests}")
        lines.append(f"build lanes: phony {' '.join(map(str, self.lane_objects()))}")
        lines.append(f"default {self.output}")
        return "\n".join(lines) + "\n"

    def lane_objects(self) -> list[Path]:
        """Returns the objects of `ops/lanes`."""
        folder = self.build_dir / "ops/lanes"
        return [path for path in map(self.object_of, self.units()) if path.parent == folder]

    def test_edges(self, objects: list[Path], link_flags: list[str]) -> list[str]:
        """Returns edges that build the programs of tests, linked with the units they may need.

        Nearly all of a test's compilation would be headers, even precompiled. So a program
        compiles all its tests as one unit. Their own code is not worth optimizing.
        """
        folders = [flag[2:] for flag in link_flags if flag.startswith("-L")]
        run_paths = [f"-Wl,-rpath,{folder}" for folder in folders]
        lines = [
            *rule("compile_test", "$cxx $cxxflags -O0 $include -MMD -MF $out.d -c $in -o $out"),
            "rule link_test",
            "  command = $cxx $in -pthread $testflags -o $out",
            "  description = link $out",
        ]
        runner = self.build_dir / "ops/testing/main.o"
        for header in sorted({test.header for test in self.tests if test.header}):
            lines.append(f"build {self.build_dir / header}.gch: precompile {header}")
            lines.append("  level = -O0")
        if self.tests:
            lines.append(f"build {runner}: compile_test ops/testing/main.cc")
        for test in self.tests:
            unit = test.path.with_suffix(".cc")
            write_if_changed(unit, include_all(test.sources))
            within = self.build_dir / test.units
            units = [str(path) for path in objects if path.is_relative_to(within)]
            after = f" | {self.build_dir / test.header}.gch" if test.header else ""
            lines.append(f"build {test.path}.o: compile_test {unit}{after}")
            if test.header:
                lines.append(f"  include = -include {self.build_dir / test.header}")
            lines.append(f"build {test.path}: link_test {test.path}.o {runner} {' '.join(units)}")
            if test.header:
                lines.append(f"  testflags = {shlex.join([*link_flags, *run_paths])}")
        return lines


def include_all(sources: Iterable[Path]) -> str:
    """Returns a unit that includes all sources."""
    return "".join(f'#include "{source}"\n' for source in sources)


class NcclTunerLibrary(Library):
    """The plugin that NCCL loads."""

    def __init__(self) -> None:
        super().__init__(
            "libnccl-tuner-libra", Path("build") / "nccl-tuner", ("ops/nccl_tuner/*.cc",)
        )
        self.add_tests("nccl_tuner", "")


class TensorFlowLibrary(Library):
    """A library that is compiled against TensorFlow."""

    def __init__(self, name: str, folder: str, version: str, patterns: tuple[str, ...]) -> None:
        key = hashlib.sha256(folder.encode()).hexdigest()[:8]
        super().__init__(name, Path("build") / f"tensorflow-{version}-{key}", patterns)
        header = Path("ops/testing/tensorflow.h")
        # Those of `passes` need nothing else.
        for tested, units in (("passes", "passes"), ("ops", "")):
            sources = tuple(sorted(Path(tested).glob("*_test.cc")))
            program = self.build_dir / f"{tested}_test"
            self.tests.append(TestProgram(program, sources, units, header))
        self.add_tests("lanes", "ops/lanes")

    def shared_header(self, source: Path) -> Path | None:
        """Nearly all of a source's compilation is TensorFlow's headers; those of lanes have none.

        Compiling the header takes longer than a unit of many sources does without it.
        """
        alone = not source.is_relative_to(self.build_dir)
        has_none = source.is_relative_to("ops/lanes")
        return Path("ops/tensorflow_headers.h") if alone and not has_none else None

    def flags(self) -> tuple[list[str], list[str]]:
        """TensorFlow's compile and link flags; importing it takes seconds, so they are kept."""
        kept = self.build_dir / "flags.json"
        if not kept.exists():
            kept.write_text(ask_python(FIND_FLAGS))
        compile_flags, link_flags = json.loads(kept.read_text())
        # -isystem: warnings in TensorFlow's headers are not ours to mend.
        # NDEBUG, above: inline code of its headers has to agree with the code in its libraries.
        return [flag.replace("-I", "-isystem", 1) for flag in compile_flags], link_flags


def write_if_changed(path: Path, text: str) -> None:
    """Writes a generated source only if it differs, so that it is not compiled again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def place(library: Path, target: Path) -> None:
    """Copies if they differ, and renames into place: who has the old one loaded keeps it."""
    if target.exists() and filecmp.cmp(library, target, shallow=False):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}.new")
    shutil.copy(library, fresh)
    fresh.replace(target)


class BuildLibrary(build_ext):
    """Compiles with ninja, and copies the library to where setuptools wants it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without the suffix of CPython modules: TensorFlow loads it, Python does not."""
        return fullname.replace(".", os.sep) + ".so"

    def build_extension(self, ext: Library) -> None:
        """Brings `ext` up to date."""
        target = Path(self.get_ext_fullpath(ext.name))
        with self.built(ext, str(ext.output)):
            place(ext.output, target)

    @contextlib.contextmanager
    def built(self, ext: Library, target: str) -> Iterator[None]:
        """Brings one target of `ext` up to date, and keeps others from building meanwhile."""
        with contextlib.suppress(FileExistsError):
            ext.build_dir.mkdir(parents=True)
            (ext.build_dir / JOINED).touch()
        jobs = self.parallel or len(os.sched_getaffinity(0))
        ninja_file = ext.build_dir / "build.ninja"
        ninja = [sys.executable, "-m", "ninja", "--quiet", "-j", str(jobs), "-f", str(ninja_file)]
        with open(ext.build_dir / "lock", "w") as lock:  # one build at a time in this folder
            fcntl.flock(lock, fcntl.LOCK_EX)
            ninja_file.write_text(ext.ninja_file())
            if subprocess.run([*ninja, target]).returncode:
                raise SystemExit("tf-libra: the extension does not compile, see above")
            yield

    def copy_extensions_to_source(self) -> None:
        """Always: setuptools would keep a newer library of another TensorFlow."""
        for ext in self.extensions:
            place(ext.output, Path(self.get_ext_filename(ext.name)))


class Wheel(bdist_wheel):
    """A wheel for a platform and any Python: TensorFlow loads the libraries, Python does not."""

    def get_tag(self) -> tuple[str, str, str]:
        """As for packages without extensions, but for the platform."""
        return "py3", "none", super().get_tag()[2]


class BuildTests(BuildLibrary):
    """Builds the C++ tests, and prints each program's path."""

    def run(self) -> None:
        """Brings them all up to date."""
        for ext in self.distribution.ext_modules:
            with self.built(ext, "cc_tests"):
                print(*(test.path for test in ext.tests), sep="\n")


class BuildLanes(BuildLibrary):
    """Builds the objects of `ops/lanes`, and prints each one's path."""

    def run(self) -> None:
        """Brings them up to date."""
        ext, _ = self.distribution.ext_modules
        with self.built(ext, "lanes"):
            print(*ext.lane_objects(), sep="\n")


def main() -> None:
    """Decides what to build from the TensorFlow that is there."""
    os.chdir(Path(__file__).resolve().parent)
    answer = ask_python(FIND_TENSORFLOW)
    required = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["tf-libra"]["dependencies"]
    if not answer:
        print(
            "tf-libra: no TensorFlow in this environment, so only the planning part is installed;"
            f" to train, install TensorFlow {' or '.join(SUPPORTED)} and then tf-libra again.",
            file=sys.stderr,
        )
        setup(version=f"{VERSION}+planning.only", install_requires=required)
        return
    folder, version, package = json.loads(answer)
    minor = ".".join(version.split(".")[:2])
    is_supported = minor in SUPPORTED
    if not is_supported and os.environ.get(ANY_TENSORFLOW) != "1":
        raise SystemExit(
            f"tf-libra: TensorFlow {version} is not supported; supported are"
            f" {' and '.join(f'{v}.x' for v in SUPPORTED)}."
        )
    setup(
        version=f"{VERSION}+tf{version.replace('+', '.')}",
        # Builds before a release differ in their interface from day to day.
        install_requires=[*required, f"{package}=={f'{minor}.*' if is_supported else version}"],
        ext_modules=[
            TensorFlowLibrary(
                "_tf_libra", folder, version, ("ops/*.cc", "ops/lanes/*.cc", "passes/*.cc")
            ),
            NcclTunerLibrary(),
        ],
        cmdclass={
            "bdist_wheel": Wheel,
            "build_ext": BuildLibrary,
            "cc_lanes": BuildLanes,
            "cc_tests": BuildTests,
        },
    )


if __name__ == "__main__":
    main()

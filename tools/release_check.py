"""Checks of what tools/release has built: other programs' opinions, clean roots, and a second build.

Each function returns what failed, as lines; what cannot be checked here is added to `skipped`.
"""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# The environment that tools/release makes for maturin.
TOOLS = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parent.parent / "target")) / "release-tools"


def lint(root, dist, skipped):
    """lintian of the .deb, twine of the wheel, and the files that crates would have."""
    checks = [(["lintian", "--fail-on", "error,warning"], "*.deb"), (["twine", "check", "--strict"], "*.whl")]
    failed = []
    for (program, *options), pattern in checks:
        beside = TOOLS / "bin" / program  # where tools/release installs maturin
        found = shutil.which(program) or (beside if beside.exists() else None)
        for path in dist.glob(pattern):
            if not found:
                skipped.append(f"{program} of {path.name}: it is not installed")
            elif subprocess.run([found, *options, path]).returncode:
                failed.append(f"{program} of {path.name}")
    manifests = [root / "Cargo.toml", *sorted(root.glob("src/*/Cargo.toml"))]
    for crate in (re.search(r'^name = "(.*)"', path.read_text(), re.M)[1] for path in manifests):
        list_files = ["cargo", "package", "--list", "--allow-dirty", "-p", crate]
        listed = subprocess.run(list_files, cwd=root, stdout=subprocess.PIPE, text=True)
        strange = [name for name in listed.stdout.split("\n") if re.match(r"(tests|tools|benches|target)/", name)]
        if listed.returncode or strange:
            failed.append(f"cargo package --list of {crate}: {' '.join(strange) or 'see above'}")
    return failed


def try_all(found, root, skipped):
    """Installs each artefact where nothing else of dlfs is, and runs the demo there."""
    failed = []
    ways = {".whl": try_wheel, ".deb": try_deb, ".gz": try_archive}
    for path in found:
        if path.name.endswith("-symbols.tar.gz"):
            continue
        print(f"\n== {path.name}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                ways[path.suffix](path, Path(scratch), root, skipped)
            except (subprocess.CalledProcessError, OSError, ValueError) as error:
                failed.append(f"{path.name}: {error}")
    if not found:
        failed.append("there is nothing to try: tools/release builds it")
    return failed


def try_wheel(path, scratch, root, skipped):
    """With Debian's Python and what the wheel asks for; without that Python, in an environment of this one."""
    if inside := clean_root(scratch / "root", "python3, libstdc++6"):
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        version = said("/usr/bin/python3", "-c", ask)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", path]
        site = scratch / "root" / "opt" / "site"
        call(*install, "--target", site, "--python-version", version, "--only-binary", ":all:")  # with numpy, from PyPI
        python = [*inside, "/usr/bin/python3", "-c"]
        find = "import sys; sys.path.insert(0, '/opt/site'); "
        call(*python, f"{find}import dlfs; print(dlfs.__version__)")
        return demo(*python, f"{find}from dlfs._cli import main; sys.exit(main())")
    skipped.append(f"{path.name} in a clean root: dpkg has no python3; it is tried in an environment")
    python = scratch / "venv" / "bin" / "python"
    call(sys.executable, "-m", "venv", scratch / "venv")
    call(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", path)
    call(python, "-c", "import dlfs; print(dlfs.__version__)")
    demo(python.with_name("dlfs"))


def try_deb(path, scratch, root, skipped):
    inside = clean_root(scratch, said("dpkg-deb", "--field", path, "Depends"))
    if not inside:
        skipped.append(f"{path.name} in a clean root: dpkg does not have what it depends on")
        return
    call("dpkg-deb", "-x", path, scratch)
    demo(*inside, "/usr/bin/dlfs")
    try_container(path.parent, skipped)


def try_container(dist, skipped):
    """The Containerfile beside the .deb."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    programs = [name for name in ("podman", "docker") if shutil.which(name)]
    program = next((name for name in programs if subprocess.run([name, "info"], **quiet).returncode == 0), None)
    if not program:
        skipped.append("the container: neither podman nor docker runs here")
        return
    call(program, "build", "-t", "dlfs-trial", "-f", dist / "Containerfile", dist)
    if json.loads(said(program, "run", "--rm", "dlfs-trial", "demo", "--json"))["verified"] is not True:
        raise ValueError("the demo in the container has verified nothing")


def clean_root(place, depends):
    """Makes a root of the files of these Debian packages and of those that they depend on, and of no others.

    Returns the command that runs a program in it; nothing where dpkg does not have them.
    """
    try:
        packages = below(depends)
    except FileNotFoundError:  # dpkg, or a package
        return []
    for name in ("bin", "lib", "lib64", "sbin"):
        (place / "usr" / name).mkdir(parents=True)
        (place / name).symlink_to(f"usr/{name}")
    for name in ("tmp", "opt"):
        (place / name).mkdir()
    for package in packages:
        for file in map(Path, said("dpkg-query", "-L", package).split("\n")):
            copied = place / file.relative_to("/")
            if file.is_file() and not copied.exists():
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, copied)
    return ["unshare", "--map-root-user", "--root", place]


def below(depends):
    """The packages of a list of dependencies and, of these, again; of alternatives those that are installed."""
    found, todo = set(), depends
    while todo:
        needs = [re.findall(r"(?:^|\|)\s*([\w.+-]+)", each) for each in todo.split(",") if each.strip()]
        todo = ""
        for names in needs:
            told = {name: facts for name in names if (facts := installed(name)) is not None}
            if not told:
                raise FileNotFoundError(f"{' | '.join(names)} is not installed")
            todo += "".join(f"{told[name]}," for name in told.keys() - found)
            found |= told.keys()
    return found


def installed(name):
    """What an installed package depends on; None of others."""
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Depends},${Pre-Depends}", name]
    asked = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    status, _, depends = asked.stdout.partition(" ")
    return depends if status == "installed" else None


def try_archive(path, scratch, root, skipped):
    """Unpacked into a root that has the C library alone; here, examples/read.c is built with its library, and reads."""
    inside, name = clean_root(scratch / "root", "libc6, libgcc-s1"), path.name.removesuffix(".tar.gz")
    if not inside:
        skipped.append(f"{path.name} in a clean root: dpkg does not have libc6; it is tried here")
    with tarfile.open(path) as tar:
        tar.extractall(scratch / "root" / "opt", filter="data")
    prefix = scratch / "root" / "opt" / name
    programs = Path("/opt", name, "bin") if inside else prefix / "bin"
    demo(*inside, programs / "dlfs")
    for program in ("dlfs-bench", "dlfs-sim"):
        call(*inside, programs / program, "--version")
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        skipped.append(f"libdlfs of {path.name}: cc and pkg-config are not both installed")
        return
    os.environ["PKG_CONFIG_PATH"] = str(prefix / "lib" / "pkgconfig")
    flags = said("pkg-config", "--cflags", "--libs", "dlfs").split()
    call("cc", root / "examples" / "read.c", *flags, f"-Wl,-rpath,{prefix}/lib", "-o", scratch / "read")
    call(prefix / "bin" / "dlfs", "import", prefix / "share", scratch / "share.dlfs")
    call(scratch / "read", scratch / "share.dlfs")


def demo(*dlfs):
    call(*dlfs, "--version")
    verified = json.loads(said(*dlfs, "demo", "--json", env={"PATH": "/usr/bin:/bin"}))["verified"]
    if verified is not True:
        raise ValueError("the demo has verified nothing")
    print("the demo has verified every sample")


def call(*command):
    print("+", *command, flush=True)
    subprocess.run(list(map(str, command)), check=True)


def said(*command, env=None):
    command = list(map(str, command))
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout.strip()


def twice(root, parts):
    """Builds the commit in two clones at paths of different lengths; returns what differs in their packages."""
    made = []
    for name in ("one", "the-other"):
        clone = root / "target" / "twice" / name
        shutil.rmtree(clone, ignore_errors=True)
        call("git", "clone", "--quiet", root, clone)
        (clone / "target").mkdir()
        tools = root / "target" / "release-tools"
        if tools.exists():
            (clone / "target" / "release-tools").symlink_to(tools)
        env = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
        subprocess.run([clone / "tools" / "release", "--only", parts], env=env)  # says itself what it leaves out
        packages = clone / "target" / "packages"
        made.append({path.name: path for path in packages.iterdir() if path.name not in ("lock", "SHA256SUMS")})
    one, other = made
    found = []
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            found.append(f"{name}: only one build has it")
        elif one[name].read_bytes() == other[name].read_bytes():
            print(f"EQUAL     {name}")
        else:
            found += [f"{name}: {difference}" for difference in differences(one[name], other[name])]
    return found


def differences(one, other):
    """The files in two packages that differ; of programs, their sections."""
    ours, theirs = contents(one), contents(other)
    names = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    for name in names:
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None:
            yield f"{name}: only one build has it"
        elif a[1] == b[1]:
            yield f"{name}: mode, owner or time: {a[0]} and {b[0]}"
        elif a[1].startswith(b"\x7fELF"):
            yield f"{name}: sections {', '.join(sections(a[1], b[1]))}{cause(a[1], b[1])}"
        else:
            yield f"{name}: its bytes{cause(a[1], b[1])}"
    if not names:
        yield "how it is packed"


def cause(one, other):
    """The causes that show in the bytes: paths of the two clones, and times of the two builds."""
    found = ["the folder of its build"] if b"/twice/one" in one or b"/twice/the-other" in other else []
    clock = re.compile(rb"\b\d\d:\d\d:\d\d\b")
    found += ["a time"] if clock.findall(one) != clock.findall(other) else []
    return f", which have {' and '.join(found)}" if found else ""


def contents(path):
    """What a package says of each file, and the file."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as zip:
            told = {info.filename: f"{info.external_attr:x} {info.date_time}" for info in zip.infolist()}
            return {name: (how, zip.read(name)) for name, how in told.items()}
    if path.suffix not in (".deb", ".gz"):
        return {path.name: ("", path.read_bytes())}
    data = path.read_bytes()
    if path.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        told = {info.name: f"{info.mode:o} {info.uname} {info.mtime}" for info in tar}
        files = {info.name: tar.extractfile(info).read() for info in tar if info.isfile()}
        return {name: (how, files.get(name, b"")) for name, how in told.items()}


def sections(*programs):
    """The names of sections that differ between two programs."""
    found = []
    for program in programs:
        with tempfile.NamedTemporaryFile() as file:
            file.write(program)
            file.flush()
            table = said("readelf", "--section-headers", "--wide", file.name)
        rows = re.findall(r"\] (\S+) +\S+ +[0-9a-f]{16} ([0-9a-f]{6,}) ([0-9a-f]{6,}) ", table)
        digest = hashlib.sha256
        found.append({name: digest(program[int(at, 16) :][: int(size, 16)]).digest() for name, at, size in rows})
    one, other = found
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)] or ["of none"]

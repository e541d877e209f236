#!/usr/bin/env python3
"""The lists of what releases promise, beside this script: docs/promises.md says what that means.

  tests/promised/lists.py                 rewrites the lists of the sources: rust.txt, c.txt, python.txt
  tests/promised/lists.py --dlfs PATH     and that of the command at PATH, which has all features: command.txt
  ... --check                             changes nothing, and fails where a list is not what the tree has

A line that is new may come with any release. A line that is gone or differs breaks programs: it needs the next minor
version before 1.0, and a line in CHANGELOG.md.
"""

import argparse
import ast
import difflib
import functools
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--dlfs", type=Path, metavar="PATH")
    args = parser.parse_args()
    lists = {"rust.txt": rust(), "c.txt": c(), "python.txt": python()}
    if args.dlfs:
        lists["command.txt"] = command(args.dlfs.resolve())
    wrong = [name for name, lines in lists.items() if not settle(HERE / name, lines, args.check)]
    if wrong:
        sys.exit(f"{', '.join(wrong)}: run tests/promised/lists.py; a line that is gone or differs breaks programs")


def settle(path, lines, check):
    """Writes a list, or compares it."""
    text = "".join(f"{line}\n" for line in lines)
    if not check:
        path.write_text(text)
        return True
    old = path.read_text() if path.exists() else ""
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), path.name, "the tree", n=0))
    return old == text


def rust():
    """The public items of the library, by module: `unreachable_pub` holds `pub` to what other crates can name."""
    lines = set()
    for module, files in modules():
        for file in files:
            lines |= {f"{module} {item}" for item in items(without_comments_and_strings(file.read_text()))}
    return sorted(lines)


def modules():
    """The modules that src/lib.rs shows, and their files."""
    root = (ROOT / "src/lib.rs").read_text()
    manifest = (ROOT / "Cargo.toml").read_text()
    for hidden, crate, names, alias in re.findall(
        r"(#\[doc\(hidden\)\]\n)?pub use (dlfs_\w+)(?:::(\{[^}]*\}|\w+))?(?: as (\w+))?;", root
    ):
        if hidden:
            continue
        folder = ROOT / re.search(rf'^{crate.replace("_", "-")} = {{ path = "(.*?)"', manifest, re.M)[1]
        if alias:
            shown = re.findall(r"^pub mod (\w+);", (folder / "lib.rs").read_text(), re.M)
            apart = {name for name in shown if f"pub use {crate}::{name};" in root}
            yield alias, [file for file in sorted(folder.rglob("*.rs")) if file.stem not in apart]
        for name in re.findall(r"\w+", names):
            yield name, files_of(folder, name)
    for name in re.findall(r"^pub mod (\w+);", root, re.M):
        yield name, files_of(ROOT / "src", name)


def files_of(folder, name):
    """The files of a module, without those of its hidden ones."""
    beside = folder / f"{name}.rs"
    if beside.exists():
        return [beside]
    files = sorted((folder / name).rglob("*.rs"))
    hidden = [(file.parent, one) for file in files for one in re.findall(HIDDEN, file.read_text())]
    is_hidden = lambda file: any(file == at / f"{one}.rs" or at / one in file.parents for at, one in hidden)
    return [file for file in files if not is_hidden(file)]


HIDDEN = r"#\[doc\(hidden\)\]\n(?:#.*\n)*pub mod (\w+);"


def items(code):
    """The public items of a file, as rustfmt lays it out: a block at the left margin, and what is indented by 4 in it.
    Implementations of traits are left out."""
    for block in parts(code, ""):
        head = signature(block)
        kind = re.match(r"(?:pub )?(?:const |unsafe |async )*(\w+)", head)
        if kind is None or not head.startswith(("pub ", "impl")) or " for " in head:
            continue
        if kind[1] != "impl" and (kind[1] != "use" or " as " in head):
            yield head
        name = re.sub(r"^(pub |impl |unsafe |enum |trait |struct |union )+", "", without_generics_of_impl(head))
        name = re.split(r" where |: |\(| = ", re.sub(r" = \w+(?=[,>])", "", name))[0]
        body = block.split("{\n", 1)[-1] if kind[1] in ("impl", "enum", "trait", "struct", "union") else ""
        for part in filter(None, parts(body, "    ")):
            if kind[1] in ("enum", "trait"):
                yield f"{name}::{signature(part)}"
            elif part.startswith("pub "):
                yield f"{name}::{signature(part)[4:]}"


def parts(code, indent):
    """The pieces of a block, without what is hidden or only for tests."""
    hidden = False
    for part in re.split(rf"^{indent}(?=[\w#])(?!where\b)", code, flags=re.M):
        before, part = hidden, part.strip()
        hidden = part.startswith("#") and (before or "doc(hidden)" in part or "cfg(test)" in part)
        if not part.startswith("#") and not before and not part.startswith("pub("):
            yield part


def without_generics_of_impl(head):
    depth = 0
    for at, letter in enumerate(head):
        depth += (letter == "<") - (letter == ">" and head[at - 1] != "-")
        if depth == 0 and letter == " ":
            return "impl" + head[at:] if head.startswith("impl<") else head
    return head


def signature(part):
    part = part.split("\n}")[0]
    if re.match(r"impl|pub (unsafe )?trait|(pub )?((const|unsafe|async) )*fn ", part):
        part = re.split(r"\s\{", part)[0]
    elif re.match(r"pub (enum|struct|union|mod) ", part):
        part = re.split(r"\s\{\n", part)[0]
    elif re.match(r"(pub )?(const|static) ", part):
        part = part.split(" = ")[0]
    part = re.sub(r"\n *#\[.*", "", part)
    part = re.sub(r"\bmut (?=\w+: )", "", part)  # a parameter's own matter
    part = re.sub(r"([(<]) | (?=[)>])|,(?= [)>])", r"\1", " ".join(part.split())).rstrip(",;")
    return part.replace(", }", " }").replace("{ }", "{}")


def without_comments_and_strings(text):
    pattern = r'//[^\n]*|/\*.*?\*/|b?r(#+)".*?"\1|b?"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\''
    keep = lambda found: '""' if found[0].lstrip("br#").startswith('"') else ("''" if found[0][0] == "'" else "")
    return re.sub(pattern, keep, text, flags=re.S)


def c():
    """The header without its comments: functions, and the fields of structs in their order."""
    header = (ROOT / "tools/capi/dlfs.h").read_text()
    lines = re.sub(r"//.*", "", header).splitlines()
    functions = set(re.findall(r"^(?!typedef)\w[\w ]*[ *](dlfs_\w+)\(", "\n".join(lines), re.M))
    exported = set(re.findall(r"dlfs_\w+", (ROOT / "tools/capi/dlfs.map").read_text()))
    if functions != exported:
        sys.exit(f"only one of dlfs.h and dlfs.map in tools/capi has {', '.join(sorted(functions ^ exported))}")
    return [line.rstrip() for line in lines if line.strip()]


def python():
    """The names in `__all__` of each public module, with parameters, fields and methods, from stubs and sources."""
    lines = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.stem.startswith("_") and path.stem != "__init__":
            continue
        module = ".".join(["dlfs", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
        for name in public(parsed(path)):
            at, found = resolve(path, name)
            lines += [f"{module}.{line}" for line in ([name] if found is None else described(at, found))]
    return sorted(set(lines))


PACKAGE = ROOT / "tools/python/python/dlfs"


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def resolve(path, name):
    """The file and the definition of a name that a module has, if the package defines it."""
    for node in parsed(path).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return path, node
        if isinstance(node, ast.ImportFrom) and node.level:
            for one in node.names:
                if (one.asname or one.name) == name:
                    base = path.parents[node.level - 1] / (node.module or "__init__").replace(".", "/")
                    files = [base.with_suffix(".py"), base.with_suffix(".pyi"), base / "__init__.py"]
                    return resolve(next(file for file in files if file.exists()), one.name)
    return path, None


def public(tree):
    """The names in `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def described(path, node):
    if isinstance(node, ast.FunctionDef):
        return [of_function(node)]
    bases = ", ".join(map(ast.unparse, node.bases))
    return [f"{node.name}({bases})", *(f"{node.name}.{line}" for line in members(path, node).values())]


def of_function(node):
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){returns}"


def members(path, node):
    """The methods and fields of a class, by name, those of its bases in the package among them."""
    found = {}
    for base in node.bases:
        at, of = resolve(path, ast.unparse(base))
        found |= members(at, of) if isinstance(of, ast.ClassDef) else {}
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and (not one.name.startswith("_") or one.name.endswith("__")):
            found[one.name] = of_function(one)
        elif isinstance(one, ast.AnnAssign) and not one.target.id.startswith("_"):
            found[one.target.id] = f"{one.target.id}: {ast.unparse(one.annotation)}"
    return found


def command(dlfs):
    """The options of each command, from the manual pages, and the keys of what it prints as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([dlfs, "man", folder], check=True, stdout=subprocess.DEVNULL)
        lines = {line for page in Path(folder).glob("*.1") for line in options(page)}
    with tempfile.TemporaryDirectory() as folder:
        make_sources(Path(folder))
        for words in RUN:
            lines |= keys(run_json(dlfs, words, folder), words)
        serve = [dlfs, "serve", "train.dlfs", "--listen", "127.0.0.1:0", "--json"]
        with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE, text=True) as target:
            try:
                said = target.stdout.readline()
                lines |= keys(said, "serve")
                for words in RUN_REMOTELY:
                    words = words.format(**json.loads(said))
                    lines |= keys(run_json(dlfs, words, folder), words)
            finally:
                target.terminate()
    return sorted(lines)


def make_sources(folder):
    for name, length in (("cat/1", 300), ("dog/2", 3000)):
        for sample in range(6):
            path = folder / "source" / f"{name}{sample}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes([sample]) * length)
    with tarfile.open(folder / "shard.tar", "w") as shard:
        shard.add(folder / "source", "")
    (folder / "tokens.bin").write_bytes(b"\x01\0\x02\0\x03\0\0\0" * 50)


# Commands about a small image; `|` divides a command from its arguments. Two print no JSON.
RUN = """
import | source train.dlfs
import | tokens.bin tokens.dlfs --tokens u16 --end-of-document 0
index | shard.tar --index indexes
info |
stat | train.dlfs
ls | -R train.dlfs
verify | train.dlfs
read | train.dlfs --batch-size 4 --order grouped --tier ram:16M
tokens plan | tokens.dlfs --seq-len 8
select | train.dlfs id<6 --split a=0.5,b=0.5 --out views
shuffle-report | train.dlfs --batch-size 2
snapshot save | train.dlfs saved
snapshot check | train.dlfs saved
export | train.dlfs copy
+catalog add | dlfs://FOLDER/catalog/train train.dlfs
+catalog tag | dlfs://FOLDER/catalog/train@1 best
catalog ls | FOLDER/catalog
catalog show | dlfs://FOLDER/catalog/train
delete | train.dlfs cat/11.bin
purge | train.dlfs
rebuild | train.dlfs
import-parts plan | source parts.dlfs --output plan
import-parts part | plan 0
import-parts commit | plan
""".strip().splitlines()
RUN_REMOTELY = [
    "discover | {listen}",
    "list-subsys | {address} --output json",
    "id-ctrl | {address} --output json",
    "id-ns | {address} --output json",
]


def run_json(dlfs, words, folder):
    """The output of a command that prints JSON."""
    wanted = [] if words.startswith("+") or "json" in words else ["--json"]
    command = [dlfs, *words.lstrip("+").replace("|", "").replace("FOLDER", folder).split(), *wanted]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if run.returncode:
        sys.exit(f"dlfs {words}: {run.stderr}")
    return "" if words.startswith("+") else run.stdout


def options(page):
    """The options and arguments of a command, each with its value."""
    text = page.read_text().replace("\\-", "-")
    name = re.search(r"^\\fB(dlfs.*?)\\fR", text.split(".SH SYNOPSIS")[1], re.M)[1]
    for line in re.findall(r"^\.TP\n((?:\\fB-|<|\[).*)", text, re.M):
        plain = re.sub(r"\\f.", "", line)
        yield f"{name} {plain.split(' [default')[0].strip()}"


def keys(printed, words):
    """The keys in lines of JSON, or in one value over several lines."""
    texts = printed.splitlines() if printed.startswith("{") and "\n}" not in printed else [printed]
    found = set()
    for text in filter(None, texts):
        walk(json.loads(text), "", found)
    return {f"dlfs {words.split('|')[0].strip()} {{}}{key}" for key in found}


def walk(value, path, found):
    if isinstance(value, dict):
        for key, below in value.items():
            found.add(f"{path}.{key}")
            walk(below, f"{path}.{key}", found)
    elif isinstance(value, list):
        for below in value:
            walk(below, f"{path}[]", found)


if __name__ == "__main__":
    main()

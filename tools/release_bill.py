"""The packages that are in a release: their licences as one page, and their list in CycloneDX's format.

`cargo metadata` says which packages the products are linked from, and the texts come from the registry's sources of
exactly these versions. Procedural macros, build scripts and what only tests need are in no product.
"""

import collections
import json
import re
import subprocess
import time
import tomllib
import uuid
from pathlib import Path
from urllib.parse import quote

PRODUCTS = ["dlfs-cli", "dlfs-python", "dlfs-capi", "dlfs-bench", "dlfs-sim", "dlfs-preload"]
FEATURES = "dlfs-cli/full,dlfs-python/default,dlfs-capi/full"
TEXTS = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|COPYRIGHT|UNLICENSE)", re.I)
# A script with such a name, and the licences of scripts that xz brings; neither is linked.
SCRIPTS = re.compile(r"\.sh$|GPL")


class Bill:
    """What `cargo metadata` knows, as far as it is in a product."""

    def __init__(self, root):
        self.root, self.without_text = root, []
        command = ["cargo", "metadata", "--locked", "--format-version", "1", "--features", FEATURES]
        command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
        printed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE).stdout
        known = json.loads(printed)
        packages = {package["id"]: package for package in known["packages"]}
        needs = {node["id"]: node["deps"] for node in known["resolve"]["nodes"]}
        todo = [id for id, package in packages.items() if package["name"] in PRODUCTS]
        self.packages, self.needs = {}, {}
        while todo:
            id = todo.pop()
            if id in self.packages:
                continue
            linked = [dep["pkg"] for dep in needs[id] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            self.packages[id] = packages[id]
            self.needs[id] = [dep for dep in linked if not is_macro(packages[dep])]
            todo += self.needs[id]

    def licences(self):
        """A page with a table of the packages of others, and each text once."""
        others = [package for package in self.packages.values() if package["source"]]
        others.sort(key=lambda package: (package["name"], package["version"]))
        holders = collections.defaultdict(list)
        for package in others:
            for text in self.texts(package):
                holders[text].append(f"{package['name']} {package['version']}")
        page = [
            "# Packages in dlfs\n\nPrograms and libraries of dlfs contain these packages, and the standard library of"
            " Rust (MIT OR Apache-2.0,\nRUST_STD.html beside this page). The texts of their licences follow.\n",
            "| package | licence | source |\n|---|---|---|",
        ]
        page += [f"| {p['name']} {p['version']} | {expression(p)} | {p['repository'] or ''} |" for p in others]
        page += [f"\n## {', '.join(names)}\n\n~~~~text\n{text}\n~~~~" for text, names in holders.items()]
        return "\n".join(page) + "\n"

    def texts(self, package):
        """The texts of a package's licences; those of C sources in it lie deeper."""
        folder = Path(package["manifest_path"]).parent
        found = [path for path in sorted(folder.rglob("*")) if path.is_file() and TEXTS.match(path.name)]
        texts = [path.read_text(errors="replace").strip() for path in found if not SCRIPTS.search(path.name)]
        if not texts and "Apache-2.0" in package["license"]:
            texts = [(self.root / "LICENSE-APACHE").read_text().strip()]
        if not texts:
            self.without_text.append(f"the licence of {package['name']} {package['version']}: its source has no text")
        return texts

    def cyclonedx(self, version, epoch):
        """CycloneDX 1.5 in JSON: https://cyclonedx.org/docs/1.5/json/."""
        checksums = {
            (package["name"], package["version"]): package.get("checksum")
            for package in tomllib.loads((self.root / "Cargo.lock").read_text())["package"]
        }
        urls = {id: f"pkg:cargo/{p['name']}@{quote(p['version'])}" for id, p in self.packages.items()}
        components = []
        for id, package in self.packages.items():
            component = {
                "type": "library",
                "bom-ref": urls[id],
                "name": package["name"],
                "version": package["version"],
                "licenses": [{"expression": expression(package)}],
                "purl": urls[id],
            }
            if checksum := checksums[package["name"], package["version"]]:
                component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
            components.append(component)
        components.sort(key=lambda component: component["bom-ref"])
        products = [id for id, package in self.packages.items() if package["name"] in PRODUCTS]
        needs = {urls[id]: sorted({urls[dep] for dep in deps}) for id, deps in self.needs.items()}
        needs["dlfs"] = sorted(urls[id] for id in products)
        body = {
            "metadata": {
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
                "component": {"type": "application", "bom-ref": "dlfs", "name": "dlfs", "version": version},
            },
            "components": components,
            "dependencies": [{"ref": ref, "dependsOn": needs[ref]} for ref in sorted(needs)],
        }
        # The same packages at the same commit have the same number.
        number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body))
        head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{number}", "version": 1}
        return json.dumps(head | body, indent=1) + "\n"


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def expression(package):
    """The SPDX expression; old packages write a slash for OR."""
    return re.sub(r" ?/ ?", " OR ", package["license"])

"""Results that stay, for the benches in Python: see benches/support/results.rs, which does the same in Rust."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = (":!benches/results", ":!docs")


def record(name, command, body):
    """With DLFS_RESULTS=1 adds `body`, Markdown, as a dated section to benches/results/NAME.md."""
    if os.environ.get("DLFS_RESULTS") != "1":
        return
    path = ROOT / "benches" / "results" / f"{name}.md"
    title = f"{ask('date', '-u', '+%F')}, commit {commit()}"
    added = f"## {title}\n\n    {command}\n\nMachine: {machine()}.\n\n{body.strip()}\n"
    before = path.read_text() if path.exists() else f"# {name}\n\nNewest first.\n"
    at = before.find("\n## ")
    path.write_text(f"{before.rstrip()}\n\n{added}" if at < 0 else f"{before[:at + 1]}{added}{before[at:]}")
    print(f"added to {path}")


def commit():
    """What is checked out, and whether it has changes other than results and the pages made of them."""
    changes = ask("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--", ".", *NOT_MEASURED)
    return ask("git", "-C", ROOT, "rev-parse", "--short", "HEAD") + (" with changes" if changes else "")


def machine():
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    memory = int(re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.M).group(1))
    cpus = len(os.sched_getaffinity(0))
    name, kernel = model.group(1) if model else "unknown", os.uname().release.partition("-")[0]
    return f"{name}, {cpus} processors, {round(memory / 2**20)} GiB, Linux {kernel}"


def ask(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"

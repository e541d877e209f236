"""Tests of behaviour, again and again beside compilers: `tools/check --flaky N`.

A test that fails once in a hundred runs on a busy machine waits for a time instead of an event. Half of the runs have
the scheduler's idle priority, so that what they wait for is late; in the other half they share the processors.
"""

import collections
import json
import os
import re
import shutil
import subprocess
import time

# How long one run of a program may take beside compilers.
LIMIT_S = 3600


def run(root, features, rounds):
    """Runs them, prints what failed and how often; returns the exit code."""
    programs = build(features)
    failures, runs = collections.Counter(), collections.Counter()
    load = Load(root, features)
    try:
        for number in range(rounds):
            for name, program, folder in programs:
                load.keep_up()
                began = time.monotonic()
                idle = number % 2 == 1
                passed, failed, output = once(program, folder, idle)
                runs[name] += 1
                for test in failed:
                    failures[f"{name}: {test}"] += 1
                    print(output if test == UNKNOWN else told_by(test, output), flush=True)
                took = time.monotonic() - began
                how = "at idle priority" if idle else "beside compilers"
                print(f"run {number + 1} of {rounds}, {name}, {how}: {passed} passed, {len(failed)} failed, {took:.0f} s", flush=True)
    finally:
        load.end()
    for test, times in failures.most_common():
        print(f"FLAKY    {test}: failed in {times} of {runs[test.split(':')[0]]} runs")
    print(f"{sum(runs.values())} runs of {len(programs)} programs; {len(failures)} tests failed")
    return 1 if failures else 0


def build(features):
    """The test programs: what cargo calls them, where they lie, and the folder that they run in."""
    command = ["cargo", "test", "--workspace", "--tests", "--no-run", "--locked", *features]
    built = subprocess.run([*command, "--message-format", "json"], stdout=subprocess.PIPE, text=True, check=True)
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"] and "test" in message["target"]["kind"]:
            folder = os.path.dirname(message["manifest_path"])
            found.append((f"{os.path.basename(folder)}/{message['target']['name']}", message["executable"], folder))
    return sorted(found)


def once(program, folder, idle):
    """Runs a program; returns how many tests passed, which failed, and what it printed."""
    def lower():
        if idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    env = {**os.environ, "CARGO_MANIFEST_DIR": folder}
    try:
        ran = subprocess.run(
            [program, "--skip", "interop"], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S, preexec_fn=lower,
        )
        code, output = ran.returncode, ran.stdout
    except subprocess.TimeoutExpired as late:
        code, output = None, (late.stdout or b"").decode(errors="replace")
    failed = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", output, re.M)
    if code != 0 and not failed:
        failed = [UNKNOWN]
    return len(re.findall(r"^test \S+.* \.\.\. ok", output, re.M)), failed, output


def told_by(test, output):
    """What a failed test printed."""
    found = re.search(rf"^---- {re.escape(test)} stdout ----\n(.*?)(?=^---- |^failures:)", output, re.M | re.S)
    return f"---- {test}\n{found[1] if found else output[-4000:]}"


class Load:
    """A compiler that never ends, in a target folder of its own."""

    def __init__(self, root, features):
        self.target = os.path.join(root, "target", "flaky")
        self.command = ["cargo", "check", "-p", "dlfs", "--lib", "--locked", "--target-dir", self.target]
        self.running = None

    def keep_up(self):
        """Begins it, if it is not running."""
        if self.running is None or self.running.poll() is not None:
            # All other crates stand on this one, so all are compiled again.
            clean = ["cargo", "clean", "-p", "dlfs-base", "--target-dir", self.target]
            loop = f"while :; do {' '.join(clean)}; {' '.join(self.command)}; done"
            self.running = subprocess.Popen(
                ["sh", "-c", loop], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def end(self):
        """Ends it, and removes what it built."""
        if self.running is not None:
            os.killpg(self.running.pid, 9)
            self.running.wait()
        shutil.rmtree(self.target, ignore_errors=True)


UNKNOWN = "the whole program, by a signal, a time limit or before its tests"

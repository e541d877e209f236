#!/usr/bin/env python3
"""Measure data loaders on the same data, in one run.  See README.md.

    bench_peers.py --profiles small,imagenet,large --modes warm,cold --repeats 3 \\
                   --out results.json --md table.md

Every measurement is a fresh process (this script with --child) that imports the
loader, opens the data, waits for the parent's go (the parent warms or drops the
page cache in between), then runs the epoch(s).
"""
import argparse
import collections
import json
import os
import platform
import random
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import results

BATCH = {"small": 256, "imagenet": 64, "mixed": 256, "large": 4}
# cores that something else may use during a run before it counts as disturbed
# (the kernel's own threads for the run's I/O are in this, hence more for cold)
NOISE = {"warm": 0.25, "cold": 0.45}
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


# ====================================================================== /proc
def tree(pid):
    """pid and all its living descendants."""
    out, todo = [], [pid]
    while todo:
        p = todo.pop()
        out.append(p)
        try:
            for t in os.listdir(f"/proc/{p}/task"):
                with open(f"/proc/{p}/task/{t}/children") as f:
                    todo += map(int, f.read().split())
        except OSError:
            pass
    return out


def cpu_of_tree(pid):
    """(user, sys) seconds used by pid, its living descendants, and every
    descendant already reaped.  The caller's own share is exact (getrusage)."""
    user = syst = 0.0
    for p in tree(pid):
        try:
            with open(f"/proc/{p}/stat") as f:
                v = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ut, st, cut, cst = (int(x) / TICK for x in v[11:15])
        if p == os.getpid():
            me = resource.getrusage(resource.RUSAGE_SELF)
            ut, st = me.ru_utime, me.ru_stime
        user += ut + cut
        syst += st + cst
    return user, syst


def mem_of_tree(pid):
    """(RSS, anonymous + shared memory) bytes of the tree.  RSS counts a page
    once for each process that maps it, and mapped page cache (LMDB, Arrow ...)."""
    rss = anon = 0
    for p in tree(pid):
        try:
            with open(f"/proc/{p}/statm") as f:
                v = f.read().split()
            rss += int(v[1]) * PAGE
            with open(f"/proc/{p}/status") as f:
                for line in f:
                    if line.startswith(("RssAnon", "RssShmem")):
                        anon += int(line.split()[1]) * 1024
        except OSError:
            pass
    return rss, anon


def system_busy():
    """CPU seconds all cores spent on anything but idle/iowait, and stolen."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    return (v[0] + v[1] + v[2] + v[5] + v[6]) / TICK, v[7] / TICK


def disk_read_bytes():
    total = 0
    with open("/proc/diskstats") as f:
        for line in f:
            v = line.split()
            if v[2].startswith(("vd", "sd", "nvme", "xvd")) and not v[2][-1].isdigit() or v[2].startswith("nvme") and "p" not in v[2]:
                total += int(v[5]) * 512
    return total


# ====================================================================== child
def child(cfg):
    ctl_r, ctl_w = cfg["ctl"]
    os.set_inheritable(ctl_r, False)
    os.set_inheritable(ctl_w, False)

    def say(obj):
        os.write(ctl_w, (json.dumps(obj) + "\n").encode())

    t0 = time.perf_counter()
    from dlbench import base, registry
    cls = registry.load(cfg["peer"])
    meta = json.load(open(cfg["manifest"]))
    peer = cls(meta, cfg["src"], cfg["out"])
    peer.mode = cfg["mode"]
    t1 = time.perf_counter()
    peer.setup(cfg["batch"], cfg["workers"])
    t2 = time.perf_counter()
    stage = memoryview(bytearray(meta["max_size"] * cfg["batch"]))     # touched as used
    if meta["mean_size"] > 1 << 20:
        stage[:] = bytes(len(stage))                    # fault it in outside the timed part
    say(dict(ready=1, import_s=t1 - t0, setup_s=t2 - t1, mem=mem_of_tree(os.getpid())))
    os.read(ctl_r, 1)                                                   # go

    epochs = []
    for e in range(cfg["epochs"]):
        epochs.append(one_epoch(peer, base, meta, stage, cfg, cfg["seed"] + e, say))
    peer.close()
    say(dict(done=1, epochs=epochs))
    sys.stdout.flush()
    os._exit(0)             # no library's atexit may hang or skew the next run


def one_epoch(peer, base, meta, stage, cfg, seed, say):
    n, batch, check_all = meta["n"], cfg["batch"], cfg["check_all"]
    rng = random.Random(seed)
    nb = -(-n // batch)
    keep_at = set(rng.sample(range(nb), min(nb, 32))) if meta["mean_size"] < 1 << 20 else set()
    kept, ids, nbytes, first, k, sizes = [], [], 0, None, 0, []
    pid = os.getpid()
    busy0, steal0 = system_busy()
    disk0 = disk_read_bytes()
    say(dict(epoch_start=1))
    outside0 = peer.outside_cpu()
    u0, s0 = cpu_of_tree(pid)
    t0 = time.perf_counter()
    for items in peer.epoch(seed, batch, cfg["workers"]):
        if first is None:
            first = time.perf_counter() - t0
        o = 0
        for sid, buf in items:                  # hand over: copy to the staging buffer
            m = len(buf)
            stage[o:o + m] = buf
            o += m
            ids.append(sid)
        if check_all and cfg["peer"] != "null":
            for sid, buf in items:
                assert base.check_record(buf) == sid
        elif k in keep_at:
            kept.append((items[0][0], bytes(items[0][1])))
        nbytes += o
        k += 1
        sizes.append(len(items))
    t1 = time.perf_counter()
    u1, s1 = cpu_of_tree(pid)
    outside1 = peer.outside_cpu()
    busy1, steal1 = system_busy()
    disk1 = disk_read_bytes()

    # ---- untimed checks: every id once, right total, crc of a sample of items
    bad = []
    if len(ids) != n or sorted(ids) != list(range(n)):
        c = collections.Counter(ids)
        bad.append(f"ids: {len(ids)} yielded, {len(c)} distinct, {n} wanted")
    if nbytes != meta["bytes"] and not cfg["peer"] == "null":
        bad.append(f"bytes: {nbytes} != {meta['bytes']}")
    if cfg["peer"] != "null":
        at = 0
        tail = ids[len(ids) - sizes[-1]:]
        for sid in tail[:8]:                    # what lies in the staging buffer
            size = base.HEADER.unpack_from(stage, at)[1]
            kept.append((sid, bytes(stage[at:at + size])))
            at += size
        for sid, rec in kept:
            try:
                if base.check_record(rec) != sid:
                    bad.append(f"id {sid} carries another record")
            except ValueError as e:
                bad.append(str(e))
    # ---- how random was the order?  1.0 = like a full random permutation
    step = sum(abs(a - b) for a, b in zip(ids, ids[1:])) / max(1, len(ids) - 1)
    return dict(wall=t1 - t0, first=first, n=len(ids), bytes=nbytes, batches=k,
                first_n=sizes[0] if sizes else 0, max_batch=max(sizes, default=0),
                user=u1 - u0, sys=s1 - s0, outside=outside1 - outside0, busy=busy1 - busy0, steal=steal1 - steal0,
                disk=disk1 - disk0, shuffle=step / (n / 3), checked=len(kept) if not check_all else n,
                bad=bad[:5])


# ===================================================================== parent
class Cache:
    """Warm or cold page cache, on purpose."""
    def drop(self):
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3\n")

    def warm(self, d):
        """Read every file anew.  Always, not only the first time: the kernel of some machines (this one:
        DAMON pageout) evicts page cache left idle for a minute, page by page, and what is read between
        pages that stayed lies in small folios, from which all copy more slowly."""
        buf = bytearray(4 << 20)
        for p, _, fs in os.walk(d):
            for name in fs:
                fd = os.open(os.path.join(p, name), os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                while os.readv(fd, [buf]):
                    pass
                os.close(fd)


def run_one(cfg, peer_env, before_go, timeout=180):
    """Start one child, sample its memory, return its record."""
    killer = None
    p2c_r, p2c_w = os.pipe()
    c2p_r, c2p_w = os.pipe()
    cfg = dict(cfg, ctl=[p2c_r, c2p_w])
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": "",
           "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore", **peer_env}
    log = open(cfg["log"], "ab")
    proc = subprocess.Popen([sys.executable, os.path.join(HERE, "bench_peers.py"), "--child", json.dumps(cfg)],
                            pass_fds=(p2c_r, c2p_w), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                            env=env, start_new_session=True, cwd="/")
    os.close(p2c_r)
    os.close(c2p_w)
    rec = dict(peer=cfg["peer"], workers=cfg["workers"], error=None)
    peak = [0, 0]
    sampling = threading.Event()
    stop = threading.Event()

    def sampler():
        while not stop.wait(0.05):
            if sampling.is_set():
                r, a = mem_of_tree(proc.pid)
                peak[0], peak[1] = max(peak[0], r), max(peak[1], a)

    th = threading.Thread(target=sampler, daemon=True)
    th.start()
    def kill_later():                   # clock starts anew once the run may go
        nonlocal killer
        if killer:
            killer.cancel()
        killer = threading.Timer(timeout, lambda: os.killpg(proc.pid, signal.SIGKILL))
        killer.daemon = True
        killer.start()
    kill_later()
    try:
        with os.fdopen(c2p_r) as f:
            for line in f:
                m = json.loads(line)
                if "ready" in m:
                    rec.update(import_s=m["import_s"], setup_s=m["setup_s"], base_rss=m["mem"][0])
                    killer.cancel()
                    before_go()
                    kill_later()
                    os.write(p2c_w, b"g")
                elif "epoch_start" in m:
                    r, x = mem_of_tree(proc.pid)
                    peak[:] = max(peak[0], r), max(peak[1], x)
                    sampling.set()
                elif "done" in m:
                    rec["epochs"] = m["epochs"]
    finally:
        killer.cancel()
        stop.set()
        th.join()
        try:
            os.killpg(proc.pid, signal.SIGKILL)         # workers it left behind (own session only)
        except OSError:
            pass
        rc = proc.wait()
        os.close(p2c_w)
        log.close()
    rec.update(peak_rss=peak[0], peak_anon=peak[1])
    if "epochs" not in rec:
        tail = open(cfg["log"], errors="replace").read().strip().splitlines()[-1:]
        rec["error"] = f"exit {rc}: {tail[0][-200:] if tail else ''}"
    else:
        bad = [b for e in rec["epochs"] for b in e["bad"]]
        if bad:
            rec["error"] = "; ".join(bad)[:300]
    return rec


class Quiet:
    """Wait for the rest of the machine to be calm, within a total allowance."""
    def __init__(self, budget, limit=0.25):
        self.left, self.limit = budget, limit

    def wait(self):
        while self.left > 0:
            b0, t0 = system_busy()[0], time.perf_counter()
            time.sleep(0.4)
            dt = time.perf_counter() - t0
            if (system_busy()[0] - b0) / dt < self.limit:
                return
            time.sleep(2)
            self.left -= time.perf_counter() - t0


def ceilings(root, profile):
    """What the machine can do, loader or no loader."""
    import mmap as mm
    import numpy as np
    out = {}
    path = os.path.join(root, profile, "bigfile", "data.bin")
    size = os.path.getsize(path)
    for mib in (4, 256):                # in the L3 cache; not in it
        src, dst = np.ones((2, mib << 20), dtype=np.uint8)
        best = min(_timed(lambda: np.copyto(dst, src)) for _ in range(5))
        out[f"memcpy {mib} MiB, MB/s"] = src.nbytes / best / 1e6
    src = dst = None
    buf = bytearray(1 << 20)

    def cat():
        fd = os.open(path, os.O_RDONLY)
        while os.readv(fd, [buf]):
            pass
        os.close(fd)
    cat()
    out["cat big file, warm, MB/s"] = size / min(_timed(cat) for _ in range(3)) / 1e6

    def drop():
        os.sync()
        open("/proc/sys/vm/drop_caches", "w").write("3\n")
    t = []
    for _ in range(3):
        drop()
        t.append(_timed(cat))
    out["cat big file, cold, MB/s"] = size / statistics.median(t) / 1e6
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    for bs, label in ((4096, "4 KiB"), (128 << 10, "128 KiB"), (1 << 20, "1 MiB")):
        page = mm.mmap(-1, bs)
        offs = np.random.default_rng(1).integers(0, size // bs, min(4000, size // bs)) * bs
        dt = _timed(lambda: [os.preadv(fd, [page], o) for o in offs.tolist()])
        out[f"O_DIRECT random {label} QD1, us"] = dt / len(offs) * 1e6
    os.close(fd)
    drop()
    return {k: round(v, 1) for k, v in out.items()}


def _timed(fn):
    t = time.perf_counter()
    fn()
    return time.perf_counter() - t


# ==================================================================== summary
def metrics(rec, mode):
    """One run -> figures.  warm: the 2nd epoch of the process (workers up, JIT
    done); its time to first batch from the 1st.  cold: the only epoch."""
    e = rec["epochs"][-1]
    cpu = e["user"] + e["sys"]
    outside = e.get("outside", 0.0)
    rest_n, rest_t = e["n"] - e["first_n"], e["wall"] - e["first"]
    return dict(
        sps=e["n"] / e["wall"], mbps=e["bytes"] / e["wall"] / 1e6,
        steady=rest_n / rest_t if rest_n and rest_t > 0 else float("nan"),
        cpu_gb=cpu / (e["bytes"] / 1e9), cpu_m=cpu / (e["n"] / 1e6),
        target_gb=outside / (e["bytes"] / 1e9),
        sys_share=e["sys"] / cpu if cpu else 0.0, cores=cpu / e["wall"],
        rss=rec["peak_rss"] / 2**20, anon=rec["peak_anon"] / 2**20,
        ttfb=rec["epochs"][0]["first"], setup=rec["setup_s"], imp=rec["import_s"],
        first_sps=rec["epochs"][0]["n"] / rec["epochs"][0]["wall"], shuffle=e["shuffle"], disk=e["disk"] / 1e6,
        other=max(0.0, e["busy"] - cpu - outside) / e["wall"], steal=e["steal"] / e["wall"])


def summarise(runs):
    groups = collections.OrderedDict()
    for r in runs:
        groups.setdefault((r["profile"], r["mode"], r["peer"], r["workers"]), []).append(r)
    rows = []
    for (profile, mode, peer, w), rs in groups.items():
        good = [r for r in rs if not r["error"]]
        calm = [r for r in good if not r.get("noisy")]
        ok = [metrics(r, mode) for r in calm or good]           # disturbed runs only if there is no other
        row = dict(profile=profile, mode=mode, peer=peer, workers=w, runs=len(ok), noisy=not calm,
                   errors=[r["error"] for r in rs if r["error"]])
        if ok:
            row.update({k: statistics.median(m[k] for m in ok) for k in ok[0]})
            s = [m["sps"] for m in ok]
            row["spread"] = (max(s) - min(s)) / row["sps"]
        rows.append(row)
    return rows


def num(x, digits=3):
    if x != x:
        return "-"
    if abs(x) >= 1000:
        return f"{x:,.0f}"
    return f"{x:.{digits}g}"


def markdown(rows, info, best_only=False):
    from dlbench import registry
    out = []
    for profile in dict.fromkeys(r["profile"] for r in rows):
        for mode in dict.fromkeys(r["mode"] for r in rows if r["profile"] == profile):
            part = [r for r in rows if r["profile"] == profile and r["mode"] == mode]
            if best_only:
                best = {}
                for r in part:
                    if "sps" in r and r["sps"] > best.get(r["peer"], {"sps": 0})["sps"]:
                        best[r["peer"]] = r
                failed = [r for r in part if "sps" not in r and r["peer"] not in best]
                part = sorted(best.values(), key=lambda r: -r["sps"]) + failed
            m = info["profiles"][profile]["meta"]
            out += [f"### {profile}, {mode}  ({m['n']:,} samples, {m['bytes'] / 1e6:,.0f} MB, batch {BATCH[profile]})", "",
                    "| loader | w | samples/s | MB/s | CPU s/GB | target's CPU s/GB | CPU s/M samples | sys % | cores | peak RSS MiB (anon+shm) | 1st-epoch samples/s | first batch s | set-up s | shuffle | spread (runs) |",
                    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
            for r in part:
                if "sps" not in r:
                    out.append(f"| {r['peer']} | {r['workers']} | failed: {(r['errors'] or ['?'])[0][:90]} " + "| " * 12 + "|")
                    continue
                p = registry.load(r["peer"])
                mark = "*" if p.ceiling else ""
                out.append(f"| {r['peer']}{mark} | {r['workers']}{'t' if p.worker_kind == 'threads' and r['workers'] else ''} "
                           f"| {num(r['sps'])} | {num(r['mbps'])} | {num(r['cpu_gb'])} | {num(r['target_gb']) if r['target_gb'] else ''} | {num(r['cpu_m'])} "
                           f"| {100 * r['sys_share']:.0f} | {r['cores']:.2f} | {num(r['rss'])} ({num(r['anon'])}) "
                           f"| {num(r['first_sps'])} | {num(r['ttfb'])} | {num(r['setup'])} | {r['shuffle']:.2f} "
                           f"| {'~' if r['noisy'] else ''}{100 * r['spread']:.0f}% ({r['runs']}) |")
            out.append("")
    return "\n".join(out)


# ======================================================================= main
def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--root", default=os.path.expanduser("~/.cache/dlfs-peers/data"))
    ap.add_argument("--profiles", default="small,imagenet,large")
    ap.add_argument("--peers", default="", help="comma list (default: all)")
    ap.add_argument("--skip", default="", help="comma list")
    ap.add_argument("--modes", default="warm,cold")
    ap.add_argument("--workers", default="0,1,2")
    ap.add_argument("--cold-workers", default="0,1,2")
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument("--scale", type=float, default=1.0)
    ap.add_argument("--check-all", action="store_true", help="crc of every sample, inside the loop (not for figures)")
    ap.add_argument("--keep", action="store_true", help="keep converted data (else removed after each profile)")
    ap.add_argument("--out", default="results.json")
    ap.add_argument("--md", default="")
    ap.add_argument("--log", default=os.path.expanduser("~/.cache/dlfs-peers/log/bench_child.log"))
    ap.add_argument("--quiet-wait", type=float, default=0, help="seconds, in all, to wait for other programs to be calm")
    ap.add_argument("--retries", type=int, default=0, help="times a run that others disturbed may be done again")
    ap.add_argument("--max-seconds", type=float, default=0, help="start no more repeats of a profile after this long on it")
    ap.add_argument("--table", help="only print the tables of this results file")
    ap.add_argument("--child", help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.child:
        return child(json.loads(a.child))
    if a.table:
        d = json.load(open(a.table))
        print(markdown(summarise(d["runs"]), d, best_only=True))
        print(markdown(summarise(d["runs"]), d))
        return

    import shutil
    import make_data
    from dlbench import registry
    names = a.peers.split(",") if a.peers else list(registry.PEERS)
    names = [n for n in names if n not in a.skip.split(",")]
    wanted = {"warm": [int(w) for w in a.workers.split(",")],
              "cold": [int(w) for w in a.cold_workers.split(",")]}
    data = dict(info=dict(argv=sys.argv[1:], host=platform.uname()._asdict(), cpus=os.cpu_count(),
                          python=sys.version.split()[0], start=time.strftime("%F %T"), batch=BATCH),
                profiles={}, runs=[])
    os.makedirs(os.path.dirname(a.log), exist_ok=True)

    def save():
        with open(a.out + ".tmp", "w") as f:
            json.dump(data, f)
        os.replace(a.out + ".tmp", a.out)

    cache, quiet = Cache(), Quiet(a.quiet_wait)
    for profile in a.profiles.split(","):
        meta = make_data.make_source(a.root, profile, a.scale)
        pinfo = data["profiles"][profile] = dict(meta=meta, convert={}, failed={})
        usable = []
        for n in names:
            try:
                peer = registry.load(n)
                make_data.convert(a.root, profile, peer)
                if peer.fmt:
                    pinfo["convert"][peer.fmt] = json.load(open(make_data.fmt_dir(a.root, profile, peer) + ".done"))
                usable.append((n, peer))
            except Exception as e:
                pinfo["failed"][n] = f"{type(e).__name__}: {e}"[:300]
                print(f"!! {profile}/{n}: cannot prepare: {e}", flush=True)
        if os.path.exists(os.path.join(a.root, profile, "bigfile.done")) and not a.check_all:
            quiet.wait()
            pinfo["ceilings"] = ceilings(a.root, profile)
            print(profile, pinfo["ceilings"], flush=True)
        started = time.time()
        broken = collections.Counter()
        for rep in range(a.repeats):
            if a.max_seconds and rep and time.time() - started > a.max_seconds:
                print(f"{profile}: out of time after {rep} repeats", flush=True)
                break
            for mode in a.modes.split(","):
                jobs = [(n, p, w) for n, p in usable for w in wanted[mode] if w in p.workers
                        if not (mode == "cold" and n == "null")]
                random.Random(rep * 7 + len(mode)).shuffle(jobs)          # interleaved
                for n, p, w in jobs:
                    if broken[n, w, mode] >= 2:
                        continue
                    d = make_data.fmt_dir(a.root, profile, p)
                    cfg = dict(peer=n, workers=w, batch=BATCH[profile], src=os.path.join(a.root, profile, "src"),
                               out=d, manifest=os.path.join(a.root, profile, "manifest.json"),
                               mode=mode, epochs=2 if mode == "warm" and not a.check_all else 1,
                               seed=1000 * rep + 17, check_all=a.check_all, log=a.log)
                    for attempt in range(a.retries + 1):
                        def before_go():            # the child is up, and waits
                            quiet.wait()
                            if mode == "cold":
                                cache.drop()
                            elif n != "null":
                                cache.warm(d)
                        rec = run_one(cfg, p.env, before_go)
                        rec.update(profile=profile, mode=mode, rep=rep)
                        rec["noisy"] = not rec["error"] and metrics(rec, mode)["other"] > NOISE[mode]
                        data["runs"].append(rec)
                        if rec["error"]:
                            broken[n, w, mode] += 1
                            print(f"{profile} {mode} r{rep} {n} w{w}: ERROR {rec['error']}", flush=True)
                        else:
                            m = metrics(rec, mode)
                            print(f"{profile} {mode} r{rep} {n} w{w}: {m['sps']:,.0f}/s {m['mbps']:,.0f} MB/s "
                                  f"cpu/GB {m['cpu_gb']:.2f} cores {m['cores']:.2f} other {m['other']:.2f} ttfb {m['ttfb']:.3f} "
                                  f"setup {m['setup']:.1f} rss {m['rss']:.0f} shuf {m['shuffle']:.2f} disk {m['disk']:.0f}"
                                  f"{' NOISY' if rec['noisy'] else ''}", flush=True)
                        if not rec["noisy"]:
                            break
            save()
        pinfo["seconds"] = round(time.time() - started)
        save()
        if not a.keep:
            for n, p in usable:
                if p.fmt:
                    d = make_data.fmt_dir(a.root, profile, p)
                    shutil.rmtree(d, ignore_errors=True)
                    if os.path.exists(d + ".done"):
                        os.remove(d + ".done")
            shutil.rmtree(os.path.join(a.root, profile, "src"), ignore_errors=True)
            os.remove(os.path.join(a.root, profile, "manifest.json"))
    data["info"]["end"] = time.strftime("%F %T")
    save()
    rows = summarise(data["runs"])
    md = markdown(rows, data, best_only=True)
    print(md)
    results.record("peers", "benches/peers/bench_peers.py " + " ".join(sys.argv[1:]), md)
    if a.md:
        open(a.md, "w").write("## Best worker count of each loader\n\n" + md + "\n## All\n\n" + markdown(rows, data))


if __name__ == "__main__":
    main()

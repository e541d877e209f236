"""Forks, spawned workers, signals, and interpreters that exit with reads in flight."""

import fcntl
import multiprocessing
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import dlfs
import frozen
from conftest import command, target

FORKS = 1000 if os.environ.get("DLFS_LONG_TESTS") else 100


def reap(pid, limit_s=300):
    """The exit code of a child, which must exit by itself."""
    end = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail(f"a forked child did not end within {limit_s} s")
        time.sleep(0.001)


def in_child(work):
    """Forks; the child runs `work` and exits with 0 if it returned true."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return pid


@pytest.fixture
def ds(image):
    """Each child creates a reader of its own: a small window makes that quick."""
    with dlfs.open(image, window=1 << 20) as dataset:
        yield dataset


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_of_an_idle_data_set(ds, source):
    assert bytes(ds[0]) == source.contents[0]
    for i in range(FORKS):
        id = i % len(source)
        assert reap(in_child(lambda: bytes(ds[id]) == source.contents[id])) == 0
    assert bytes(ds[1]) == source.contents[1], "the parent was not disturbed"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_in_the_middle_of_reads(ds, source):
    """Two threads read continuously, by id and in an order, while the main thread forks."""
    stop, wrong = threading.Event(), []

    def read():
        while not stop.is_set():
            batch = ds.read_batch(range(0, 400, 7))
            if batch.tobytes() != source.contents[0:400:7]:
                wrong.append("read_batch")

    loader = dlfs.Loader(ds, 16, window=1 << 20)

    def load():
        while not stop.is_set():
            for batch in loader:
                if batch.tobytes() != [source.contents[i] for i in batch.ids]:
                    wrong.append("loader")
                if stop.is_set():
                    return

    threads = [threading.Thread(target=read), threading.Thread(target=load)]
    [thread.start() for thread in threads]
    try:
        for i in range(0, FORKS, 4):
            # Four at a time; each child touches what a thread of the parent was using.
            children = [
                in_child(lambda: bytes(ds[i % 400]) == source.contents[i % 400]),
                in_child(lambda: len(next(iter(loader))) > 0),
                in_child(lambda: ds.stats() is not None and ds.labels is not None),
                in_child(lambda: True),
            ]
            assert [reap(child) for child in children] == [0] * 4
    finally:
        stop.set()
        [thread.join(60) for thread in threads]
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_while_a_loader_is_being_prepared(equal):
    """The thread that faults the window in exists only in the parent; so do its locks."""
    source, path = equal
    with dlfs.open(path, window=1 << 20) as ds:
        for _ in range(50):
            loader = dlfs.Loader(ds, 400)
            loader.prepare()
            child = in_child(lambda: sorted(next(iter(loader)).ids.tolist()) == list(range(400)))
            assert reap(child) == 0
            assert sorted(next(iter(loader)).ids.tolist()) == list(range(400))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_of_a_data_set_on_a_target(served, source):
    with dlfs.open(served) as ds:
        loader = dlfs.Loader(ds, 16)
        next(iter(loader))
        for i in range(30):
            assert reap(in_child(lambda: bytes(ds[i]) == source.contents[i])) == 0
            assert reap(in_child(lambda: len(next(iter(loader))) == 16)) == 0
        assert len(list(loader)) == len(loader)


def first_bytes(argument):
    dataset, id = argument
    return bytes(dataset[id])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_it_travels_to_worker_processes(address, source, method):
    with dlfs.open(address) as ds, multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.map(first_bytes, [(ds, id) for id in range(0, 400, 40)])
        assert found == source.contents[0:400:40]


SNAPSHOT = "/memfd:dlfs_snapshot"


def maps_of_snapshots():
    """The inodes of shared snapshots that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return sorted(int(line.split()[4]) for line in maps if SNAPSHOT in line)


def contents_and_maps(dataset, connection):
    names = [dataset.name(id) for id in range(0, 400, 40)]
    read = dataset.read_batch(range(0, 400, 40)).tobytes()
    connection.send((read, names, [dataset.id_of(name) for name in names], maps_of_snapshots()))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_map_the_directory_of_the_process_that_starts_them(image, source, method):
    context = multiprocessing.get_context(method)
    with dlfs.open(image) as ds:
        assert maps_of_snapshots() == []
        found = []
        for _ in range(2):
            mine, theirs = context.Pipe()
            process = context.Process(target=contents_and_maps, args=(ds, theirs))
            process.start()
            assert mine.poll(60)
            found.append(mine.recv())
            process.join(60)
            assert process.exitcode == 0
        assert found[0] == found[1]
        read, names, ids, maps = found[0]
        assert (read, ids) == (source.contents[0:400:40], list(range(0, 400, 40)))
        assert names == [ds.name(id) for id in range(0, 400, 40)]
        assert maps == maps_of_snapshots() and len(maps) == 1
    assert maps_of_snapshots() == [], "closing ends the sharing"


def sealed(data, seals):
    """A memfd with `data`, and where another process finds it."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd, (os.getpid(), fd, os.fstat(fd).st_dev, os.fstat(fd).st_ino)


def test_a_snapshot_that_is_damaged_foreign_or_gone_is_read_from_the_image(image, source, tmp_path):
    saved = tmp_path / "snapshot"
    command("snapshot", "save", image, saved, "--quiet")
    whole = saved.read_bytes()
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    damaged = bytearray(whole)
    damaged[len(whole) // 4] ^= 1
    # (what it holds, its seals, whether it is used)
    cases = [(whole, seals, 1), (whole, fcntl.F_SEAL_SHRINK, 0), (damaged, seals, 0), (whole[:5000], seals, 0),
             (b"x" * 9000, seals, 0)]
    for data, given, used in cases:
        fd, location = sealed(data, given)
        with dlfs._reopen(image, {}, None, location) as ds:
            with open("/proc/self/maps") as maps:
                assert maps.read().count("/memfd:test") == used
            assert ds.read_batch([0, 399]).tobytes() == [source.contents[0], source.contents[399]]
        os.close(fd)
        with dlfs._reopen(image, {}, None, location) as ds:  # nobody has it any more
            assert bytes(ds[7]) == source.contents[7]


INTERRUPT = """
import os, signal, sys, threading, time, dlfs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit none
ds = dlfs.open(sys.argv[1])
loader = dlfs.Loader(ds, 4)
begun = dlfs.Loader(ds, 4, "global", window=64 << 10)
next(iter(begun))
waits = {"begin": lambda: next(iter(loader)), "next": lambda: list(begun), "item": lambda: ds[0],
         "batch": lambda: ds.read_batch(range(8)), "name": lambda: ds.id_of("ant/0000.bin"),
         "open": lambda: dlfs.open(sys.argv[1], connect_timeout=600, io_timeout=600)}
if sys.argv[3] == "SIGKILL":
    del waits["open"]  # nobody listens there, and it says so
    os.kill(int(sys.argv[2]), signal.SIGKILL)
else:
    sys.path.insert(0, sys.argv[4])
    from frozen import freeze
    freeze(int(sys.argv[2]))
for name, wait in waits.items():
    sent = []
    def send():
        time.sleep(0.3)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send)
    try:
        thread.start()  # in here: on a busy machine the signal may come before the wait
        wait()
        print(name, "came to an end")
    except KeyboardInterrupt:
        print(name, "was interrupted after", time.monotonic() - sent[0], "s")
    except dlfs.Error as error:
        print(name, "ended by itself:", error)
    thread.join()
if sys.argv[3] == "SIGKILL":
    sys.exit()
os.kill(int(sys.argv[2]), signal.SIGCONT)
print("after", len(next(iter(loader))), len(next(iter(begun))), len(ds[0]) >= 0)
"""


def test_ctrl_c_ends_every_wait_and_everything_goes_on_after_it(image, run_python):
    """Long before other limits: calls have 60 s here, opening has 600."""
    with target(image) as (child, address):
        out = run_python(INTERRUPT, address, child.pid, "SIGSTOP", os.path.dirname(frozen.__file__))
    print(out)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:6]] == ["begin", "next", "item", "batch", "name", "open"]
    assert all(" was interrupted " in line for line in lines[:6])
    assert lines[6] == "after 4 4 True"


def test_ctrl_c_ends_waits_for_a_target_that_is_gone(image, run_python):
    """Reconnecting would continue for 600 s; the interpreter does not wait for it either."""
    with target(image) as (child, address):
        out = run_python(INTERRUPT, address, child.pid, "SIGKILL")
    print(out)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["begin", "next", "item", "batch", "name"]
    assert all(" was interrupted " in line for line in lines)


SILENT = """
import os, signal, threading, time, dlfs
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit none
ds = dlfs.open("s3://bucket/data")
loader = dlfs.Loader(ds, 4)
waits = {"open": lambda: dlfs.open("s3://bucket/silent"), "begin": lambda: next(iter(loader)), "item": lambda: ds[0],
         "batch": lambda: ds.read_batch(range(8)), "ranges": lambda: ds.read_ranges([(0, 0, 10)])}
for name, wait in waits.items():
    def send():
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send)
    try:
        thread.start()
        wait()
        print(name, "came to an end")
    except KeyboardInterrupt:
        print(name, "was interrupted")
    thread.join()
"""


def test_ctrl_c_ends_waits_for_a_store_that_does_not_answer(run_python, monkeypatch):
    """Requests would be tried again for 2 minutes; the interpreter does not wait for them either."""
    entry = (
        "<Contents><Key>data/cat/{}</Key><Size>100</Size>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    )
    entries = "".join(entry.format(number) for number in range(8))
    listing = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
    ended = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        def do_GET(self):
            if "prefix=data" not in self.path:
                ended.wait(120)  # of the rest, nothing is answered
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(listing)))
            self.end_headers()
            self.wfile.write(listing)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    try:
        out = run_python(SILENT)
    finally:
        ended.set()
        server.shutdown()
    print(out)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["open", "begin", "item", "batch", "ranges"]
    assert all(line.endswith(" was interrupted") for line in lines)


@pytest.mark.parametrize("what", ["ds.__getitem__", "ds.names.__getitem__", "ds.name"])
def test_ctrl_c_ends_loops_that_the_interpreter_does_not_see(image, run_python, what):
    """As in list(ds): no line of Python runs, so only dlfs checks for signals."""
    out = run_python(
        f"""
import collections, itertools, os, signal, threading, dlfs
signal.signal(signal.SIGINT, signal.default_int_handler)
ds = dlfs.open({image!r})
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    collections.deque(map({what}, itertools.repeat(0)), 0)
except KeyboardInterrupt:
    print("interrupted", len(ds))
"""
    )
    assert out == "interrupted 400\n"


@pytest.mark.parametrize("end", ["return", "sys.exit(0)", "os._exit(0)", "raise SystemExit"])
@pytest.mark.parametrize("what", ["loader", "thread", "daemon"])
def test_an_interpreter_ends_with_reads_in_flight(address, run_python, end, what):
    run_python(
        f"""
import os, sys, threading, dlfs
ds = dlfs.open({address!r})
loader = dlfs.Loader(ds, 4, window=1 << 20)
def read():
    while not stop:
        for batch in loader:
            batch.tolist()
            ds.read_batch(range(0, 400, 3))
            if stop:
                break
stop = False
def main():
    global stop
    if {what!r} == "loader":
        next(iter(loader))
    else:
        thread = threading.Thread(target=read, daemon={what == "daemon"})
        thread.start()
        next(iter(loader))
        stop = {what == "thread"}
    {end}
main()
"""
    )


def test_an_interpreter_ends_while_a_daemon_waits_for_a_frozen_target(image, run_python):
    with target(image) as (child, address):
        run_python(
            f"""
import sys, threading, time, dlfs
sys.path.insert(0, {os.path.dirname(frozen.__file__)!r})
from frozen import freeze
loader = dlfs.Loader(dlfs.open({address!r}), 4)
freeze({child.pid})
threading.Thread(target=lambda: next(iter(loader)), daemon=True).start()
time.sleep(0.3)
"""
        )

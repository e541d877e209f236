"""Ranks that read through each other's tiers: real processes, as a launcher starts them."""

import datetime
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

import dlfs
from conftest import PER_CLASS, CLASSES, command, free_port, target
from frozen import freeze

torch = pytest.importorskip("torch")

NUM = PER_CLASS * len(CLASSES)


@pytest.fixture(scope="module")
def striped(source):
    """The address of an image on two namespaces of a target, with small chunks so that each node holds some."""
    paths = [str(source.root.parent / f"striped{part}.dlfs") for part in range(2)]
    command("import", source.root, ",".join(paths), "--chunk-size", "64K", "--quiet")
    with target(paths[0]) as (_, first), target(paths[1]) as (_, second):
        yield f"{first},{second}"


# One rank on a node of its own. It prints one line of JSON for what it has read.
RANK = """
import json, os, sys
import dlfs

def report(ds, **more):
    places = ds.stats()["places"]
    of = lambda kind: sum(place["bytes"] for place in places["places"] if place["place"] == kind)
    peers = [place["name"] for place in places["places"] if place["place"] == "peer"]
    kinds = {kind: of(kind) for kind in ("memory", "peer", "origin")}
    rerouted, mismatched = places["rerouted_bytes"], places["mismatched_bytes"]
    line = {**more, **kinds, "peers": peers, "rerouted": rerouted, "mismatched": mismatched}
    os.write(1, (json.dumps(line) + "\\n").encode())
"""


def torchrun(program, ranks, *arguments):
    """Runs `program` by torchrun; returns the lines of JSON that its ranks print."""
    child = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
         "--master-addr", "127.0.0.1", "--master-port", str(free_port(2)), str(program), *arguments],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_of_torchrun_share_their_tiers(striped, tmp_path, ranks):
    """First by torchrun's variables alone, at a port of rank 0; then by the store of torch.distributed. In grouped
    order, with workers that are forked and workers that are spawned."""
    program = tmp_path / "rank.py"
    program.write_text(RANK + """
import torch.distributed
from torch.utils.data import DataLoader
import dlfs.torch

def seen(batch):
    places = torch.utils.data.get_worker_info().dataset.dataset.stats()["places"]["places"]
    return batch.ids.tolist(), sum(place["bytes"] for place in places if place["place"] == "peer")

if __name__ == "__main__":
    place = os.environ["RANK"]
    ds = dlfs.open(sys.argv[1], tiers=["ram:16M"], node=f"a{os.getppid()}-{place}")
    loader = dlfs.Loader(ds, 8, seed=3, epochs=2, peers="auto", peer_timeout=120)
    again = dlfs.Loader(ds, 8, seed=4, epochs=1, peers="auto")
    assert loader.options["rank"] == int(place) and again.options["world_size"] > 1
    ids = [id for _ in range(2) for batch in loader for id in batch.ids.tolist()]
    # Nobody leaves before all have read.
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    report(ds, how="port", ids=ids, of_workers=1)
    for context in ("fork", "spawn") if torch.distributed.get_world_size() == 2 else ("fork",):
        ds = dlfs.open(sys.argv[1], tiers=["ram:16M"], node=f"{context}{os.getppid()}-{place}")
        data = dlfs.torch.IterableDataset(ds, 8, seed=3, transform=seen, peers="auto", peer_timeout=120)
        batches = DataLoader(data, None, num_workers=2, multiprocessing_context=context)
        ids, of_workers = [], 0
        for epoch in range(2):
            data.set_epoch(epoch)
            for of_batch, peer_bytes in batches:
                ids += of_batch
                of_workers = max(of_workers, peer_bytes)
        torch.distributed.barrier()
        report(ds, how=context, ids=ids, of_workers=of_workers)
    torch.distributed.destroy_process_group()
""")
    lines = torchrun(program, ranks, striped)
    for how in ("port", "fork", "spawn") if ranks == 2 else ("port", "fork"):
        of_how = [line for line in lines if line["how"] == how]
        assert len(of_how) == ranks
        assert sorted(id for line in of_how for id in line["ids"]) == sorted([*range(NUM)] * 2), how
        for line in of_how:
            assert len(line["peers"]) == ranks - 1 and line["mismatched"] == 0, line
            assert line["of_workers"] > 0, "a worker reads through the peers, too"
            # What workers read, their processes count.
            assert (line["peer"] > 0) == (how == "port"), line


@pytest.mark.parametrize("peers", ["MPI.COMM_WORLD", "'auto'"])
def test_ranks_of_mpi_share_their_tiers(striped, tmp_path, peers):
    pytest.importorskip("mpi4py")
    mpiexec = os.path.join(os.path.dirname(sys.executable), "mpiexec")
    program = tmp_path / "rank.py"
    program.write_text(RANK + f"""
from mpi4py import MPI
world = MPI.COMM_WORLD
ds = dlfs.open(sys.argv[1], tiers=["ram:16M"], node=f"{{sys.argv[2]}}-{{world.Get_rank()}}")
loader = dlfs.Loader(ds, 8, seed=3, epochs=2, peers={peers}, peer_address="127.0.0.1", peer_timeout=120)
assert (loader.options["rank"], loader.options["world_size"]) == (world.Get_rank(), 3)
ids = [id for _ in range(2) for batch in loader for id in batch.ids.tolist()]
world.Barrier()
report(ds, ids=ids)
world.Barrier()
""")
    child = subprocess.run([mpiexec, "-n", "3", sys.executable, str(program), striped, str(tmp_path)],
                           capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stdout + child.stderr
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert len(lines) == 3 and all(line["peer"] > 0 and len(line["peers"]) == 2 for line in lines)
    assert sorted(id for line in lines for id in line["ids"]) == sorted([*range(NUM)] * 2)


STOPPED = RANK + """
rank, world_size, meet = int(sys.argv[2]), 3, sys.argv[3]
ds = dlfs.open(sys.argv[1], tiers=["ram:16M"], node=f"{meet}-{rank}")
loader = dlfs.Loader(ds, 8, "global", rank=rank, world_size=world_size, epochs=30, peers=meet, round="stopped",
                     peer_address="127.0.0.1", window=1 << 18)
for epoch in range(30):
    ids = [id for batch in loader for id in batch.ids.tolist()]
    report(ds, epoch=epoch, ids=ids)
    sys.stdin.readline()
"""


def test_a_node_that_is_stopped_delays_nobody_for_long_and_may_go_on(striped, tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(STOPPED)
    meet = tmp_path / "meet"
    meet.mkdir()
    ranks = [
        subprocess.Popen([sys.executable, str(program), striped, str(rank), str(meet)],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]

    def epoch(*running):
        lines = {rank: json.loads(ranks[rank].stdout.readline()) for rank in running}
        for rank in running:
            ranks[rank].stdin.write("\n")
            ranks[rank].stdin.flush()
        return lines

    try:
        seen = [epoch(0, 1, 2)]
        freeze(ranks[2].pid)
        for _ in range(3):
            seen.append(epoch(0, 1))
        assert sum(seen[-1][rank]["rerouted"] for rank in (0, 1)) > 0
        os.kill(ranks[2].pid, signal.SIGCONT)
        for at in range(1, 4):  # it continues where it was
            seen[at].update(epoch(2))
        for lines in seen:
            assert sorted(id for line in lines.values() for id in line["ids"]) == list(range(NUM))
            assert all(line["mismatched"] == 0 for line in lines.values())
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGCONT)
            rank.kill()
            rank.communicate()


def joined_by(image, meets, opened=None, **options):
    """A rank for each of `meets`, as threads; what join_peers returned, or raised, and the data sets."""
    named = [f"{id(meets)}-{rank}" for rank in range(len(meets))]
    sets = [dlfs.open(image, tiers=["ram:8M"], node=node, **(opened or {})) for node in named]
    found = [None] * len(meets)

    def join(rank):
        given = {"rank": rank, "world_size": len(meets), "peer_address": "127.0.0.1", **options}
        try:
            found[rank] = sets[rank].join_peers(meets[rank], **given)
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(len(meets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, sets


def lengths_read_in(dataset):
    """Lengths of all samples, and how many bytes came from peers."""
    lengths = [len(sample) for batch in dlfs.Loader(dataset, 8) for sample in batch]
    places = dataset.stats()["places"]["places"]
    return lengths, sum(place["bytes"] for place in places if place["place"] == "peer")


@pytest.mark.parametrize("kind", ["file", "rendezvous"])
def test_ranks_and_their_workers_prove_themselves_with_a_key_of_the_job(striped, tmp_path, kind):
    key = tmp_path / "key"
    key.write_text(command("key", "gen"))
    key.chmod(0o600)
    given = {"job_key": key if kind == "file" else "rendezvous", "round": kind}
    found, sets = joined_by(striped, [Plain()] * 2, **given)
    assert found == [(0, 2), (1, 2)]
    here, from_peers = lengths_read_in(sets[0])
    assert from_peers > 0 and sorted(here) == sorted(len(sets[1][id]) for id in range(NUM))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there, from_peers = pool.submit(lengths_read_in, sets[1]).result()
    assert there == here and from_peers > 0, "a worker reads through the peers, too"
    for ds in sets:
        ds.close(peer_timeout=0)

    with dlfs.open(striped, tiers=["ram:8M"], node="alone") as ds:
        with pytest.raises(dlfs.InvalidArgument, match="peer_tls needs job_key"):
            ds.join_peers(Plain(), rank=0, world_size=1, peer_tls=True, peer_address="127.0.0.1")
        key.chmod(0o644)
        with pytest.raises(dlfs.Refused, match="others may read the key file"):
            ds.join_peers(Plain(), rank=0, world_size=1, job_key=key, peer_address="127.0.0.1")


class Plain:
    """An object of a program with a batched get."""

    def __init__(self):
        self.values, self.gets = {}, 0

    def set(self, key, value):
        self.values[key] = value

    def get(self, keys):
        self.gets += 1
        return [self.values.get(key) for key in keys]


def stores(tmp_path):
    from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

    limit = datetime.timedelta(seconds=120)
    port = free_port()
    tcp = [TCPStore("127.0.0.1", port, is_master=rank == 0, timeout=limit, wait_for_workers=False) for rank in (0, 1)]
    shared = HashStore()
    plain = Plain()
    return {
        "tcp": tcp,
        "file": [FileStore(str(tmp_path / "store"), 2) for _ in range(2)],
        "hash": [shared, shared],
        "prefix": [PrefixStore("mine", store) for store in tcp],
        "plain": [plain, plain],
    }


@pytest.mark.parametrize("kind", ["tcp", "file", "hash", "prefix", "plain"])
def test_ranks_meet_in_any_store(image, source, tmp_path, kind):
    meets = stores(tmp_path)[kind]
    found, sets = joined_by(image, meets, round="store", peer_timeout=60)
    assert found == [(0, 2), (1, 2)]
    for ds in sets:
        assert [bytes(ds[at]) for at in range(NUM)] == source.contents
        places = ds.stats()["places"]
        assert [place["place"] for place in places["places"]] == ["memory", "peer", "origin"]
        assert places["places"][1]["bytes"] > 0 and places["mismatched_bytes"] == 0
    if kind == "plain":
        values = meets[0].values
        assert sorted(values) == ["dlfs/store/0", "dlfs/store/1"], "one set a rank"
        assert max(map(len, values.values())) <= 1024


def test_nodes_that_serve_only_copies_say_what_is_not_there(image, source, tmp_path):
    plain = Plain()
    # The copiers are slow, so that much is absent at first.
    opened = {"copy_bandwidth": 1 << 16}
    found, sets = joined_by(image, [plain, plain], round="copies", opened=opened, peer_mode="copies")
    assert found == [(0, 2), (1, 2)]
    for ds in sets:
        assert [bytes(ds[at]) for at in range(NUM)] == source.contents
    assert sum(ds.stats()["places"]["not_there_bytes"] for ds in sets) > 0
    # A process that gets the data set reads through the same peers, in the same mode.
    assert [bytes(pickle.loads(pickle.dumps(sets[0]))[at]) for at in range(NUM)] == source.contents


def test_a_data_set_that_is_closed_serves_on_until_all_ranks_have_closed_theirs(image, source):
    plain = Plain()
    opened = [None, None]

    def joins(rank):
        opened[rank] = dlfs.open(
            image, tiers=["ram:8M"], node=f"{id(plain)}-{rank}", peers=plain, round="closing", rank=rank, world_size=2,
            peer_address="127.0.0.1",
        )

    threads = [threading.Thread(target=joins, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = opened
    loaders = [dlfs.Loader(ds, 8, seed=3, peers=plain) for ds in opened]
    places = [(loader.options["rank"], loader.options["world_size"]) for loader in loaders]
    assert places == [(0, 2), (1, 2)], "a loader takes its place from the peers that it names"
    for loader in loaders:
        loader.close()
    closes = threading.Thread(target=first.close)
    closes.start()
    # It is closed for its own program, and waits.
    while not (first.closed and "dlfs/closing end/0" in plain.values):
        time.sleep(0.01)
    assert [bytes(second[at]) for at in range(NUM)] == source.contents
    stats = second.stats()["places"]
    assert stats["places"][1]["bytes"] > 0 and stats["rerouted_bytes"] == 0, "the other one still serves"
    assert closes.is_alive()
    second.close()
    closes.join()


def test_closing_ends_after_its_time_and_at_once_after_an_exception(image, caplog):
    plain = Plain()
    _, sets = joined_by(image, [plain, plain], round="left", peer_timeout=60)
    with pytest.raises(ZeroDivisionError), sets[0]:
        1 / 0
    assert "dlfs/left end/0" not in plain.values, "it waited"
    sets[1].close(peer_timeout=0.2)
    assert any("did not come" in record.getMessage() for record in caplog.records)
    with pytest.raises(TypeError, match="without peers"):
        dlfs.open(image, rank=0)


def test_a_plan_of_the_run_says_who_keeps_what(image):
    plain = Plain()
    opened = {"policy": "clairvoyant"}
    found, sets = joined_by(image, [plain, plain], round="plan", opened=opened, peer_mode="plan")
    assert found == [(0, 2), (1, 2)]
    loaders = [dlfs.Loader(ds, 8, "global", seed=3, epochs=3, rank=rank, world_size=2) for rank, ds in enumerate(sets)]
    ids = [id for _ in range(3) for loader in loaders for batch in loader for id in batch.ids.tolist()]
    assert sorted(ids) == sorted([*range(NUM)] * 3)
    assert all("not_there_reads" in ds.stats()["places"] for ds in sets)
    with pytest.raises(dlfs.InvalidArgument, match="follows from the shares"):
        dlfs.Loader(sets[0], 8, "global", rank=0, world_size=2, shard="local")
    with dlfs.open(image, tiers=["ram:8M"], node="first-touch") as ds:
        with pytest.raises(dlfs.InvalidArgument, match="another policy"):
            ds.join_peers(plain, rank=0, world_size=1, round="policy", peer_address="127.0.0.1", peer_mode="plan")


def test_missing_ranks_are_named(image, tmp_path):
    for kind, meets in stores(tmp_path).items():
        alone = dlfs.open(image, tiers=["ram:8M"], node=f"{kind}-{os.getpid()}")
        with pytest.raises(dlfs.TimedOut, match="of 3 ranks .* 2 did not come .*: 0, 2"):
            alone.join_peers(meets[1], rank=1, world_size=3, peer_address="127.0.0.1", round="alone", peer_timeout=0.3)
        alone.close()


def test_ranks_that_differ_and_wrong_options_are_named(image, tmp_path):
    plain = Plain()
    sets = [dlfs.open(image, tiers=["ram:8M"], node=f"{rank}-differs") for rank in range(2)]
    raised = []

    def loader(rank):
        try:
            dlfs.Loader(sets[rank], 8, seed=rank, rank=rank, world_size=2, peers=plain, round="differ",
                        peer_address="127.0.0.1")
        except dlfs.InvalidArgument as error:
            raised.append(str(error))

    threads = [threading.Thread(target=loader, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(raised) == 2 and all("order" in text and "seed" in text for text in raised), raised

    ds = sets[0]
    with pytest.raises(TypeError, match="peers: .*not 7"):
        dlfs.Loader(ds, 8, peers=7)
    with pytest.raises(dlfs.InvalidArgument, match="peer_mode: .through. is not"):
        dlfs.Loader(ds, 8, peers=plain, peer_mode="through")
    with pytest.raises(TypeError, match="no option 'pears'"):
        ds.join_peers("auto", pears=1)
    with pytest.raises(dlfs.InvalidArgument, match="no launcher has said"):
        dlfs.Loader(ds, 8, peers="auto")
    with pytest.raises(dlfs.InvalidArgument, match="peer_address"):
        dlfs.Loader(ds, 8, peers=str(tmp_path), peer_address="here")
    with pytest.raises(dlfs.InvalidArgument, match="rendezvous_port"):
        dlfs.Loader(ds, 8, peers=["127.0.0.1:1"], rendezvous_port=0)
    with dlfs.open(image) as bare, pytest.raises(dlfs.InvalidArgument, match="there is no tier"):
        dlfs.Loader(bare, 8, peers=plain, round="bare", peer_address="127.0.0.1")

    class Broken(Plain):
        def get(self, keys):
            raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        ds.join_peers(Broken(), rank=0, world_size=2, peer_address="127.0.0.1")


def test_a_wait_for_peers_can_be_interrupted(image, run_python):
    printed = run_python(
        """
import os, signal, sys, threading
import dlfs
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of shells inherit that it is ignored
ds = dlfs.open(sys.argv[1], tiers=["ram:8M"], node=f"interrupted-{os.getpid()}")
for peers in (sys.argv[2], ["127.0.0.1:%d" % port for port in (int(sys.argv[3]), int(sys.argv[3]) + 1)]):
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        ds.join_peers(peers, rank=1, world_size=2, round="alone", peer_address="127.0.0.1")
    except KeyboardInterrupt:
        print("interrupted")
""",
        image, os.path.dirname(image), free_port(3),
    )
    assert printed.split() == ["interrupted"] * 2

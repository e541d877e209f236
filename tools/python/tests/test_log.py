"""The library's warnings reach Python's logging."""

import logging

import dlfs
from conftest import damaged, target


def broken(image, tmp_path, source):
    """A damaged image, and the id of the damaged sample."""
    id = next(i for i in range(len(source)) if len(source.contents[i]) > 4000)
    return damaged(image, tmp_path, source, id), f"sample {id}"


def test_warnings_go_to_the_logger_dlfs(image, source, tmp_path, caplog):
    path, name = broken(image, tmp_path, source)
    with dlfs.open(path) as ds:
        assert sum(len(batch) for batch in dlfs.Loader(ds, 32, on_error="skip")) == len(source) - 1
    told = [record for record in caplog.records if record.name == "dlfs"]
    assert told, "at least of this epoch; what is read ahead of the next ones is told of too"
    for record in told:
        assert record.levelno == logging.WARNING and name in record.getMessage()


def test_an_unreachable_target_is_reported_while_a_call_waits(image, caplog):
    with target(image) as (child, address), dlfs.open(address, ctrl_loss_tmo=1) as ds:
        child.kill()
        child.wait()
        try:
            ds[0]
        except dlfs.Error as error:
            assert "127.0.0.1" in str(error)
        told = [record.getMessage() for record in caplog.records if record.name == "dlfs"]
        assert any("127.0.0.1" in text and "reconnecting" in text for text in told), told


def test_a_bad_superblock_copy_gives_a_warning_while_the_other_is_read(
    image, source, tmp_path, caplog
):
    data = bytearray(open(image, "rb").read())
    data[100] ^= 1  # the copy that generation 1 is not in
    path = tmp_path / "bad.dlfs"
    path.write_bytes(data)
    with dlfs.open(path) as ds:
        assert bytes(ds[3]) == source.contents[3]
    told = [record for record in caplog.records if record.name == "dlfs"]
    assert any(
        record.levelno == logging.WARNING and "superblock copy at byte 0" in record.getMessage()
        and "dlfs rebuild" in record.getMessage() for record in told
    ), told


PROGRAM = """
import sys, dlfs
if len(sys.argv) > 2:
    import logging
    logging.basicConfig(filename=sys.argv[2], format="%(levelname)s %(name)s %(message)s")
for batch in dlfs.Loader(dlfs.open(sys.argv[1]), 400, on_error="skip"):
    pass
"""


def test_a_program_that_sets_nothing_up_sees_them_and_one_that_does_finds_them(
    image, source, tmp_path, run_python
):
    (path, name), file = broken(image, tmp_path, source), tmp_path / "log"
    shown = run_python("import sys\nsys.stderr = sys.stdout\n" + PROGRAM, path)
    run_python(PROGRAM, path, file)
    lines = file.read_text().splitlines()
    assert lines and all(line.startswith("WARNING dlfs ") and name in line for line in lines)
    assert name in shown


def test_a_forked_child_does_not_repeat_its_parent(image, source, tmp_path, run_python):
    path, name = broken(image, tmp_path, source)
    out = run_python(
        """
import logging, os, sys, dlfs
logging.basicConfig(stream=sys.stdout, format="%(message)s")
ds = dlfs.open(sys.argv[1])
loader = dlfs.Loader(ds, 400, on_error="skip")
next(iter(loader))
loader.close()
print("child" if os.fork() == 0 else os.wait() and "parent", flush=True)
len(ds[-1])
""",
        path,
    )
    # Warnings logged while the parent waited precede both.
    child = out.split("child\n")[1].split("parent\n")[0]
    assert name not in child and name in out


def test_a_small_window_has_the_name_that_the_user_gave_it(ds, caplog):
    assert sum(len(batch) for batch in dlfs.Loader(ds, 32, window=4096)) == len(ds)
    told = [record.getMessage() for record in caplog.records if record.name == "dlfs"]
    assert any("window: 4096" in text for text in told), told
    assert not any("window_bytes" in text for text in told), told

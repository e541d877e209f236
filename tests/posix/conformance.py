#!/usr/bin/env python3
"""Calls what programs call, below a folder, and prints each result or error number on a line.

  conformance.py FOLDER [--door NAME]
  conformance.py FOLDER --make

Without --door, FOLDER is a plain copy of the files, which gives the expected lines; calls that would write
are then not made, and the line is that of a file system that is mounted read-only. With --door, the same
files are shown by `preload` or `mount`. Both outputs are the same, but for the calls in DIFFERS, each with its
reason; these print the reason. With --make, files are added that other programs read: a bare git repository, and
where the packages are installed arrays, tensors, an HDF5 file and a picture. What programs are not installed is left out and said on stderr.
"""

import argparse
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import threading

# Calls whose result differs by nature, by door: the reason.
DIFFERS = {
    "preload": {
        "chdir folder": "the kernel cannot be in a folder that only this process sees",
        "fchdir folder": "the kernel cannot be in a folder that only this process sees",
        "read of a folder": "a folder's descriptor is an O_PATH one: EBADF, not EISDIR",
        "write to a descriptor": "the descriptor is a sealed memfd: EPERM, not EBADF",
        "mmap shared, writable": "the descriptor is a sealed memfd: EPERM, not EACCES",
        "ftruncate": "the descriptor is a sealed memfd: EPERM, not EINVAL",
        "F_GETFL": "the descriptor is a memfd, which is open for writing and sealed",
        "sh: cd": "the kernel cannot be in a folder that only this process sees",
        "find -execdir": "the kernel cannot be in a folder that only this process sees",
        "nftw": "the C library's own calls are not seen",
        "fts": "the C library's own calls are not seen",
        "glob": "the C library's own calls are not seen",
        "node, stat": "Node asks by raw system calls, which are not seen",
        "git clone": "git goes into the repository, and the kernel cannot be there",
    },
    "mount": {},
}

libc = ctypes.CDLL(None, use_errno=True)
done = 0


def line(name, result):
    global done
    done += 1
    reason = DIFFERS.get(args.door, {}).get(name) or next(
        (d[name] for d in DIFFERS.values() if name in d and args.door is None and args.against
         and d is DIFFERS[args.against]), None)
    print(f"{name}: differs, {reason}" if reason else f"{name}: {result}")


def call(name, function, *arguments):
    """One call, and its result."""
    try:
        result = function(*arguments)
    except OSError as error:
        result = "errno " + errno.errorcode.get(error.errno, str(error.errno))
    except Exception as error:  # a failed expectation of Python's own
        result = type(error).__name__
    line(name, result)
    return result


def writes(name, expected, function, *arguments):
    """A call that must fail: made only behind a door."""
    if args.door is None:
        line(name, "errno " + expected)
    else:
        call(name, function, *arguments)


def c(name, *arguments, kind=ctypes.c_int):
    """A function of C: its result, or the error that it leaves."""
    function = getattr(libc, name)
    function.restype = kind
    ctypes.set_errno(0)
    result = function(*arguments)
    if result in (-1, None):
        raise OSError(ctypes.get_errno(), name)
    return result


def shape(s):
    """What of a stat must be the same everywhere."""
    kind = stat.S_IFMT(s.st_mode)
    return (oct(kind), oct(stat.S_IMODE(s.st_mode)), s.st_size if stat.S_ISREG(kind) else "-")


def same(s):
    """What tells one file from all others."""
    return s.st_dev, s.st_ino, s.st_mode, s.st_nlink, s.st_size, s.st_mtime_ns


def digest(data):
    return f"{len(data)} {hashlib.md5(data).hexdigest()}"


def inside(path):
    return os.path.join(args.folder, path) if path else args.folder


def attributes(path):
    p = inside(path)
    b = p.encode()
    call(f"stat {path}", lambda: shape(os.stat(p)))
    call(f"lstat {path}", lambda: shape(os.lstat(p)))
    call(f"stat twice {path}", lambda: same(os.stat(p)) == same(os.lstat(p)))
    call(f"inode {path}", lambda: os.stat(p).st_ino != 0)
    call(f"exists {path}", os.path.exists, p)
    call(f"isdir {path}", os.path.isdir, p)
    call(f"isfile {path}", os.path.isfile, p)
    call(f"islink {path}", os.path.islink, p)
    call(f"realpath {path}", lambda: os.path.relpath(os.path.realpath(p), args.folder))
    for mode, name in ((os.F_OK, "F"), (os.R_OK, "R")):
        call(f"access {name} {path}", lambda: c("access", b, mode))
        call(f"faccessat {name} {path}", lambda: c("faccessat", -100, b, mode, 0))
        call(f"euidaccess {name} {path}", lambda: c("euidaccess", b, mode))
    call(f"readlink {path}", os.readlink, p)
    call(f"statx {path}", lambda: statx(b))
    call(f"realpath(3) {path}", lambda: realpath(b))
    call(f"getxattr of another {path}", lambda: os.getxattr(p, "user.other"))
    call(f"statvfs name {path}", lambda: os.statvfs(p).f_namemax)


def statx(path):
    buffer = ctypes.create_string_buffer(256)
    c("statx", -100, path, 0, 0x7FF, buffer)
    mode = int.from_bytes(buffer.raw[28:30], sys.byteorder)
    size = int.from_bytes(buffer.raw[40:48], sys.byteorder)
    return oct(mode), size if stat.S_ISREG(mode) else "-"


def realpath(path):
    found = c("realpath", path, None, kind=ctypes.c_void_p)
    text = ctypes.string_at(found).decode()
    libc.free(ctypes.c_void_p(found))
    return os.path.relpath(text, args.folder)


def reads(path):
    p = inside(path)
    b = p.encode()
    call(f"open, read {path}", lambda: digest(open(p, "rb").read()))
    call(f"unbuffered {path}", lambda: digest(open(p, "rb", buffering=0).read()))
    call(f"in pieces {path}", lambda: digest(b"".join(iter(lambda f=open(p, "rb", 0): f.read(777), b""))))
    fd = os.open(p, os.O_RDONLY)
    call(f"fstat {path}", lambda: shape(os.fstat(fd)))
    call(f"fstat is stat {path}", lambda: same(os.fstat(fd)) == same(os.stat(p)))
    call(f"pread {path}", lambda: digest(os.pread(fd, 100, 50)))
    call(f"pread at the end {path}", lambda: os.pread(fd, 100, 1 << 30))
    call(f"preadv {path}", lambda: os.preadv(fd, [bytearray(10), bytearray(20)], 3))
    call(f"lseek end {path}", lambda: os.lseek(fd, 0, os.SEEK_END))
    call(f"lseek back {path}", lambda: os.lseek(fd, -1, os.SEEK_CUR) if os.fstat(fd).st_size else 0)
    call(f"read there {path}", lambda: len(os.read(fd, 10)))
    call(f"lseek before {path}", lambda: os.lseek(fd, -1, os.SEEK_SET))
    call(f"lseek data {path}", lambda: os.lseek(fd, 0, os.SEEK_DATA) if os.fstat(fd).st_size else 0)
    call(f"dup {path}", lambda: digest(os.pread(os.dup(fd), 1 << 20, 0)))
    call(f"fstat of a dup {path}", lambda: shape(os.fstat(os.dup(fd))))
    call(f"poll {path}", lambda: len(select.select([fd], [], [], 0)[0]))
    call(f"flock {path}", lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB))
    call(f"fadvise {path}", lambda: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL))
    call(f"isatty {path}", lambda: os.isatty(fd))
    call(f"sendfile {path}", lambda: sent(fd))
    call(f"FD_CLOEXEC {path}", lambda: fcntl.fcntl(fd, fcntl.F_GETFD))
    if os.fstat(fd).st_size:
        for flags, name in ((mmap.MAP_SHARED, "shared"), (mmap.MAP_PRIVATE, "private")):
            call(f"mmap {name} {path}", lambda: digest(bytes(mmap.mmap(fd, 0, flags, mmap.PROT_READ))))
        copy = mmap.MAP_PRIVATE
        call(f"mmap private, writable {path}", lambda: mapped_and_written(fd, copy))
    os.close(fd)
    call(f"read of a closed one {path}", lambda: os.read(fd, 1))
    call(f"fopen {path}", lambda: by_stream(b, b"r", "fopen"))
    call(f"fopen64 {path}", lambda: by_stream(b, b"rb", "fopen64"))
    call(f"fopen re {path}", lambda: by_stream(b, b"re", "fopen"))
    call(f"open64 {path}", lambda: os.close(c("open64", b, os.O_RDONLY)))
    call(f"openat {path}", lambda: os.close(c("openat", -100, b, os.O_RDONLY)))
    call(f"__open_2 {path}", lambda: os.close(c("__open_2", b, os.O_RDONLY)))
    call(f"O_CREAT of what is there {path}", lambda: digest(os.read(os.open(p, os.O_CREAT), 1 << 20)))
    call(f"O_NOFOLLOW {path}", lambda: os.close(os.open(p, os.O_NOFOLLOW)))
    call(f"O_PATH {path}", lambda: shape(os.fstat(os.open(p, os.O_PATH))))
    call(f"O_DIRECTORY {path}", lambda: os.open(p, os.O_DIRECTORY))
    call(f"as a folder {path}", lambda: os.listdir(p))
    call(f"below it {path}", lambda: os.stat(p + "/x"))
    call(f"with a slash {path}", lambda: os.stat(p + "/"))
    call(f"in a child {path}", lambda: in_child(p))
    call(f"inherited {path}", lambda: inherited(p))
    call(f"in threads {path}", lambda: in_threads(p))


def sent(fd):
    with tempfile.TemporaryFile() as out:
        while os.sendfile(out.fileno(), fd, out.tell(), 1 << 20):
            out.seek(0, os.SEEK_END)
        out.seek(0)
        return digest(out.read())


def mapped_and_written(fd, flags):
    memory = mmap.mmap(fd, 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[0] = 1
    return memory[0]


def by_stream(path, mode, name):
    stream = c(name, path, mode, kind=ctypes.c_void_p)
    data, buffer = b"", ctypes.create_string_buffer(1000)
    while n := libc.fread(buffer, 1, 1000, ctypes.c_void_p(stream)):
        data += buffer.raw[:n]
    libc.fseek(ctypes.c_void_p(stream), ctypes.c_long(0), 2)
    end = libc.ftell(ctypes.c_void_p(stream))
    libc.fclose(ctypes.c_void_p(stream))
    return digest(data), end


def in_child(path):
    r, w = os.pipe()
    if os.fork() == 0:
        try:
            os.write(w, digest(open(path, "rb").read()).encode())
        finally:
            os._exit(0)
    os.wait()
    os.close(w)
    with os.fdopen(r, "rb") as pipe:
        return pipe.read().decode()


def inherited(path):
    with open(path, "rb") as file:
        found = subprocess.run(["md5sum"], stdin=file, capture_output=True, check=True)
    return found.stdout.decode()


def in_threads(path):
    found = []
    work = [threading.Thread(target=lambda: found.append(digest(open(path, "rb").read()))) for _ in range(8)]
    [t.start() for t in work]
    [t.join() for t in work]
    return len(found), set(found).pop()


def listings(path):
    p = inside(path)
    b = p.encode()
    call(f"listdir {path}", lambda: sorted(os.listdir(p)))
    call(f"scandir {path}", lambda: sorted((e.name, e.is_dir(), e.is_file()) for e in os.scandir(p)))
    call(f"scandir, stat {path}", lambda: sorted((e.name, shape(e.stat())) for e in os.scandir(p)))
    call(f"scandir, inodes {path}", lambda: all(e.inode() == os.stat(e.path).st_ino for e in os.scandir(p)))
    call(f"walk {path}", lambda: sorted((os.path.relpath(a, args.folder), sorted(d), sorted(f))
                                        for a, d, f in os.walk(p)))
    call(f"readdir, positions {path}", lambda: positions(b))
    call(f"scandir(3) {path}", lambda: scandir3(b))
    fd = os.open(p, os.O_RDONLY | os.O_DIRECTORY)
    call(f"listdir of a descriptor {path}", lambda: sorted(os.listdir(fd)))
    call(f"fstat of a folder {path}", lambda: shape(os.fstat(fd)))
    call(f"fstatvfs {path}", lambda: os.fstatvfs(fd).f_namemax)
    name = sorted(os.listdir(p))[0]
    call(f"stat by folder {path}", lambda: shape(os.stat(name, dir_fd=fd)))
    call(f"stat by folder, missing {path}", lambda: os.stat("missing", dir_fd=fd))
    call(f"access by folder {path}", lambda: os.access(name, os.R_OK, dir_fd=fd))
    call(f"open by folder {path}", lambda: shape(os.fstat(os.open(name, os.O_RDONLY, dir_fd=fd))))
    call(f"open . by folder {path}", lambda: sorted(os.listdir(os.open(".", os.O_RDONLY, dir_fd=fd))))
    call(f"same folder {path}", lambda: os.fstat(fd).st_ino == os.stat(p).st_ino)
    call(f"fwalk {path}", lambda: sorted((os.path.relpath(a, args.folder), sorted(d), sorted(f))
                                         for a, d, f, _ in os.fwalk(p)))
    os.close(fd)
    call(f"open for writing {path}", lambda: os.open(p, os.O_WRONLY))
    call(f"open, no slash needed {path}", lambda: sorted(os.listdir(p + "/.")))


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_ushort),
                ("type", ctypes.c_ubyte), ("name", ctypes.c_char * 256)]


def positions(path):
    """Entries from each position are those that come after it."""
    libc.telldir.restype = ctypes.c_long
    libc.readdir.restype = ctypes.POINTER(Dirent)
    folder = ctypes.c_void_p(c("opendir", path, kind=ctypes.c_void_p))
    names, places = [], []
    while True:
        places.append(libc.telldir(folder))
        entry = libc.readdir(folder)
        if not entry:
            break
        names.append(bytes(entry.contents.name))
    for at in range(len(names)):
        libc.seekdir(folder, ctypes.c_long(places[at]))
        if bytes(libc.readdir(folder).contents.name) != names[at]:
            return f"another entry at {at}"
    libc.rewinddir(folder)
    again = bytes(libc.readdir(folder).contents.name) == names[0]
    own = shape(os.fstat(libc.dirfd(folder)))
    return libc.closedir(folder), sorted(names), again, own


def scandir3(path):
    found = ctypes.POINTER(ctypes.POINTER(Dirent))()
    count = c("scandir", path, ctypes.byref(found), None, libc.alphasort)
    return [bytes(found[i].contents.name) for i in range(count)]


def refusals():
    file, folder, new = inside("a/one.bin"), inside("a"), inside("a/new")
    both = ((os.O_WRONLY, "O_WRONLY"), (os.O_RDWR, "O_RDWR"), (os.O_RDONLY | os.O_TRUNC, "O_TRUNC"),
            (os.O_WRONLY | os.O_APPEND, "O_APPEND"))
    for flags, name in both:
        writes(f"open {name}", "EROFS", os.open, file, flags)
        if flags & os.O_ACCMODE:
            writes(f"open folder {name}", "EISDIR", os.open, folder, flags)
        writes(f"open missing {name}", "ENOENT", os.open, new, flags)
    for flags, name in ((os.O_CREAT | os.O_WRONLY, "O_CREAT"), (os.O_CREAT, "O_CREAT alone")):
        writes(f"open missing {name}", "EROFS", os.open, new, flags)
    writes("open O_EXCL", "EEXIST", os.open, file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    writes("creat", "EROFS", lambda: c("creat", new.encode(), 0o644))
    for mode in ("w", "a", "r+", "w+", "a+"):
        writes(f"fopen {mode}", "EROFS", lambda: c("fopen", file.encode(), mode.encode(), kind=ctypes.c_void_p))
    writes("unlink", "EROFS", os.unlink, file)
    writes("unlink missing", "EROFS", os.unlink, new)
    writes("unlink below nothing", "ENOENT", os.unlink, new + "/x")
    writes("unlink below a file", "ENOTDIR", os.unlink, file + "/x")
    writes("rmdir", "EROFS", os.rmdir, folder)
    writes("mkdir", "EROFS", os.mkdir, new)
    writes("mkdir of what is there", "EEXIST", os.mkdir, folder)
    writes("mkfifo", "EROFS", os.mkfifo, new)
    writes("symlink", "EROFS", os.symlink, "x", new)
    writes("link", "EROFS", os.link, file, new)
    writes("rename", "EROFS", os.rename, file, new)
    writes("rename to elsewhere", "EXDEV", os.rename, file, os.path.join(tempfile.gettempdir(), "new"))
    writes("truncate", "EROFS", os.truncate, file, 0)
    writes("chmod", "EROFS", os.chmod, file, 0o600)
    writes("chown", "EROFS", os.chown, file, 0, 0)
    writes("utime", "EROFS", os.utime, file)
    writes("setxattr", "EROFS", os.setxattr, file, "user.x", b"1")
    writes("removexattr", "EROFS", os.removexattr, file, "user.x")
    writes("access W", "EROFS", lambda: c("access", file.encode(), os.W_OK))
    fd = os.open(file, os.O_RDONLY)
    call("write to a descriptor", os.write, fd, b"x")
    call("mmap shared, writable", lambda: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_WRITE))
    call("F_GETFL", lambda: fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE)
    call("ftruncate", os.ftruncate, fd, 0)
    os.close(fd)
    call("read of a folder", lambda: os.read(os.open(folder, os.O_RDONLY), 1))
    call("chdir missing", os.chdir, new)
    call("chdir file", os.chdir, file)
    for name, function in (("chdir folder", lambda: os.chdir(folder)),
                           ("fchdir folder", lambda: os.fchdir(os.open(folder, os.O_RDONLY)))):
        before = os.getcwd()
        call(name, function)
        os.chdir(before)


def paths():
    for path in ("missing", "a/missing", "missing/x", "a/one.bin/x", "x" * 255, "x" * 256, "a/" + "y" * 300,
                 "a/../a/one.bin", "a/./one.bin", "a//one.bin", "./a/one.bin", "a/b/../one.bin", "a/one.bin/..",
                 "../" + os.path.basename(args.folder) + "/a/one.bin", "a/b/../../top", "missing/../top",
                 "a/" * 100 + "x", "z/" * 2100):
        short = path if len(path) < 80 else f"{path[:8]}... ({len(path)})"
        short = short.replace(os.path.basename(args.folder), "FOLDER")
        p = args.folder + "/" + path
        call(f"stat of {short}", lambda: shape(os.stat(p)))
        call(f"open of {short}", lambda: os.close(os.open(p, os.O_RDONLY)))
        call(f"listdir of {short}", lambda: len(os.listdir(p)))
        if len(p) < 4000:
            call(f"realpath of {short}", lambda: realpath(p.encode()))
    before = os.getcwd()
    os.chdir(os.path.dirname(args.folder))
    base = os.path.basename(args.folder)
    call("relative", lambda: digest(open(base + "/a/one.bin", "rb").read()))
    call("relative with dots", lambda: digest(open("./" + base + "/../" + base + "/a/one.bin", "rb").read()))
    call("relative listing", lambda: sorted(os.listdir(base)))
    os.chdir("/")
    call("relative from /", lambda: digest(open(args.folder[1:] + "/a/one.bin", "rb").read()))
    os.chdir(before)


PROGRAMS = {
    "cat": "cat {f}/a/one.bin {f}/top | md5sum",
    "md5sum": "cd / && md5sum {f}/a/*.bin | cut -c1-32",
    "ls": "ls {f}", "ls -a": "ls -a {f}/a", "ls -R": "ls -R {f} | sed 's#{f}##'",
    "ls -l": "ls -l {f}/a | awk '{{print $1, $5, $9}}' | grep -v '^d\\|^total'",
    "ls missing": "ls {f}/missing 2>&1 | sed 's#{f}##'",
    "stat -c": "stat -c '%F %a %s' {f}/a/one.bin {f}/top",
    "wc": "wc -c < {f}/a/one.bin", "head": "head -c 100 {f}/a/one.bin | md5sum",
    "tail": "tail -c 100 {f}/a/one.bin | md5sum", "od": "od -An -tx1 -j10 -N20 {f}/a/one.bin",
    "cmp": "cmp {f}/a/one.bin {f}/a/two.bin; echo $?", "dd": "dd if={f}/a/one.bin bs=100 skip=3 count=2 2>/dev/null | md5sum",
    "cp": "cp {f}/a/one.bin {t}/cp && md5sum < {t}/cp", "cp -r": "cp -r {f}/. {t}/all && cd {t}/all && find . -type f | sort | xargs md5sum",
    "cp --no-clobber": "cp -n {f}/top {t}/top && md5sum < {t}/top", "install": "install -m 644 {f}/top {t}/i && md5sum < {t}/i",
    "find": "find {f} | sed 's#{f}##' | sort", "find -type f": "find {f} -type f | sed 's#{f}##' | sort",
    "find -size": "find {f} -size +1k -type f | sed 's#{f}##' | sort", "find -name": "find {f} -name '*.bin' | sed 's#{f}##' | sort",
    "find -exec": "find {f} -type f -exec md5sum {{}} + | cut -c1-32 | sort", "find -execdir": "find {f}/a -name one.bin -execdir md5sum {{}} ';' | cut -c1-32",
    "du": "du -b --apparent-size {f}/a/one.bin | cut -f1", "diff -r": "mkdir -p {t}/d && cp -r {f}/. {t}/d/x && diff -r {f} {t}/d/x; echo $?",
    "tar": "tar -cf - -C {p} {b}/a/one.bin | tar -tf - | sed 's#{b}##'", "tar, whole": "tar -cf {t}/tar {f} 2>/dev/null && mkdir -p {t}/x && tar -xf {t}/tar -C {t}/x && cd {t}/x/{f} && find . -type f | sort | xargs md5sum",
    "grep -r": "grep -rlc . {f} | sed 's#{f}##' | sort", "sort": "sort {f}/text", "awk": "awk 'END {{print NR}}' {f}/text", "sed": "sed -n 2p {f}/text",
    "sh: test": "test -f {f}/top && test -d {f}/a && test ! -e {f}/no && test -r {f}/top; echo $?",
    "sh: glob": "cd / && echo {f}/a/*.bin | sed 's#{f}##g'", "sh: redirect": "wc -l < {f}/text", "sh: cd": "cd {f}/a && cat one.bin | md5sum",
    "readlink -f": "readlink -f {f}/a/../top | sed 's#{f}##'", "realpath": "realpath {f}/a | sed 's#{f}##'",
    "python: import": "cd / && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={f}/code python3 -c 'import module; print(module.X)'",
    "git hash-object": "git hash-object {f}/a/one.bin {f}/top",
    "git log": "cd / && git --git-dir={f}/repo.git log --oneline --stat",
    "git cat-file": "cd / && git --git-dir={f}/repo.git cat-file -p HEAD:a/one.bin | md5sum",
    "git fsck": "cd / && git --git-dir={f}/repo.git fsck --full",
    "git clone": "cd / && git clone -q {f}/repo.git {t}/clone && ls {t}/clone/a && md5sum < {t}/clone/a/two.bin",
    "git archive": "cd / && git --git-dir={f}/repo.git archive HEAD | md5sum",
}


# Programs that start slowly, by `tools/check --all` alone, which names a Python.
SLOW = {
    "node": "node -e 'const f = require(\"fs\"), c = require(\"crypto\"); const h = b => c.createHash(\"md5\").update(b)"
            ".digest(\"hex\"); const p = \"{f}/a/one.bin\"; console.log(h(f.readFileSync(p)), "
            "f.existsSync(p + \"x\"), f.readdirSync(\"{f}/a\", {{withFileTypes: true}}).map(e => e.name + e.isFile())"
            ".sort().slice(0, 5).join()); const d = f.openSync(p, \"r\"); const b = Buffer.alloc(10); "
            "console.log(f.readSync(d, b, 0, 10, 100), h(b)); let why = \"EROFS\"; if (\"{r}\" == \"\") "
            "try {{ f.writeFileSync(p + \"x\", b); why = \"written\" }} catch (e) {{ why = e.code }} console.log(why)'",
    "node, stat": "node -e 'console.log(require(\"fs\").statSync(\"{f}/a/one.bin\").size)'",
    "node, stream": "node -e 'let n = 0; require(\"fs\").createReadStream(\"{f}/a/two.bin\").on(\"data\", d => n += d.length)"
                    ".on(\"end\", () => console.log(n))'",
    "java nio": "java {t}/Conformance.java {f} {r}",
    "ffmpeg": "ffmpeg -v error -f u8 -ar 8000 -ac 1 -i {f}/a/two.bin -f md5 -",
    "ffmpeg, seeking": "ffmpeg -v error -f u8 -ar 8000 -ac 1 -ss 3 -t 5 -i {f}/a/two.bin -f md5 -",
}

JAVA = r"""
import java.nio.*; import java.nio.channels.*; import java.nio.file.*; import java.util.*;
class Conformance {
    public static void main(String[] a) throws Exception {
        Path one = Path.of(a[0], "a/one.bin");
        System.out.println(Arrays.hashCode(Files.readAllBytes(one)) + " " + Files.size(one));
        try (FileChannel c = FileChannel.open(one, StandardOpenOption.READ)) {
            MappedByteBuffer m = c.map(FileChannel.MapMode.READ_ONLY, 0, c.size());
            ByteBuffer b = ByteBuffer.allocate(100);
            System.out.println(m.hashCode() + " " + c.read(b, 4950) + " " + c.position() + " " + c.size());
        }
        try (var s = Files.walk(Path.of(a[0], "a"))) { System.out.println(s.filter(Files::isRegularFile).count()); }
        try (var s = Files.newDirectoryStream(Path.of(a[0], "a"), "*.bin")) {
            List<String> names = new ArrayList<>(); s.forEach(p -> names.add(p.getFileName().toString()));
            Collections.sort(names); System.out.println(names);
        }
        System.out.println(Files.exists(Path.of(a[0], "no")) + " " + Files.isReadable(one));
        if (a.length == 1) { // a door, where writing must fail
            try { Files.write(Path.of(a[0], "new"), new byte[1]); System.out.println("written"); }
            catch (FileSystemException e) { }
        }
    }
}
"""


def programs():
    folder = args.folder
    slow = SLOW if "DLFS_TEST_PYTHON" in os.environ else {}
    for name, text in {**PROGRAMS, **slow}.items():
        program = name.split(",")[0].split(" ")[0]
        if (name in SLOW or program == "git") and not shutil.which(program):
            print(f"{program} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as scratch:
            words = {"f": folder, "t": scratch, "p": os.path.dirname(folder), "b": os.path.basename(folder)}
            words["r"] = "" if args.door else folder  # a folder that may be written to
            with open(os.path.join(scratch, "Conformance.java"), "w") as source:
                source.write(JAVA)
            run = subprocess.run(["/bin/sh", "-c", text.format(**words)], capture_output=True, timeout=120)
            line(name, (run.returncode, run.stdout.decode(errors="replace")))


def modules():
    """What Python packages do with files, where they are installed."""
    file = inside("a/one.bin")
    try:
        import numpy
        call("numpy.fromfile", lambda: numpy.fromfile(file, dtype="u1").sum())
        call("numpy.memmap", lambda: numpy.memmap(file, dtype="u1", mode="r").sum())
    except ImportError:
        print("numpy is not installed", file=sys.stderr)
        if os.path.exists(inside("array.npy")):
            call("numpy.load", lambda: numpy.load(inside("array.npy")).sum())
            call("numpy.load, mapped", lambda: numpy.load(inside("array.npy"), mmap_mode="r")[3:5].tolist())
    if torch := installed("torch", "tensor.pt"):
        call("torch.load", lambda: torch.load(inside("tensor.pt")).sum().item())
        call("torch.load, mapped", lambda: torch.load(inside("tensor.pt"), mmap=True).sum().item())
        call("torch.from_file", lambda: torch.from_file(inside("a/one.bin"), size=5000, dtype=torch.uint8).sum().item())
    if h5py := installed("h5py", "data.h5"):
        def rows(**how):
            with h5py.File(inside("data.h5"), "r", **how) as opened:
                return opened["x"][17:400:7].sum().item(), dict(opened["x"].attrs)

        call("h5py", rows)
        call("h5py, through Python's file", lambda: h5py.File(open(inside("data.h5"), "rb"), "r")["x"][:].sum().item())
        call("h5py, in memory", lambda: rows(driver="core", backing_store=False))
        writes("h5py, to write", "EROFS", lambda: h5py.File(inside("data.h5"), "r+"))
    if installed("PIL", "image.png"):
        from PIL import Image
        call("PIL", lambda: Image.open(inside("image.png")).convert("RGB").getpixel((3, 2)))
        call("PIL, all", lambda: hashlib.md5(Image.open(inside("image.png")).tobytes()).hexdigest())


def installed(name, file):
    """The package, if it is there and has a file to read."""
    try:
        package = __import__(name)
    except ImportError:
        print(f"{name} is not installed", file=sys.stderr)
        return None
    return package if os.path.exists(inside(file)) else None


def walks():
    """The C library's own walks, from C."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    found = []
    visit = kind(lambda path, stat, kind, level: found.append(path) or 0)
    libc.nftw(inside("a").encode(), visit, 16, 1)
    line("nftw", len(found))
    line("fts", by_fts(inside("a").encode()))
    line("glob", by_glob(inside("a/*.bin").encode()))


class FtsEntry(ctypes.Structure):
    _fields_ = [("cycle", ctypes.c_void_p), ("parent", ctypes.c_void_p), ("link", ctypes.c_void_p),
                ("number", ctypes.c_long), ("pointer", ctypes.c_void_p), ("accpath", ctypes.c_char_p),
                ("path", ctypes.c_char_p)]


def by_fts(path):
    """The paths of a physical walk, each folder before and after what is in it."""
    roots = (ctypes.c_char_p * 2)(path, None)
    physical, stays = 0x10, 0x4
    walk = ctypes.c_void_p(c("fts_open", roots, physical | stays, None, kind=ctypes.c_void_p))
    libc.fts_read.restype = ctypes.POINTER(FtsEntry)
    found = []
    while entry := libc.fts_read(walk):
        found.append(os.path.relpath(entry.contents.path.decode(), args.folder))
    libc.fts_close(walk)
    return sorted(found)


class Glob(ctypes.Structure):
    _fields_ = [("count", ctypes.c_size_t), ("paths", ctypes.POINTER(ctypes.c_char_p)), ("rest", ctypes.c_char * 128)]


def by_glob(pattern):
    found = Glob()
    result = libc.glob(pattern, 0, None, ctypes.byref(found))
    return result, [os.path.relpath(found.paths[i].decode(), args.folder) for i in range(found.count)]


def make():
    """What other programs read, beside the files that are there already."""
    if shutil.which("git"):
        person = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        date = {**os.environ, "GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000"}
        with tempfile.TemporaryDirectory() as tree:
            for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["gc", "-q"]):
                if arguments[0] == "add":
                    shutil.copytree(inside("a"), os.path.join(tree, "a"))
                subprocess.run(["git", *person, *arguments], cwd=tree, env=date, check=True)
            subprocess.run(["git", "clone", "-q", "--bare", "--template=", tree, inside("repo.git")], check=True)
        bare = ["git", "--git-dir", inside("repo.git")]
        commit = subprocess.run([*bare, "rev-parse", "main"], check=True, capture_output=True).stdout
        # An image has no empty folders, and git wants to see this one.
        os.makedirs(inside("repo.git/refs/heads"), exist_ok=True)
        with open(inside("repo.git/refs/heads/other"), "wb") as ref:
            ref.write(commit)
        for top, _, _ in os.walk(inside("repo.git"), topdown=False):
            if not os.listdir(top):
                os.rmdir(top)
    try:
        import numpy
        numpy.save(inside("array.npy"), numpy.arange(20_000, dtype="f4").reshape(100, 200))
    except ImportError:
        pass
    try:
        import torch
        torch.save(torch.arange(50_000, dtype=torch.float32), inside("tensor.pt"))
    except ImportError:
        pass
    try:
        import h5py
        with h5py.File(inside("data.h5"), "w") as opened:
            opened["x"] = numpy.arange(300_000)
            opened["x"].attrs["unit"] = "s"
    except ImportError:
        pass
    try:
        from PIL import Image
        Image.effect_noise((100, 80), 50).convert("RGB").save(inside("image.png"))
    except ImportError:
        pass


parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--door", choices=list(DIFFERS))
parser.add_argument("--against", choices=list(DIFFERS), help="the door that this output is compared with")
parser.add_argument("--make", action="store_true", help="add what programs read, where they are installed")
args = parser.parse_args()
if args.make:
    make()
    sys.exit()
for file in ("a/one.bin", "a/two.bin", "empty", "a/b/deep.bin"):
    attributes(file)
    reads(file)
for folder in ("", "a", "a/b"):
    attributes(folder)
    listings(folder)
attributes("missing")
paths()
refusals()
walks()
programs()
modules()
print(f"{done} calls", file=sys.stderr)

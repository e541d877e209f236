"""Exceptions: one class per kind of error, each derived from the built-in exception that fits.

Every text says what was being done, where, why it failed and, if possible, what to do. `sample_id` is the
sample concerned, or None.
"""

import errno


class Error(Exception):
    """Any error of dlfs; the classes below are its kinds."""

    sample_id: int | None = None


class InvalidArgument(Error, ValueError):
    """An argument of the call is invalid."""


class NoArray(InvalidArgument, AttributeError):
    """The batch has no such array: lengths or shapes differ, a sample lacks the field, or samples have several fields.

    It is an AttributeError, too, so that hasattr and getattr with a default answer instead of raising.
    """


class NotFound(Error, LookupError):
    """The sample, file, namespace or target does not exist."""


class FileNotFound(NotFound, FileNotFoundError):
    """There is no such file: the image, or a file that an option names."""

    errno = errno.ENOENT

    def __str__(self) -> str:
        # OSError would print only the file.
        return Exception.__str__(self)


class IndexOutOfRange(NotFound, IndexError):
    """No sample has this index."""


class NameNotFound(NotFound, KeyError):
    """No sample has this name."""

    def __str__(self) -> str:
        # KeyError would print the repr of its argument, which escapes the text.
        return Exception.__str__(self)


class Corrupt(Error, OSError):
    """Bytes on media or on the wire are damaged, even after reading them again."""


class Unsupported(Error, NotImplementedError):
    """A newer format, a feature or a device property that this build does not know."""


class Disconnected(Error, ConnectionError):
    """The connection was lost and could not be restored in time."""


class TimedOut(Error, TimeoutError):
    """The deadline of the call has passed."""


class Refused(Error, OSError):
    """The target or the operating system refused."""


class Busy(Error, OSError):
    """Another process, such as an importer, is using the image, the device or the address."""


class Stale(Error):
    """The image has a newer generation: open it again."""


class NoSpace(Error, OSError):
    """The medium is full."""


class OutOfMemory(Error, MemoryError):
    """There is not enough memory within the configured limits."""


class DeviceLost(Error, RuntimeError):
    """An accelerator was lost, or its driver ended: this process cannot use it any more."""


class WorkerDied(Error, ChildProcessError):
    """A worker process of a loader was killed, or ended, while it had a batch."""


class Internal(Error, RuntimeError):
    """A bug in dlfs: one of its threads died, and the text has its panic message."""

"""What can go wrong, as exceptions: one class a kind, each also what Python itself would raise.

Every text says what was being done, where, why it failed and, where something can be done about it,
what. `sample_id` is the sample that it is about, or None.
"""

import errno


class Error(Exception):
    """Any failure of dlfs; the classes below say which."""

    sample_id: int | None = None


class InvalidArgument(Error, ValueError):
    """The call asks for something that cannot be: mend the call."""


class NotFound(Error, LookupError):
    """The sample, file, namespace or target does not exist."""


class FileNotFound(NotFound, FileNotFoundError):
    """There is no such file: the image, or a file that an option names."""

    errno = errno.ENOENT

    def __str__(self) -> str:
        # OSError shows the file alone.
        return Exception.__str__(self)


class IndexOutOfRange(NotFound, IndexError):
    """No sample has this index."""


class NameNotFound(NotFound, KeyError):
    """No sample has this name."""

    def __str__(self) -> str:
        # KeyError shows the representation of its argument, which would escape the text.
        return Exception.__str__(self)


class Corrupt(Error, OSError):
    """Bytes on media or wire are damaged, also after reading them again."""


class Unsupported(Error, NotImplementedError):
    """A newer format, a feature or a device property that this build does not know."""


class Disconnected(Error, ConnectionError):
    """The connection is gone and did not come back within its time."""


class TimedOut(Error, TimeoutError):
    """The call's deadline passed."""


class Refused(Error, OSError):
    """The target or the operating system said no."""


class Busy(Error, OSError):
    """Somebody else is at work here, another importer for example."""


class Stale(Error):
    """The image has moved on to another generation: open it again."""


class NoSpace(Error, OSError):
    """The medium is full."""


class OutOfMemory(Error, MemoryError):
    """Memory within the configured limits does not suffice."""


class Internal(Error, RuntimeError):
    """A mistake in dlfs itself: one of its threads died, and the text has its last words."""

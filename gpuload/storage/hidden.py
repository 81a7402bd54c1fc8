"""Hidden names: files and folders that are no data of the user. A folder or wildcard of the user's
leaves them out.

Hidden  names that begin with a dot: ``.ipynb_checkpoints``, ``.thumbnails``, ``._0.png`` of a Mac.
System  folders of a file system, a file server or an archiver. They hold small copies of images
        (``@eaDir``), removed files, or folders for the system alone (``lost+found``).
"""

from __future__ import annotations

SYSTEM_FOLDERS = frozenset(
    {
        "__MACOSX",  # of macOS, in archives
        *("@eaDir", "#recycle", "#snapshot"),  # of Synology
        *("@Recycle", "@Recently-Snapshot"),  # of QNAP
        *("$RECYCLE.BIN", "$Recycle.Bin", "RECYCLER", "System Volume Information"),  # of Windows
        "lost+found",  # of ext4
    }
)


def is_hidden_name(name: str) -> bool:
    """Return True for the name of a file or a folder that is no data of the user."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def may_mean(pattern: str, name: str) -> bool:
    """Return False if a name is hidden, and a part of a wildcard does not ask for it by its first
    character."""
    return pattern[:1] == name[:1] or not is_hidden_name(name)

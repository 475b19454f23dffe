"""The files a program finds: the standard library, devices, a folder of its own."""

import os
import sys

from rl_jax.rewards.sandbox import kernel

BOX = "/box"  # the program's folder, and where it starts
_SHARED = "/dev/shm"  # where libc keeps semaphores; the same folder
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
# Folders inside the standard library that are not part of it.
_ADDED = ("site-packages", "dist-packages")

# mount(2) wants flags kept that another user has locked; statvfs(3) tells them.
_KEPT_FLAGS = (
    kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | 1024 | 2048  # atime
)
_ST_RELATIME, _MS_RELATIME = 4096, 1 << 21


def library() -> list[str]:
    """Files and folders of the standard library, none inside another."""
    paths: list[str] = []
    for path in sorted({os.path.abspath(entry) for entry in sys.path if entry}):
        inside = any(path.startswith(other + "/") for other in paths)
        if os.path.exists(path) and not inside:
            paths.append(path)
    return paths


def library_parts() -> dict[str, list[str]]:
    """Each folder of the library -> what is in it, but for added packages."""
    return {
        folder: [
            os.path.join(folder, name)
            for name in sorted(os.listdir(folder))
            if name not in _ADDED
        ]
        for folder in library()
        if os.path.isdir(folder)
    }


def build() -> str:
    """Mounts the new root, not yet entered. Needs a mount namespace of its own.

    Raises:
        OSError: the kernel refuses a step; the message names it.
    """
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    # By descriptor: the new root may come to lie over one of them.
    sources = {path: os.open(path, os.O_PATH) for path in [*library(), *DEVICES]}
    new = "/tmp" if os.path.isdir("/tmp") else "/usr"
    kernel.mount(
        "tmpfs",
        new,
        "tmpfs",
        kernel.MS_NOSUID | kernel.MS_NODEV,
        "size=1m,nr_inodes=1k,mode=755",
    )
    for path, fd in sources.items():
        is_folder = os.path.isdir(f"/proc/self/fd/{fd}")
        target = new + path
        os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
        if not is_folder:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        kernel.mount(f"/proc/self/fd/{fd}", target, "", kernel.MS_BIND)
        os.close(fd)
        device = path in DEVICES
        _make_read_only(target, kernel.MS_NOEXEC if device else kernel.MS_NODEV)
        for name in _ADDED if is_folder else ():
            if os.path.isdir(os.path.join(target, name)):
                _hide(os.path.join(target, name))
    for folder in (BOX, _SHARED, "/proc"):
        os.mkdir(new + folder, 0o755)
    return new


def enter(new: str) -> None:
    """Makes `new` the root; the old one is gone for all of this namespace."""
    os.chdir(new)
    kernel.call("pivot_root", b".", b".")
    kernel.call("umount2", b".", kernel.MNT_DETACH)
    os.chdir("/")
    _make_read_only("/", kernel.MS_NODEV)


def mount_processes(path: str) -> bool:
    """Mounts this process namespace's /proc; False if the kernel refuses.

    It does in a container that hides parts of its own /proc.
    """
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    try:
        kernel.mount("proc", path, "proc", flags)
    except OSError:
        return False
    return True


def mount_box(size_bytes: int, owner: int) -> None:
    """An empty folder in memory that holds no more than this."""
    kernel.mount(
        "tmpfs",
        BOX,
        "tmpfs",
        kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC,
        f"size={size_bytes},nr_inodes=4k,mode=700,uid={owner},gid={owner}",
    )
    kernel.mount(BOX, _SHARED, "", kernel.MS_BIND)


def _make_read_only(path: str, flags: int) -> None:
    found = os.statvfs(path).f_flag
    flags |= kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID
    flags |= found & _KEPT_FLAGS
    if found & _ST_RELATIME:
        flags |= _MS_RELATIME
    kernel.mount("none", path, "", flags)


def _hide(path: str) -> None:
    flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", path, "tmpfs", flags, "size=4k,nr_inodes=2,mode=555")

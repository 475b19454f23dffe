"""What the kernel allowed here, found once by the zygote and told to everybody."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Layers:
    """How programs are kept apart. Plain values: it travels as JSON.

    namespaces: user, mount, process, network, ipc and uts namespaces; a program then
        has its own files and processes.
    landlock: version of Landlock, 0 if there is none.
    user: the user id that programs take on; None if they keep the grader's.
    counted: the kernel keeps to the limit on a program's processes.
    watched: the memory of a family can be read from a private /proc.
    notify: refused system calls are reported.
    base_bytes, base_resident: address space and memory of the bare interpreter.
    base_processes: others that the kernel counts against a program's limit.
    notes: what did not work, and why, in words.
    """

    namespaces: bool
    landlock: int
    user: int | None
    counted: bool
    watched: bool
    notify: bool
    base_bytes: int
    base_resident: int
    base_processes: int
    notes: tuple[str, ...] = ()

    def may_fork(self, bounded: bool) -> bool:
        """Whether a program may have children: only where all can be bounded.

        Args:
            bounded: a control group bounds the memory of the family.
        """
        return self.namespaces and self.counted and (self.watched or bounded)

    @property
    def level(self) -> str:
        """One of `LEVELS`."""
        if self.namespaces:
            return "namespaces"
        return "landlock" if self.landlock else "none"

"""Runs one program with restricted rights; a script for `programs.py`, which starts it in a new process and a new folder.

Standard input holds JSON: the program, the code of its tests, the exit status that means success, and limits. The script gives
up what the kernel lets it give up, runs program and tests in its own interpreter, and leaves with that status after the last
test. Every other status is a failure: a program that exits early has not passed.

Landlock (Linux 5.13) restricts files, and seccomp system calls; neither needs a privilege. `programs.py` tries what is missing.
This keeps mistakes of a model from doing harm; it is no defence against a program that is written to escape.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import struct
import sys

_CAPABILITIES = 0x20080522  # version 3 of capset
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # of prctl
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls of Landlock, alike on all processors
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
# Execute, write, remove and make (linux/landlock.h); reading stays allowed, and nothing that is read can leave.
_FILE_RIGHTS = 1 | _WRITE_FILE | sum(1 << bit for bit in range(4, 13))

_X86_64 = 0xC000003E  # linux/audit.h
_REFUSED = (
    *(41, 53, 425),  # sockets, io_uring
    *(56, 57, 58, 435, 59, 322),  # processes, threads, programs
    *(62, 200, 234, 129, 297, 424),  # signals
    *(101, 310, 311, 438, 272, 308, 109, 112),  # tracing, other namespaces, leaving the process group
    *(160, 302),  # limits
    *(29, 64, 68, 240),  # shared memory, semaphores, message queues
    # What Landlock leaves out: truncation by name, permissions, owners, times and attributes of files.
    *(76, 90, 91, 268, 452, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199),
)
"""Numbers of system calls on x86-64."""
_FIRST_X32_CALL = 0x40000000
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # the second gives EPERM


def main() -> None:
    """Read the work, restrict this process, run the program and its tests."""
    work = json.load(sys.stdin)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)  # becomes file 0
    library = ctypes.CDLL(None, use_errno=True)
    for name, value in work["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if sys.platform == "linux":
        library.capset(struct.pack("Ii", _CAPABILITIES, 0), bytes(24))  # root keeps its name, but not its powers
        library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _restrict_files(library)
        if platform.machine() == "x86_64":
            _restrict_calls(library)
    names: dict[str, object] = {"__name__": "program"}
    for part in (work["program"], work["tests"]):
        exec(compile(part, "program.py", "exec"), names)  # noqa: S102 (the purpose of this process)
    os._exit(work["passed"])


def _restrict_files(library: ctypes.CDLL) -> None:
    """Allow no change of a file outside the current folder, and no execution, where the kernel has Landlock."""
    version = library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    rights = _FILE_RIGHTS | (_REFER if version > 1 else 0) | (_TRUNCATE if version > 2 else 0)
    attribute = struct.pack("Q", rights)
    ruleset = library.syscall(_CREATE_RULESET, attribute, ctypes.c_size_t(len(attribute)), 0)
    for path, allowed in ((".", rights & ~1), (os.devnull, _WRITE_FILE)):
        place = os.open(path, os.O_PATH)
        library.syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0)
        os.close(place)
    library.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _restrict_calls(library: ctypes.CDLL) -> None:
    """Refuse the system calls of `_REFUSED` with EPERM."""
    # Classic BPF on seccomp_data: the number of the call is at 0, the architecture at 4. An instruction is (code, skipped if
    # true, skipped if false, value): 0x20 loads, 0x15 compares for equality, 0x35 for at least, 0x06 returns.
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, _X86_64), (0x06, 0, 0, _KILL), (0x20, 0, 0, 0)]
    code.append((0x35, len(_REFUSED) + 1, 0, _FIRST_X32_CALL))
    code += [(0x15, len(_REFUSED) - index, 0, call) for index, call in enumerate(_REFUSED)]
    code += [(0x06, 0, 0, _ALLOW), (0x06, 0, 0, _REFUSE)]
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    instructions = ctypes.create_string_buffer(packed, len(packed))
    # struct sock_fprog: the number of instructions, and where they are.
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(instructions))
    library.prctl(_SET_SECCOMP, _FILTER, program, 0, 0)


if __name__ == "__main__":
    main()

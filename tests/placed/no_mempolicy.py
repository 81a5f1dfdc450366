"""Runs a command in which set_mempolicy and mbind fail with EPERM, as in a container without CAP_SYS_NICE."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

SYSCALLS = {"x86_64": (237, 238), "aarch64": (235, 237)}[platform.machine()]  # mbind, set_mempolicy
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
ALLOW, EPERM = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM


def main() -> None:
    rules = [(LOAD, 0, 0, 0), (EQUAL, 2, 0, SYSCALLS[0]), (EQUAL, 1, 0, SYSCALLS[1]), (RETURN, 0, 0, ALLOW),
             (RETURN, 0, 0, EPERM)]  # fmt: skip
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), "no_new_privs")
    if libc.prctl(22, 2, program):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "seccomp")
    os.execvp(sys.argv[1], sys.argv[1:])


main()

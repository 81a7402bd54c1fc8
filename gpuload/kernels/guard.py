"""Guard: reading a memory map of a file that was cut short is an error, never the end of the process.

Where a mapped file has lost its pages, or its disk fails, the kernel sends SIGBUS to the thread that reads them. For
addresses inside a registered range the handler here marks the range as broken, puts pages of zeros in place of what is
left of the range and returns, so that the copy goes on; whoever copied asks ``broken`` before it uses the bytes.
Any other SIGBUS goes where it went before: the handler that stood there is put back and the fault happens again.

Limits  Linux on x86-64 and aarch64 (siginfo_t has the address at byte 16); glibc or musl with statx.
State   one table of int64 for the process, read by the handler without a lock: SLOTS ranges of (start, end, broken, -).
Locks   none. A range is released by a finalizer, which may run at any line of any thread, also of one that is in here;
        and a lock that a thread holds while another one forks stays locked in the child for ever. Free slots are in a
        list, whose ``pop`` and ``append`` Python does as one step; two threads that install the handler at the same
        time write the same bytes.
Source  sigaction(2), mmap(2), pthread_sigmask(3); bits/types/siginfo_t.h of glibc.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpuload.kernels.compile import callback, kernel, libc
from gpuload.kernels.memory import load_int, load_word, store_word
from gpuload.kernels.table import SIGBUS, supported

SLOTS = 16384
SYMBOL = "gpuload_guard_state"
PAGE_SIZE, NUM_SLOTS, PASSED_ON, HANDLER, OLD_ACTION, DEFAULT_ACTION, TABLE = 0, 8, 16, 24, 64, 320, 576  # bytes
START, END, BROKEN, SLOT_BYTES = 0, 8, 16, 32
ACTION_BYTES = 256  # struct sigaction has 152
SA_SIGINFO, SA_ONSTACK, SA_RESTART = 0x4, 0x08000000, 0x10000000
SIG_UNBLOCK = 1
PROT_READ, MAP_ZEROS = 0x1, 0x2 | 0x20 | 0x10 | 0x4000  # PRIVATE, ANONYMOUS, FIXED, NORESERVE; of Linux, as below

_state = np.zeros((TABLE + SLOTS * SLOT_BYTES) // 8, np.int64)
_state_address = int(_state.ctypes.data)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_state))  # never freed: kernels may still run while Python exits
_state[PAGE_SIZE // 8] = mmap.PAGESIZE
_free: list[int] = []
llvmlite.binding.add_symbol(SYMBOL, _state_address)  # a name, so that the handler can be cached

_sigaction = libc("sigaction", types.int32, types.int32, types.int64, types.int64)
_raise = libc("raise", types.int32, types.int32)
_pthread_sigmask = libc("pthread_sigmask", types.int32, types.int32, types.int64, types.int64)
_mmap = libc("mmap", types.int64, types.int64, types.int64, types.int32, types.int32, types.int32, types.int64)


@intrinsic  # type: ignore[untyped-decorator]
def state_address(typing_context: Any) -> Any:
    """``state_address()``: where the table of this process is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = builder.module.globals.get(SYMBOL) or ir.GlobalVariable(builder.module, ir.IntType(64), SYMBOL)
        return builder.ptrtoint(table, ir.IntType(64))

    return types.int64(), generate


@kernel
def broken(slot: int) -> bool:
    """Return True if pages of the range in a slot were lost."""
    return bool(load_word(state_address() + TABLE + slot * SLOT_BYTES + BROKEN) != 0)


@kernel
def installed(scratch: int) -> bool:
    """Return True if SIGBUS still comes here; ``scratch`` is the address of 256 bytes to write to.

    It is let through in this thread, too: where a thread blocks the signal, a fault ends the process at once.
    """
    if _sigaction(SIGBUS, 0, scratch) != 0:
        return False
    ours = load_word(scratch) == load_word(state_address() + HANDLER)
    store_word(scratch, 1 << (SIGBUS - 1))  # a set of signals, of which the system reads 8 bytes
    return bool(_pthread_sigmask(SIG_UNBLOCK, scratch, 0) == 0 and ours)


def _on_bus_error(number, information, context):  # type: ignore[no-untyped-def]
    """The handler: integers only, no allocation, no lock, no Python."""
    state = state_address()
    is_fault = load_int(information + 8) > 0  # si_code; sent by kill or raise otherwise
    if is_fault:
        address = load_word(information + 16)
        slot = state + TABLE
        last = slot + load_word(state + NUM_SLOTS) * SLOT_BYTES
        while slot < last:
            end = load_word(slot + END)
            if 0 < load_word(slot + START) <= address < end:
                store_word(slot + BROKEN, 1)
                page = address - address % load_word(state + PAGE_SIZE)
                if _mmap(page, end - page, PROT_READ, MAP_ZEROS, -1, 0) == page:
                    return
            slot += SLOT_BYTES
    passed_on = load_word(state + PASSED_ON)
    store_word(state + PASSED_ON, 1)
    _sigaction(number, state + (DEFAULT_ACTION if passed_on else OLD_ACTION), 0)
    if not is_fault:
        _raise(number)


_handler = callback(types.void(types.int32, types.int64, types.int64))(_on_bus_error) if supported() else None
_state[HANDLER // 8] = _handler.address if _handler is not None else 0


def _num_slots() -> int:
    """Return how many maps there may be: a quarter of what the system allows a process, the rest is for others."""
    try:
        with open("/proc/sys/vm/max_map_count") as file:
            return min(SLOTS, int(file.read()) // 4)
    except (OSError, ValueError):
        return SLOTS // 4


_free.extend(reversed(range(_num_slots())))
_state[NUM_SLOTS // 8] = len(_free)


def install() -> None:
    """Make SIGBUS come here; where another handler stands (again), it is kept for the faults that are not ours."""
    system = ctypes.CDLL(None, use_errno=True)
    now = (ctypes.c_char * ACTION_BYTES)()
    if system.sigaction(SIGBUS, None, now) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if int.from_bytes(now.raw[:8], sys.byteorder) == _state[HANDLER // 8]:
        return
    ctypes.memmove(_state_address + OLD_ACTION, now, ACTION_BYTES)
    _state[PASSED_ON // 8] = 0
    action = np.zeros(ACTION_BYTES // 8, np.int64)  # handler, 128 bytes of mask, flags, restorer
    action[0] = _state[HANDLER // 8]
    action[17] = SA_SIGINFO | SA_ONSTACK | SA_RESTART
    system.sigaction(SIGBUS, ctypes.c_void_p(action.ctypes.data), None)


def protect(address: int, num_bytes: int) -> int | None:
    """Register a range of mapped memory; returns its slot, or None if all are taken."""
    try:
        slot = _free.pop()
    except IndexError:
        return None
    entry = _entry(slot)
    entry[:3] = 0, address + -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE, 0
    entry[0] = address
    return slot


def release(slot: int) -> None:
    """Forget a range; call it before the memory is unmapped, when nobody reads it any more."""
    _entry(slot)[:3] = 0
    _free.append(slot)


def _entry(slot: int) -> Any:
    start = TABLE // 8 + slot * SLOT_BYTES // 8
    return _state[start : start + SLOT_BYTES // 8]

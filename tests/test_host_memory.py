"""Freed memory stays in a few places; what they are for is in test_bench_checkpoint."""

import ctypes
import os
import subprocess
import sys

import pytest

from rl_jax import host_memory
from rl_jax.metrics import memory_bytes

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc"
)

# Threads that allocate at the same time get an arena each, up to the limit.
COUNTED = """
import ctypes, os, threading
from rl_jax import host_memory
done = host_memory.limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
barrier = threading.Barrier(12)
def take():
    barrier.wait()
    libc.malloc(5000)
    barrier.wait()
threads = [threading.Thread(target=take) for _ in range(12)]
[t.start() for t in threads]
[t.join() for t in threads]
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out)
libc.fclose(out)
print("limited", done)
"""


def arenas(**environ):
    environment = os.environ | environ
    done = subprocess.run(
        [sys.executable, "-c", COUNTED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.count("<heap nr"), done.stdout.splitlines()[-1]


def test_threads_share_a_few_arenas_unless_the_user_says_how_many():
    assert arenas() == (2, "limited True")
    assert arenas(MALLOC_ARENA_MAX="9") == (9, "limited False")


def test_what_was_freed_is_given_back():
    host_memory.give_back()  # what earlier tests left, so that it is not used again
    before = memory_bytes()
    # Just below what malloc would map, and give back, by itself.
    blocks = [bytes(100_000) for _ in range(1000)]
    kept = blocks[::50]  # holes stay between them
    held = memory_bytes() - before
    del blocks
    host_memory.give_back()
    assert memory_bytes() - before < held / 3
    assert len(kept) == 20


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(host_memory, "_of_glibc", lambda name: None)
    assert not host_memory.limit_arenas()
    host_memory.give_back()

import resource
import subprocess
import sys

import torch

from pairstill.runtime.memory import keep_freed_memory


def test_freed_memory_is_used_again():
    if not keep_freed_memory():
        return  # not glibc: nothing was promised
    torch.zeros(8_000_000)
    # The least of three: on a busy machine the system itself may take pages back in between.
    assert min(faults_of_twenty() for _ in range(3)) < 20_000


def faults_of_twenty():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(8_000_000)  # 32 MB: 8,000 pages each, if they were asked for anew
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


GIGABYTES = """
import ctypes, resource
from pairstill.runtime.memory import keep_freed_memory

def touch(mebibytes):
    place = libc.malloc(mebibytes << 20)
    for number in range(mebibytes):
        ctypes.memset(place + (number << 20), 1, 1)  # a page of each
    libc.free(place)

if keep_freed_memory():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    touch(3000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        touch(3000)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_gigabytes_that_are_freed_at_once_are_used_again_too():
    """In a process of its own, where nothing else lies above what is freed and keeps it from being given back."""
    done = subprocess.run([sys.executable, "-c", GIGABYTES], capture_output=True, text=True, check=True)
    assert int(done.stdout or 0) < 3000  # each of five times, if the pages were asked for anew

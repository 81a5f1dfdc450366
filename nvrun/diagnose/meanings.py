"""What the findings of a diagnosis mean that no row of a table gives: ends, exceptions, the flight recorder. Pure."""

from __future__ import annotations

from nvrun.meanings import means

_STATUS = "the exit status of a rank, as nvrun or torchrun saw it"
_DUMPS = "dumps of PyTorch's flight recorder, of all ranks"
_TORCH = "PyTorch's flight recorder (TORCH_FR_BUFFER_SIZE), torchfrtrace"
_SIGNAL = "signal(7); 128+n and -n are signal n"

for _code, _summary, _read, _why, _remedy, _source in (
    ("sxid", "an NVSwitch reported an error", "the kernel's log: nvidia-nvswitch: SXid (PCI:...)",
     "a fatal one ends all jobs on GPUs of that NVSwitch",
     "restart Fabric Manager after resetting all GPUs of the host; have it serviced if it comes back",
     "NVIDIA Fabric Manager user guide, SXid errors"),
    ("script-failed", "a rank ended with an exit code of its own", _STATUS, "the job ends with it",
     "its stderr has the traceback", "exit(3)"),
    ("ended-by-signal", "a rank was ended by a signal", _STATUS, "the job ends with it", "look who sent it", _SIGNAL),
    ("rank-killed", "a rank was killed from outside, most often by the kernel for want of memory", _STATUS,
     "the job ends with it", "dmesg -T | grep -i 'killed process' on that host", _SIGNAL),
    ("segfault", "a rank crashed in native code", _STATUS, "the job ends with it",
     "PYTHONFAULTHANDLER=1 for the stack; look for mixed library versions", _SIGNAL),
    ("bus-error", "a mapped file or /dev/shm ran out of space", _STATUS, "the job ends with it",
     "df -h /dev/shm; --shm-size=8g or --ipc=host for a container", _SIGNAL),
    ("native-crash", "native code did what this CPU does not allow or have", _STATUS, "the job ends with it",
     "PYTHONFAULTHANDLER=1; install packages for this CPU", _SIGNAL),
    ("rank-aborted", "a rank aborted itself: NCCL's watchdog, or an assertion in native code", _STATUS,
     "a consequence, most often: the cause stands before it", "the lines just before in its stderr say why", _SIGNAL),
    ("taken-down", "a rank was asked to end", _STATUS, "a consequence of another rank's end, or of the user's word",
     "look for the rank that ended first", _SIGNAL),
    ("python-exception", "the program raised an exception that no rule knows", "the traceback in a rank's log",
     "the job ends with it", "read the traceback; the deepest line of your own code is the place to look",
     "Python's traceback"),
    ("interrupted", "the program was interrupted (KeyboardInterrupt)", "the traceback in a rank's log",
     "a consequence of Ctrl-C or of another rank's end", "look for the rank that ended first", "Python's traceback"),
    ("run-stopped", "a run was ended from outside: Ctrl-C, a scheduler, a person, or its launcher was killed",
     "the run's own record", "what its logs say came before that, or of it; a killed launcher records no ends of ranks",
     "sacct -j JOB says what Slurm did", "result.json; signal(7)"),
    ("flight-rank-missing", "a rank did not join a collective in which others wait", _DUMPS,
     "the others wait until the watchdog ends them", "look at the log and the stack of the missing rank first", _TORCH),
    ("flight-collective-stuck", "all ranks joined a collective, and it did not end everywhere", _DUMPS,
     "the program is right: the transport or a GPU hangs", "Xids, link errors and NCCL warnings of those hosts",
     _TORCH),
    ("flight-operation-differs", "ranks of a group call different collectives at the same place", _DUMPS,
     "they wait for each other, or exchange garbage", "compare the two stacks: a branch that only some ranks take",
     _TORCH),
    ("flight-size-differs", "ranks call one collective with different sizes", _DUMPS,
     "it hangs, or memory is overwritten", "compare the shapes: an uneven last batch, a frozen parameter", _TORCH),
    ("flight-type-differs", "ranks call one collective with different data types", _DUMPS,
     "it hangs, or the result is garbage", "compare the types: autocast on some ranks only", _TORCH),
    ("flight-message-unmatched", "a send without its receive, or the other way round", _DUMPS,
     "the rank waits until the watchdog ends it", "compare the order of sends and receives of the two ranks", _TORCH),
):  # fmt: skip
    means(_code, _summary, read=_read, why=_why, remedy=_remedy, source=_source)

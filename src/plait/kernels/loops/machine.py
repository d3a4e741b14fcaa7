"""The few things that a kernel does beside arithmetic: words in memory, tickets, barriers, the floating-point mode."""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, typeof_impl

from ..emit.target import I32, I64, IS_X86, VOID, i64
from ..emit.vectors import intrinsic as call_intrinsic
from ..emit.vectors import prefetch as emit_prefetch
from ..records import Launch, RecordType

Int = types.intp


@typeof_impl.register(RecordType)
def _(record, _context):
    """To numba a record is like a module: its words are constants."""
    return types.Module(record)


SPINS = 20000  # turns of a waiting loop before the thread sleeps, or yields: a fraction of a millisecond
BETWEEN = 511  # turns from then on before it yields again: each time is a call of the system
FUTEX = 202 if IS_X86 else 98  # the number of Linux's system call, on x86 and on AArch64
FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE, INT_MAX = 128, 129, 2**31 - 1


def compiled(arguments: int, result: Any = types.void) -> Any:
    """Compiles a function of n integers once. Literals do not cause a second version. Not callable from Python."""
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(result(*[Int] * arguments), **options)


def word_at(build: ir.IRBuilder, address: ir.Value, index: ir.Value) -> ir.Value:
    return build.gep(build.inttoptr(address, I64.as_pointer()), [index])


def emitted(arguments: int, emit: Any, *, returns: bool = False) -> Any:
    """A function of n integers for compiled code, whose instructions `emit(build, *arguments)` emits."""
    names = ", ".join(f"a{k}" for k in range(arguments))
    signature = (Int if returns else types.void)(*[Int] * arguments)

    def generate(context, build, _signature, args):
        value = emit(build, *args)
        return value if returns else context.get_dummy_value()

    scope = {"result": (signature, generate)}
    exec(f"def run(_typing{', ' if names else ''}{names}): return result", scope)
    return intrinsic(scope["run"])


def _calling(arguments: int, kind: ir.Type, returns: bool) -> Any:
    def emit(build, address, *args):
        function = build.inttoptr(address, ir.FunctionType(kind, [I64] * arguments).as_pointer())
        value = build.call(function, args)
        return build.sext(value, I64) if returns else None

    return emitted(arguments + 1, emit, returns=returns)


get = emitted(2, lambda build, *at: build.load(word_at(build, *at)), returns=True)
put = emitted(3, lambda build, address, index, value: build.store(value, word_at(build, address, index)))
# ticket: adds 1 to a counter -> its value before, which no other thread gets. look: the value of a counter
ticket = emitted(2, lambda build, *at: build.atomic_rmw("add", word_at(build, *at), i64(1), "seq_cst"), returns=True)
add = emitted(3, lambda build, *args: build.atomic_rmw("add", word_at(build, *args[:2]), args[2], "seq_cst"))
look = emitted(2, lambda build, *at: build.load_atomic(word_at(build, *at), "seq_cst", 8), returns=True)
copy = emitted(
    3, lambda build, to, origin, size: cgutils.raw_memcpy(build, _byte(build, to), _byte(build, origin), size, 1)
)
zero = emitted(2, lambda build, to, size: cgutils.memset(build, _byte(build, to), size, 0))
call0 = _calling(0, I32, True)  # int f(void)
call1, call2, call4, call5, call6, call9 = (_calling(count, VOID, False) for count in (1, 2, 4, 5, 6, 9))


prefetch = emitted(1, lambda build, address: emit_prefetch(build, address, to_write=False, near=2))


def _byte(build: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return build.inttoptr(address, ir.IntType(8).as_pointer())


def memory(words: int) -> Any:
    """A function () -> the address of n words, which are there until the calling function returns."""

    def emit(build):
        with build.goto_entry_block():
            place = build.alloca(ir.ArrayType(I64, words))
            place.align = 64
        return build.ptrtoint(place, I64)

    return emitted(0, emit, returns=True)


pause = emitted(0, lambda build: call_intrinsic(build, "llvm.x86.sse2.pause", VOID) if IS_X86 else None)
FLUSH = 0x8040  # x86: results (0x8000) and arguments (0x0040) that are denormal count as zero


def _flush(build: ir.IRBuilder) -> ir.Value:
    if not IS_X86:
        return i64(0)
    mode = build.alloca(I32)
    call_intrinsic(build, "llvm.x86.sse.stmxcsr", VOID, mode)
    before = build.load(mode)
    build.store(build.or_(before, ir.Constant(I32, FLUSH)), mode)
    call_intrinsic(build, "llvm.x86.sse.ldmxcsr", VOID, mode)
    return build.zext(before, I64)


def _restore(build: ir.IRBuilder, before: ir.Value) -> None:
    if IS_X86:
        mode = build.alloca(I32)
        build.store(build.trunc(before, I32), mode)
        call_intrinsic(build, "llvm.x86.sse.ldmxcsr", VOID, mode)


flush_denormals = emitted(0, _flush, returns=True)  # -> the mode before. It changes nothing if this is not x86.
restore_denormals = emitted(1, _restore)


@compiled(4)
def wait(launch, address, index, count):
    """Waits until the counter reaches a value: spins for a short time, then sleeps until it changes. A thread that
    spins for long uses up its time on a core, and must then wait for one when there is work.
    """
    spins, value, system = 0, look(address, index), get(launch, Launch.SYSCALL)
    while value < count:
        spins += 1
        if spins < SPINS or get(launch, Launch.ALONE):
            pause()
        elif system:
            add(launch, Launch.ASLEEP, 1)
            call5(system, FUTEX, address + index * 8, FUTEX_WAIT_PRIVATE, value, 0)  # returns at once if it has changed
            add(launch, Launch.ASLEEP, -1)
        elif spins & BETWEEN:
            pause()
        else:
            call0(get(launch, Launch.YIELD))
        value = look(address, index)


@compiled(3)
def count_up(launch, address, index):
    """Adds 1 to a counter that threads may wait for. A thread that will sleep has first said so: then either it is seen
    here, or it sees the new value.
    """
    ticket(address, index)
    if look(launch, Launch.ASLEEP):
        call5(get(launch, Launch.SYSCALL), FUTEX, address + index * 8, FUTEX_WAKE_PRIVATE, INT_MAX, 0)


@compiled(4)
def meet(launch, index, team, count):
    """Waits until all threads of the team are here. It is their meeting number `count` at this counter, from 1 on."""
    count_up(launch, launch, index)
    wait(launch, launch, index, count * team)

"""A failure of the page file, an interrupt, a fork or a kill while iterations are squeezed loses
nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from jupyter_gpushare.client.torch.lanes.pager import lies_in_memory
from jupyter_gpushare.client.torch.squeeze.files import page_file as page_file_module
from jupyter_gpushare.client.torch.squeeze.files import shared_quota
from jupyter_gpushare.client.torch.squeeze.files.page_file import PAGE, Places
from jupyter_gpushare.client.torch.squeeze.files.shared_quota import UNIT, SharedQuota

from ....programs.learning import PROGRAMS
from ....programs.networks import Residual, cnn, gradients, images, mlp, train, vectors
from ..conftest import tracing
from .conftest import Squeezed, assert_nothing_is_left, is_same, run

KIB, MIB = 1 << 10, 1 << 20


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes: a write beyond that fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    action = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, action)


def program() -> Any:
    return train(cnn(Residual(), Residual()), images(), 4)


def assert_same(squeezed: Squeezed, program: Callable[[], Any] = program) -> None:
    """An iteration that moves as much as it can gives the same result as without squeezing."""
    stock = run(program)
    with squeezed.to(1, 0.0):
        assert is_same(run(program), stock)


@pytest.mark.parametrize("size", [0, 64 * KIB, 700 * KIB])
def test_a_full_file_ends_squeezing_and_loses_nothing(size: int, squeezed: Squeezed) -> None:
    stock = run(program)
    with squeezed.to(1, 0.0), file_size_limit(size):
        result = run(program)
    assert is_same(result, stock)
    (said,) = squeezed.told
    assert "cannot be written" in said
    assert os.strerror(errno.EFBIG) in said
    assert "could not be written" in squeezed.memory.why_not_squeezed


def test_a_file_leaves_room_on_its_disk(
    squeezed: Squeezed, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = run(program)
    with squeezed.to(1, 0.0):
        for name, full in (("KEPT_FREE", 1.0), ("MOST_KEPT_FREE", 1 << 60)):
            monkeypatch.setattr(page_file_module, name, full)  # as on a disk that is nearly full
        assert is_same(run(program), stock)
    (said,) = squeezed.told
    assert re.search(r"less than [\d,.]+ [GT]iB of its file system would stay free", said)
    assert "Nothing is lost" in said


def test_a_large_disk_may_be_fuller_than_nine_tenths(
    squeezed: Squeezed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_file_module, "KEPT_FREE", 1.0)
    with squeezed.to(1, 0.0):
        run(program)
    assert squeezed.told == []


def test_a_file_has_no_more_bytes_than_its_quota(tmp_path: Path) -> None:
    stock, plenty = run(program), Squeezed(tmp_path / "plenty")
    with plenty.to(1, 0.0):
        run(program)
    quota = os.stat(page_file(tmp_path / "plenty")).st_size // 2
    squeezed = Squeezed(tmp_path / "pages", one=quota)
    with squeezed.to(1, 0.0):
        result = run(program)
        size = os.stat(page_file(tmp_path / "pages")).st_size
    assert is_same(result, stock)
    assert 0 < size <= quota
    (said,) = squeezed.told
    assert "page_file_bytes allows it" in said
    assert said.endswith("Nothing is lost")
    assert squeezed.moved > 0


def test_the_files_of_all_notebooks_in_a_directory_have_no_more_bytes_than_their_quota(
    tmp_path: Path,
) -> None:
    most = 4 * MIB
    pair = [Squeezed(tmp_path, all=most) for _ in range(2)]
    for squeezed in pair:
        assert_same(squeezed)
    sizes = [os.stat(path).st_size for path in page_files(tmp_path)]
    assert pair[0].moved > 0
    assert 0 < sum(sizes) <= most
    assert any("all_page_files_bytes allows all notebooks 4.0 MiB" in s for s in pair[1].told)


def test_the_quota_of_all_is_there_again_once_a_notebook_has_ended_or_was_killed(
    tmp_path: Path,
) -> None:
    code = (
        "import sys, time; from jupyter_gpushare.client.torch.squeeze.files.shared_quota import *;"
        f" quota = SharedQuota({str(tmp_path)!r}, 4 * UNIT); print(quota.grow_to(3 * UNIT));"
        " sys.stdout.flush(); time.sleep(1000)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    quota = SharedQuota(str(tmp_path), 4 * UNIT)
    assert not quota.grow_to(2 * UNIT)
    assert quota.grow_to(UNIT)  # a part that was refused has left nothing behind
    other.kill()
    other.communicate()
    assert quota.grow_to(4 * UNIT)
    del quota
    assert SharedQuota(str(tmp_path), 4 * UNIT).grow_to(4 * UNIT)


def test_a_forked_child_leaves_the_quota_to_its_parent(tmp_path: Path) -> None:
    quota = SharedQuota(str(tmp_path), 2 * UNIT)
    assert quota.grow_to(UNIT)
    if (child := os.fork()) == 0:
        del quota
        os._exit(0)
    os.waitpid(child, 0)
    assert not SharedQuota(str(tmp_path), 2 * UNIT).grow_to(2 * UNIT)
    assert quota.grow_to(2 * UNIT)


def test_a_notebook_that_may_not_share_a_quota_squeezes_nothing_and_is_told(tmp_path: Path) -> None:
    (tmp_path / shared_quota.NAME).symlink_to(tmp_path / "elsewhere")
    squeezed = Squeezed(tmp_path, all=4 * MIB)
    assert_same(squeezed)
    assert squeezed.moved == 0
    assert any("cannot be written" in said for said in squeezed.told)


@pytest.mark.parametrize("again", [1, 2])
def test_squeezing_that_was_called_off_begins_again_when_it_is_wanted(
    again: int, squeezed: Squeezed
) -> None:
    with squeezed.to(1, 0.0), file_size_limit(0):
        run(program)
    assert squeezed.moved == 0
    with squeezed.to(again, 0.0):
        run(program)
    assert squeezed.moved > 0
    assert squeezed.memory.why_not_squeezed == ""


def test_squeezing_that_was_called_off_stays_off_whatever_the_broker_chooses(
    squeezed: Squeezed,
) -> None:
    memory, squeezed.squeeze.tier.pace = squeezed.memory, 0.0
    with squeezed.automatically():
        run(program)
        smallest = memory.demand().options[-1].bytes
        memory.squeeze_to(smallest)
        with file_size_limit(0):
            run(program)
        for size in (0, smallest):
            assert memory.demand().options == ()
            memory.squeeze_to(size)
            run(program)
        assert squeezed.moved == 0
        assert len(squeezed.told) == 1
        memory.want_squeeze("auto")
        run(program)
    assert squeezed.moved > 0
    assert memory.demand().options


def test_a_directory_that_is_removed_while_its_file_is_in_use_does_not_matter(
    tmp_path: Path,
) -> None:
    squeezed = Squeezed(tmp_path / "pages")

    def removing() -> Any:
        model = cnn(Residual(), Residual())
        model[3].register_full_backward_hook(lambda *args: _remove(tmp_path / "pages"))
        return train(model, images(), 4)

    assert_same(squeezed, removing)
    assert squeezed.moved > 0
    assert squeezed.told == []


def _remove(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        directory.rmdir()  # it is empty: the file has no name


def test_a_directory_that_cannot_be_made_is_told_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    squeezed = Squeezed(tmp_path / "file" / "pages")
    assert_same(squeezed)
    (said,) = squeezed.told
    assert "cannot be written" in said


@pytest.mark.skipif(not lies_in_memory("/dev/shm"), reason="/dev/shm is no file system in memory")
def test_a_directory_in_main_memory_is_refused(squeezed: Squeezed) -> None:
    squeezed = Squeezed(Path("/dev/shm"))
    with squeezed.to(1):
        run(program)
    assert squeezed.moved == 0
    (said,) = squeezed.told
    assert "lies in main memory" in said
    assert "lies in main memory" in squeezed.memory.why_not_squeezed


def page_files(directory: Path) -> list[Path]:
    """Return the paths of the nameless files that this process has in `directory`."""
    descriptors = [(fd, str(fd.resolve())) for fd in Path("/proc/self/fd").iterdir()]
    inside = [(fd, name) for fd, name in descriptors if name.startswith(f"{directory}/")]
    return [fd for fd, name in inside if not name.endswith(shared_quota.NAME)]


def page_file(directory: Path) -> Path:
    """Return the path of the only one."""
    (found,) = page_files(directory)
    return found


def test_a_file_that_cannot_be_read_is_an_error_and_never_wrong_numbers(
    squeezed: Squeezed, tmp_path: Path
) -> None:
    """The test cuts the file, as a disk that fails would."""
    with squeezed.to(1, 0.0):
        model = mlp()
        x, y = vectors()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        assert squeezed.moved > 0
        os.truncate(page_file(tmp_path), 0)
        with pytest.raises(RuntimeError, match="cannot be read back"):
            loss.backward()


@pytest.mark.system
def test_an_interrupt_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    """An interrupt comes at each of many instructions in turn. The iteration is run again, and all
    that was saved before it is still right. Each time the memory is new, since one that knows the
    floor of these networks moves nothing."""
    program = PROGRAMS["batch_norm_moves_its_statistics_once"]
    stock, hits = run(program), 0
    files = (
        "cache.py",
        "hooks.py",
        "entries.py",
        "profile.py",
        "kinds.py",
        "tier.py",
        "page_file.py",
    )
    for number in range(300, 25000, 1031):
        squeezed = Squeezed(tmp_path)
        with squeezed.to(1, None):
            model, (x, y) = cnn(), images()
            kept = torch.nn.functional.cross_entropy(model(x), y)
            with _interrupted(files, number) as interrupted, contextlib.suppress(KeyboardInterrupt):
                train(mlp(), vectors(), 1)
            hits += interrupted[0]
            kept.backward()  # of what had left memory before the interrupt
            found = gradients(model)
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            assert is_same(gradients(model), found)
            assert is_same(run(program), stock)
        assert squeezed.told_of_trouble == []
        assert_nothing_is_left()
    assert hits > 10


@pytest.mark.system
@pytest.mark.parametrize("pace", [0.0, 1.0], ids=["written", "recomputed"])
def test_an_interrupt_in_any_function_is_raised(tmp_path: Path, pace: float) -> None:
    """Python ignores exceptions in callbacks of weak references, and in `__del__`: with an
    interrupt among them, a loop would go on. A memory that knows the floor of this network moves
    nothing, so each function gets a new memory."""
    model, data = mlp(), vectors()

    def iterate() -> None:
        with Squeezed(tmp_path).to(1, pace):
            train(model, data, 3)

    functions = _functions_of(iterate)
    raised = {name for name in functions if _is_raised_in(name, iterate)}
    assert {"_forward_left", "pack", "unpack"} < raised
    assert len(raised) > 100
    assert_nothing_is_left()


def _functions_of(run: Callable[[], object]) -> set[str]:
    """Return the names of all functions of ours, and of all that end objects, that are called."""
    names: set[str] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if _is_ours(frame):
            names.add(frame.f_code.co_name)

    with tracing(note):
        run()
    return names


def _is_ours(frame: Any) -> bool:
    """Whether the function is ours, or ends an object: a callback of the standard library may have
    the name of one of ours, such as `remove`."""
    return "jupyter_gpushare" in frame.f_code.co_filename or frame.f_code.co_name == "__del__"


def _is_raised_in(name: str, run: Callable[[], object]) -> bool:
    """Send an interrupt where a function of that name begins. Return whether one has begun."""
    begun = []

    def interrupt(frame: Any, event: str, argument: Any) -> None:
        if frame.f_code.co_name == name and _is_ours(frame):
            sys.settrace(None)
            begun.append(name)
            signal.raise_signal(signal.SIGINT)

    with contextlib.suppress(KeyboardInterrupt), tracing(interrupt):
        run()
        assert begun == [], "the interrupt was ignored"
    return begun == [name]


@contextlib.contextmanager
def _interrupted(files: tuple[str, ...], count: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the `count`-th instruction that runs in one of the files."""
    left, hit = [count], [0]

    def trace(frame: Any, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.endswith(files) or "squeeze" not in path:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left[0] -= 1
            if left[0] == 0:
                hit[0] = 1
                raise KeyboardInterrupt
        return trace

    with tracing(trace):
        yield hit


@pytest.mark.parametrize("is_raised", [KeyboardInterrupt, SystemExit, ValueError])
def test_no_hook_stays_once_an_exception_has_left_the_forward(
    is_raised: type[BaseException], squeezed: Squeezed
) -> None:
    model, (x, y) = mlp(), vectors()

    def fail(*args: Any) -> None:
        raise is_raised

    handle = model[2].register_forward_hook(fail)
    with squeezed.to(1):
        with contextlib.suppress(is_raised):
            model(x)
        assert_nothing_is_left()
        assert model._forward_hooks == {}
        handle.remove()
        train(model, (x, y), 1)
        assert squeezed.moved > 0


def test_no_hook_stays_once_another_thread_has_turned_sharing_off_in_the_midst_of_the_forward(
    squeezed: Squeezed,
) -> None:
    def program(in_midst: Callable[[], Any]) -> Any:
        model = mlp()
        model[2].register_forward_hook(lambda *args: in_midst())
        return train(model, vectors(), 1)

    def turn_off() -> None:
        thread = threading.Thread(target=squeezed.boundaries.remove)
        thread.start()
        thread.join()
        torch.func.grad(torch.sum)(torch.ones(1))  # hooks that are still there would forbid it

    stock = run(lambda: program(lambda: None))
    with squeezed.to(1):
        assert is_same(run(lambda: program(turn_off)), stock)
        assert_nothing_is_left()


class Noting(torch.nn.Parameter):
    """A weight that notes in which threads its gradient is read."""

    readers: ClassVar[set[int]] = set()

    @property
    def grad(self) -> Any:
        self.readers.add(threading.get_ident())
        return torch._C.TensorBase.grad.__get__(self)

    @grad.setter
    def grad(self, value: Any) -> None:
        torch._C.TensorBase.grad.__set__(self, value)


def test_gradients_are_read_only_in_the_thread_of_the_backward(squeezed: Squeezed) -> None:
    """C++ writes them there without Python's lock."""
    model, (x, _) = mlp(), vectors()
    model[0].weight = Noting(model[0].weight.detach())
    Noting.readers.clear()
    with squeezed.to(1):
        thread = threading.Thread(target=model(x).sum().backward)
        thread.start()
        other = thread.ident
        thread.join()
        model(x)
        assert Noting.readers == {other}


def test_a_forked_child_has_what_earlier_iterations_have_saved(squeezed: Squeezed) -> None:
    """The parent writes other bytes to the same places of the file before the child takes them."""
    model, (x, y) = mlp(), vectors()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    expected = [gradient.clone() for gradient in gradients(model)]
    model.zero_grad()
    with squeezed.to(1, 0.0):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        train(mlp(), vectors(), 2)
        assert squeezed.squeeze.cache.used > 0
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                os.read(reader, 1)
                loss.backward()
                os._exit(0 if is_same(gradients(model), expected) else 2)
            os._exit(1)
        del loss
        train(mlp(), vectors(), 2)
        os.write(writer, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(reader)
    os.close(writer)


def test_places_are_joined_again() -> None:
    places = Places()
    three = [places.take(size) for size in (1, 2 * PAGE, PAGE)]
    assert [place.size for place in three] == [PAGE, 2 * PAGE, PAGE]
    for place in (three[0], three[2], three[1]):
        places.give(place)
    assert places.used == 0
    assert places.take(4 * PAGE).begin == 0

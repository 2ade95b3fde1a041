"""Scalers that are watched without a change to the script behave like torch's own.

`ampmon.auto()` stands for `ampmon run`, which does the same to the same classes before a script begins.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import scripts
from ampmon.training.built import STARTUP
from recording import recording


AUTO = "import ampmon; ampmon.auto()\n"
TRAINING = """
import copy, hashlib, inspect, json, os, pickle, sys, warnings
import torch
from torch.amp import GradScaler

class Own(GradScaler):
    '''A vendor's: one more argument, an attribute, a method.'''
    def __init__(self, floor, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.floor = floor
    monitor = "its own"
    def floored(self):
        return max(self.get_scale(), self.floor)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        self.head = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.body(x))

skips = 0

def train(scaler, model, updates=4, overflows=(1,)):
    global skips
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(updates):
        loss = model(torch.ones(2, 4) * step).square().mean()
        scaler.scale(loss * float("inf") if step in overflows else loss).backward()
        before = [each.clone() for each in model.parameters()]
        scaler.step(optimizer)
        skips += all(map(torch.equal, before, model.parameters()))
        scaler.update()
        optimizer.zero_grad()

def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

torch.manual_seed(0)
"""


def ran(program: str, *, watched: bool = True, **environment: str) -> Any:
    """Return the last line that a training prints, from JSON; if ``watched``, with what `ampmon run` does."""
    script = (AUTO if watched else "\n") + TRAINING + program
    done = scripts.run("-c", script, env={**os.environ, **environment})
    return json.loads(done.stdout.splitlines()[-1])


LOOP = """
model = Net()
train(GradScaler("cpu", init_scale=8.0, growth_interval=2), model, updates=12, overflows=(0, 5))
print(json.dumps([digest(model), skips]))
"""


def test_a_training_ends_in_the_same_weights_and_is_recorded(data_directory: Path) -> None:
    """Weights are bit for bit those without ampmon, and the ledger counts the skips that the script counted."""
    assert ran(LOOP) == (stock := ran(LOOP, watched=False))
    recorded = recording(data_directory)
    assert len(recorded.updates) == 12
    assert sum(step.skipped for update in recorded.updates for step in update.optimizers) == 2
    assert stock[1] == 2
    assert recorded.header().scaler == "torch.amp.grad_scaler.GradScaler"


def test_parameters_have_their_names_in_the_model(data_directory: Path) -> None:
    """Without a given model, parameters have their names in the modules that were built, wrapped or copied."""
    ran("""
model = copy.deepcopy(Net()); model.tail = torch.nn.Linear(1, 1); model.tail2 = model.head
train(GradScaler("cpu"), torch.nn.DataParallel(model))
print(0)
""")
    names = [parameter.name for parameter in recording(data_directory).header().parameters]
    assert names[:3] == ["body.0.weight", "body.0.bias", "head.weight"]
    assert names[3:] == ["head.bias", "tail.weight", "tail.bias"]


@pytest.mark.parametrize("made", ["copy.deepcopy(Net())", "pickle.loads(pickle.dumps(Net()))"])
def test_a_copied_model_names_its_parameters(data_directory: Path, made: str) -> None:
    """A copied or unpickled model names its parameters, even if it is frozen between backward pass and step.

    A shallow copy takes no name away.
    """
    ran(f"""
model = {made}
shallow = copy.copy(model).eval()
scaler, optimizer = GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(2):
    model.requires_grad_(True)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    model.requires_grad_(False)
    scaler.step(optimizer)
    scaler.update()
print(0)
""")
    names = [parameter.name for parameter in recording(data_directory).header().parameters]
    assert names == ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]


def test_modules_have_their_names_in_the_model(data_directory: Path) -> None:
    """Without a given model, the modules that were built are watched after a loss that was not finite."""
    ran("""
model = Net()
scaler, optimizer = GradScaler("cpu"), torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(3):
    scaler.scale(model(torch.full((1, 4), float("nan") if update else float("inf"))).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
print(0)
""")
    recorded = recording(data_directory)
    assert [module.name for module in recorded.header().modules][:2] == ["Net", "body"]
    assert [(each.loss, each.origin) for each in recorded.updates] == [
        ("not_finite", None),
        ("not_finite", "input"),
        ("not_finite", "input"),
    ]


def test_two_models_are_distinguished_and_two_names_are_none(data_directory: Path) -> None:
    """If two models are trained, names begin with the model's class; a parameter of both has no name."""
    ran("""
model, other = Net(), torch.nn.Linear(4, 1)
shared = torch.nn.Sequential(model.head)
frozen = torch.nn.Bilinear(4, 4, 1).requires_grad_(False)
scaler = GradScaler("cpu")
train(scaler, model)
train(scaler, other)
print(0)
""")
    names = [parameter.name for parameter in recording(data_directory).header().parameters]
    assert names[:2] == ["Net.body.0.weight", "Net.body.0.bias"]
    assert names[2].startswith("parameter 2 ")
    assert names[4:] == ["Linear.weight", "Linear.bias"]


def test_a_subclass_is_watched(data_directory: Path) -> None:
    """A watched subclass keeps its name, arguments, attributes, methods and base classes."""
    assert ran("""
scaler = Own(2.0, "cpu", init_scale=1.0)
train(scaler, Net())
print(json.dumps([type(scaler).__name__, isinstance(scaler, Own), scaler.floored(), scaler.monitor]))
""") == ["Own", True, 2.0, "its own"]
    assert len(recording(data_directory).updates) == 4


def test_a_subclass_that_registers_itself_is_watched(data_directory: Path) -> None:
    """`__init_subclass__` of the user's classes is called for the user's classes alone, and may need arguments."""
    assert ran("""
registered = []
class Registered:
    def __init_subclass__(cls, /, key, **kwargs):
        super().__init_subclass__(**kwargs)
        registered.append(key)
class Listed(Registered, GradScaler, key="listed"):
    pass
class Ours(ampmon.GradScaler, Registered, key="ours"):
    pass
train(Listed("cpu"), Net())
train(Ours("cpu"), Net())
print(json.dumps(registered))
""") == ["listed", "ours"]
    assert len(recording(data_directory).updates) == 8


INTERFACE = """
class Slotted(GradScaler):
    __slots__ = ("floor",)
    def __getstate__(self):
        return super().__getstate__(), self.floor
    def __setstate__(self, state):
        super().__setstate__(state[0])
        self.floor = state[1]

slotted, stock = Slotted("cpu"), {}
slotted.floor = 2.0
for made in (GradScaler("cpu"), Own(1.0, "cpu"), slotted):
    seen = stock[type(made).__name__] = []
    for kind in (type(made), *type(made).__mro__[-2:-1]):
        seen.append(str(inspect.getfullargspec(kind.__init__)))
        seen.append(str(inspect.signature(kind)))
        seen.append(str(inspect.signature(kind.scale)))
    seen += [type(made).__qualname__, type(made).__module__, repr(made.state_dict())]
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made), copy.copy(made)):
        seen += [type(copied).__name__, isinstance(copied, GradScaler), repr(copied.state_dict())]
    seen += [str(made.__class__), pickle.dumps(made).hex()]
    made.scale(torch.ones(()))
    seen += [str(made.__class__), pickle.dumps(made).hex()]
disabled = copy.copy(GradScaler("cpu", enabled=False))
stock["disabled"] = str(vars(disabled))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    GradScaler(); torch.cuda.amp.GradScaler(); Own(1.0)
stock["warnings"] = [(each.filename, each.lineno, str(each.message)) for each in caught]
print(json.dumps(stock))
"""


def test_a_scaler_looks_like_torchs_own() -> None:
    """Names, isinstance, signatures, argspecs, state, pickles, copies and lines of warnings are as without ampmon."""
    assert ran(INTERFACE) == ran(INTERFACE, watched=False)


def test_a_subclass_pickles_and_copies_in_its_own_way(data_directory: Path) -> None:
    """The user's `__reduce__` is called, and sees the user's class, before and after the first scale()."""
    assert ran("""
class Reduced(GradScaler):
    def __init__(self, floor):
        super().__init__("cpu")
        self.floor, self.cannot_be_pickled = floor, open(os.devnull)
    def __reduce__(self):
        return type(self), (self.floor,)

scaler, seen = Reduced(2.0), []
for _ in range(2):
    for copied in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler), copy.copy(scaler)):
        seen.append([type(copied).__name__, isinstance(copied, Reduced), copied.floor])
    train(scaler, Net())
train(copied, Net())
print(json.dumps(seen))
""") == 6 * [["Reduced", True, 2.0]]
    recorded = recording(data_directory)
    assert [len(recorded.of(name)) for name in ("scaler", "scaler-2")] == [8, 4]


def test_a_scaler_trains_while_another_thread_pickles_it(data_directory: Path) -> None:
    """Each call during a pickling is recorded, before and after the first scale(), and the pickling ends nothing."""
    assert ran("""
import threading
class Own(GradScaler):
    ended = 0
    def __getstate__(self):
        state = super().__getstate__()
        training.start()
        training.join()
        return state
    def __del__(self):
        Own.ended += 1

failed = []
threading.excepthook = failed.append
watched, waiting = ampmon.watch(Own("cpu")), Own("cpu")
for scaler in (watched, watched, waiting):
    training = threading.Thread(target=train, args=(scaler, Net()))
    pickle.dumps(scaler)
print(json.dumps([len(failed), Own.ended]))
""") == [0, 0]
    recorded = recording(data_directory)
    assert sorted(len(recorded.of(stream)) for stream in ("scaler", "scaler-2")) == [4, 8]


def test_copies_and_unpickled_scalers_are_watched(data_directory: Path) -> None:
    """A copy of a used scaler, and an unpickled one, have their own monitors from their first scale() on."""
    ran("""
first = GradScaler("cpu", init_scale=8.0)
train(first, Net())
for scaler in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
    train(scaler, Net())
unused, disabled = GradScaler("cpu"), GradScaler("cpu", enabled=False)
train(disabled, Net(), overflows=())
assert type(disabled) is GradScaler
print(0)
""")
    recorded = recording(data_directory)
    assert [len(recorded.of(name)) for name in ("scaler", "scaler-2", "scaler-3")] == [4, 4, 4]
    assert len(recorded.updates) == 12


def test_a_first_scale_in_a_compiled_step_is_not_compiled(data_directory: Path) -> None:
    """If `scale()` is first called in a compiled step, torch.compile does not trace what ampmon then begins with."""
    done = scripts.run(
        "-c",
        AUTO
        + TRAINING
        + """
scaler, model = GradScaler("cpu"), Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager")
def step():
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
for _ in range(3):
    step()
""",
    )
    assert "does not know how to trace" not in done.stderr
    assert len(recording(data_directory).updates) == 3


def test_methods_held_from_before_the_first_call_are_watched(data_directory: Path) -> None:
    """Methods that were stored before the first call, or replaced by the user, are recorded."""
    ran("""
scaler, calls = GradScaler("cpu"), []
scale, unscale_, step, update = scaler.scale, scaler.unscale_, scaler.step, scaler.update
scaler.update = lambda *args: (calls.append(args), update(*args))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    scale(model(torch.ones(2, 4)).sum()).backward(); unscale_(optimizer); step(optimizer)
    scaler.update()
assert len(calls) == 3
print(0)
""")
    assert len(recording(data_directory).updates) == 3


def test_a_scaler_tells_whether_it_was_given_a_state(data_directory: Path) -> None:
    """The first update of a scaler is marked fresh, unless a state was loaded before."""
    ran("""
train(GradScaler("cpu"), Net())
resumed = GradScaler("cpu"); resumed.load_state_dict(GradScaler("cpu").state_dict())
train(resumed, Net())
print(0)
""")
    recorded = recording(data_directory)
    assert [recorded.of(name)[0].fresh for name in ("scaler", "scaler-2")] == [True, False]


def test_a_script_that_uses_ampmon_itself_is_watched_once(data_directory: Path) -> None:
    """`ampmon.GradScaler` and `watch` in a watched script make one stream for each scaler."""
    ran("""
model = Net()
train(ampmon.GradScaler("cpu", model=model), model)
watched = ampmon.watch(GradScaler("cpu"), name="watched")
train(watched, model)
print(0)
""")
    recorded = recording(data_directory)
    assert [len(recorded.of(name)) for name in ("scaler", "watched")] == [4, 4]
    assert len(recorded.updates) == 8


BROKEN = f"import sys; sys.path[:0] = [{str(STARTUP)!r}]\nimport ampmon_startup; ampmon_startup.install()\n"


@pytest.mark.parametrize("trouble", ["install", "directory"])
def test_whatever_is_wrong_the_script_runs(tmp_path: Path, trouble: str) -> None:
    """If ampmon cannot be imported, or has no place to write, a script trains as without it, with one message."""
    environment = dict(os.environ)
    start = BROKEN
    if trouble == "install":
        broken = tmp_path / "ampmon"
        broken.mkdir()
        (broken / "__init__.py").write_text("def watch(")
        start += f"sys.path[:0] = [{str(tmp_path)!r}]\n"
    else:
        (tmp_path / "file").touch()
        environment["AMPMON_DIR"] = str(tmp_path / "file" / "below")
    done = scripts.run("-c", start + TRAINING + LOOP, env=environment)
    (line,) = [line for line in done.stderr.splitlines() if "ampmon:" in line]
    assert ("not watching" if trouble == "install" else "not recording") in line
    assert json.loads(done.stdout) == ran(LOOP, watched=False)


@pytest.mark.parametrize("at", ["ampmon.client.scaler", "ampmon.client.gear"])
def test_a_signal_at_the_first_scale_reaches_the_script(data_directory: Path, at: str) -> None:
    """An exception that a signal handler raises while ampmon is imported for the first `scale()` is passed on.

    A training that goes on is watched from its next `scale()` on.
    """
    done = scripts.run(
        "-c",
        BROKEN
        + TRAINING
        + """
import signal
class Preempted(Exception): pass
def handler(number, frame): raise Preempted
signal.signal(signal.SIGUSR1, handler)
class Arrives:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r} and sys.meta_path.pop(0): signal.raise_signal(signal.SIGUSR1)
sys.meta_path.insert(0, Arrives())
scaler = GradScaler("cpu")
for _ in range(2):
    try:
        train(scaler, Net())
    except Preempted:
        print("preempted")
""".replace("{at!r}", repr(at)),
    )
    assert done.stdout.split() == ["preempted"]
    assert len(recording(data_directory).updates) == 4


OPTIMIZER = (
    "import warnings; warnings.simplefilter('ignore')\ntorch.optim.SGD(Net().parameters())\n"
)


def printed(program: str, **environment: str) -> list[str]:
    """Return the lines that ampmon prints in a script that may end in an error, except those on a slow disk."""
    script = BROKEN + TRAINING + program
    done = scripts.run("-c", script, env={**os.environ, **environment}, check=False)
    lines = [line for line in done.stderr.splitlines() if "ampmon:" in line]
    return [line for line in lines if "writing a record took" not in line]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("", "made no GradScaler; fp16 needs one"),
        ("GradScaler()", "no CUDA here"),
        ("GradScaler(enabled=False)", "as for bf16; fp16 needs it enabled"),
        ("made = GradScaler('cpu')", "never called its scale()"),
    ],
)
def test_an_end_without_a_scale_is_explained(made: str, reason: str) -> None:
    """A training in which no scaler scaled explains in one line at its end why."""
    (line,) = printed(OPTIMIZER + made)
    assert line.startswith("ampmon: nothing was watched in this process: ")
    assert reason in line


@pytest.mark.parametrize("what", ["RANK=1", "AMPMON_MODE=disabled", "no optimizer", "an error"])
def test_an_end_without_a_scale_is_explained_by_trainings_alone(what: str) -> None:
    """Other ranks, disabled mode, programs without an optimizer and trainings that crashed print no explanation."""
    name, _, value = what.partition("=")
    program = {"no optimizer": "Net()", "an error": OPTIMIZER + "1 / 0"}.get(what, OPTIMIZER)
    assert printed(program, **({name: value} if value else {})) == []


def test_the_first_scaler_says_where_its_run_is_seen(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 prints one line that says where the run is, and one for a misspelt variable with the right name."""
    program = "train(GradScaler('cpu'), Net()); train(GradScaler('cpu'), Net())\n"
    where = f"ampmon: recording this run in {data_directory}; send it with `ampmon sync`"
    misspelt, line = printed(program, AMPMON_PROJEKT="vision")
    assert "AMPMON_PROJEKT is not an ampmon variable; did you mean AMPMON_PROJECT?" in misspelt
    assert line == where
    assert printed(program, AMPMON_QUIET="1") == []
    assert printed(program, RANK="1", WORLD_SIZE="2") == []
    monkeypatch.setenv("AMPMON_MODE", "online")
    run_id = "01890a5d-ac96-774b-bcce-b302099a8057"
    online = {"AMPMON_URL": "http://127.0.0.1:9", "AMPMON_RUN_ID": run_id}
    (line,) = printed(program + "os._exit(0)", **online)
    assert line == f"ampmon: watching this run: http://127.0.0.1:9/#/runs/{run_id}"


def test_the_run_of_a_later_init_is_printed_too() -> None:
    """If `ampmon.init` comes after the first scaler, it prints where its own run is, which training uses."""
    program = """
import ampmon, sys
scaler = ampmon.GradScaler("cpu")
print("ampmon: begun", ampmon.init(name="mine", mode="online"), file=sys.stderr)
train(scaler, Net())
os._exit(0)
"""
    lines = printed(program, AMPMON_MODE="online", AMPMON_URL="http://127.0.0.1:9")
    before, after = [line for line in lines if "watching" in line]
    assert after != before
    (run_id,) = [line.split()[-1] for line in lines if "begun" in line]
    assert after == f"ampmon: watching this run: http://127.0.0.1:9/#/runs/{run_id}"


@pytest.mark.parametrize("stderr", ["Log()", "None"])
def test_a_stderr_of_the_script_that_lacks_something_stops_no_training(
    data_directory: Path, stderr: str
) -> None:
    """A script may have no stderr, or an object without `flush`, and its training is recorded all the same."""
    program = f"""
import ampmon
class Log:
    def write(self, text): pass
sys.stderr = {stderr}
train(ampmon.GradScaler("cpu"), Net())
sys.stderr = sys.__stderr__
print(0)
"""
    ran(program)
    assert len(recording(data_directory).updates) == 4


def test_nothing_is_printed_below_a_warning() -> None:
    """A warning ends with the code to copy, and names no file of ampmon."""
    program = "from ampmon.client.troubles import warn; warn('ampmon: write:\\nscaler.update()')"
    done = scripts.run("-c", program)
    assert done.stderr == "ampmon:0: AmpmonWarning: ampmon: write:\nscaler.update()\n"

"""The monitor attaches to any scaler, anywhere, and leaves nothing harmful behind."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

import ampmon
import scripts
from ampmon import wire
from ampmon.client import current_run
from older_torch import named
from recording import recording, recordings
from scaler.test_ledger import iterate


def test_every_reference_stays_good(data_directory: Path) -> None:
    """F10: a framework that captured the scaler before `watch` steps through the same object, and is recorded."""
    held = torch.amp.GradScaler("cpu", init_scale=8.0)
    watched = ampmon.watch(held)
    assert watched is held
    assert isinstance(held, torch.amp.GradScaler)
    model = torch.nn.Linear(4, 4)
    iterate(held, model, SGD(model.parameters(), lr=0.1))
    recorded = recording(data_directory)
    assert len(recorded.updates) == 1
    assert recorded.header().scaler == "torch.amp.grad_scaler.GradScaler"


def test_optimizers_are_not_patched() -> None:
    """T5: `optimizer.step` stays the same object, and a scheduler warns of nothing."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step = optimizer.step
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            iterate(scaler, model, optimizer)
            scheduler.step()
    assert optimizer.step == step


def test_a_number_for_the_device_is_refused() -> None:
    """The old spelling `GradScaler(65536.0)` raises a TypeError that names `init_scale`."""
    with pytest.raises(TypeError, match="init_scale"):
        ampmon.GradScaler(65536.0)


@pytest.mark.parametrize("models", ["model", "param_names"])
def test_parameters_are_named(data_directory: Path, models: str) -> None:
    """T10: names come from the model, else from the optimizer's `param_names`."""
    model = torch.nn.Linear(4, 3)
    pairs = model.named_parameters()
    optimizer = SGD(named(pairs) if models == "param_names" else model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model if models == "model" else None)
    iterate(scaler, model, optimizer)
    names = [parameter.name for parameter in recording(data_directory).header().parameters]
    assert names == ["weight", "bias"]


NAMELESS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
{between}
net = Net()
scale = torch.nn.Parameter(torch.ones(()))
{after}
optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1)
for _ in range(2):
    scaler.scale((net.head(net.body(torch.ones(2, 4))) * scale).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
"""
MAKE = 'import ampmon; scaler = ampmon.GradScaler("cpu", init_scale=2.0)'
WATCH = 'import ampmon; scaler = ampmon.watch(torch.amp.GradScaler("cpu", init_scale=2.0))'
AUTO = 'import ampmon; ampmon.auto(); scaler = torch.amp.GradScaler("cpu", init_scale=2.0)'


@pytest.mark.parametrize(
    ("way", "place"),
    [(MAKE, "between"), (MAKE, "after"), (WATCH, "after"), (AUTO, "after")],
    ids=["before", "after", "watch", "auto"],
)
def test_names_come_from_living_models(data_directory: Path, way: str, place: str) -> None:
    """T10: without model=, parameters get the names of the script's models, built before or after the scaler."""
    places = dict.fromkeys(("between", "after"), "") | {place: way}
    scripts.run("-c", NAMELESS.format(**places))
    names = [parameter.name for parameter in recording(data_directory).header().parameters]
    of_net = ["body.weight", "body.bias", "head.weight", "head.bias"]
    assert names == [*of_net, "parameter 4 [scalar]"]


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_a_scripted_model_beside_it_takes_no_names_away(data_directory: Path) -> None:
    """T10: parameters have their names if the process has a model of TorchScript too."""
    traced = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    model = torch.nn.Sequential(torch.nn.Linear(4, 1))
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    iterate(scaler, model, SGD(model.parameters(), lr=0.1))
    names = [parameter.name for parameter in recording(data_directory).header().parameters]
    assert [name.rpartition(".")[2] for name in names] == ["weight", "bias"]
    assert traced.training


def test_copies_that_are_gone_take_no_room(data_directory: Path) -> None:
    """A model gets its names after any number of modules that are gone, such as copies made for each evaluation."""
    few = "from ampmon.training.built import startup; startup().MODULES_MAX = 20"
    copies = f"{MAKE}\ncopies = [torch.nn.Linear(1, 1) for _ in range(30)]\ndel copies"
    scripts.run("-c", f"{few}\n{NAMELESS.format(between=copies, after='')}")
    parameters = recording(data_directory).header().parameters
    assert [each.name for each in parameters][:2] == ["body.weight", "body.bias"]


BUSY = """
import sys, threading, torch
from ampmon.training import built

built.see_modules()
many = [torch.nn.Sequential(torch.nn.Identity()) for _ in range(2000)]
net = torch.nn.Sequential(torch.nn.Linear(1, 1), *many)
sys.setswitchinterval(1e-5)
done = threading.Event()

def build():
    while not done.is_set():
        torch.nn.Linear(1, 1)

thread = threading.Thread(target=build)
thread.start()
try:
    print(all(built.models() for _ in range(100)))
finally:
    done.set()
"""


def test_names_are_found_while_another_thread_builds_modules() -> None:
    """T10: a thread that builds modules meanwhile, as one that loads a checkpoint, takes no names away."""
    assert scripts.run("-c", BUSY).stdout == "True\n"


def test_the_model_knows_names_best(data_directory: Path) -> None:
    """T10: names of the given model take precedence over the optimizer's."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3))
    optimizer = SGD(named([("w", model[0].weight), ("b", model[0].bias)]), lr=0.1)
    iterate(ampmon.GradScaler("cpu", init_scale=2.0, model=model), model, optimizer)
    assert [parameter.name for parameter in recording(data_directory).header().parameters] == [
        "0.weight",
        "0.bias",
    ]


def test_wrappers_leave_no_trace_in_names(data_directory: Path) -> None:
    """T10: prefixes of DataParallel, torch.compile and FSDP are removed from names."""
    from ampmon.training.built import strip_wrappers

    model = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    iterate(
        ampmon.GradScaler("cpu", init_scale=2.0, model=model),
        model,
        SGD(model.parameters(), lr=0.1),
    )
    assert [p.name for p in recording(data_directory).header().parameters] == ["0.weight", "0.bias"]
    assert (
        strip_wrappers("module._orig_mod.a._fsdp_wrapped_module.b._checkpoint_wrapped_module.c")
        == "a.b.c"
    )
    assert strip_wrappers("image_forward_module.weight") == "image_forward_module.weight"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python tells no columns before 3.11")
def test_a_call_over_several_lines_is_read_with_its_comments(data_directory: Path) -> None:
    """The script's own names are found in a call of several lines that has comments."""
    encoder, decoder = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    ampmon.GradScaler(
        "cpu",  # no GPU here
        model=[
            encoder,
            decoder,
        ],
    )
    call = recording(data_directory).header().call
    assert call is not None
    assert call.arguments["model"] == "[ encoder, decoder, ]"


def test_sparse_gradients_are_measured_uncoalesced(data_directory: Path) -> None:
    """T11: the gradient of an Embedding(sparse=True) is measured uncoalesced, a repeated row twice."""
    embedding = torch.nn.Embedding(10, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters())
    scaler = ampmon.GradScaler("cpu", init_scale=4.0, monitor=ampmon.Config(every=1))
    scaler.scale(embedding(torch.tensor([1, 1, 3])).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    statistics = recording(data_directory).statistics(0)
    assert statistics.looked.tolist() == [6]
    assert statistics.amax.tolist() == [4.0]


def test_a_disabled_scaler_does_nothing_and_says_so_once(data_directory: Path) -> None:
    """T15: with `enabled=False` the whole loop works like the stock one's, with one event and no update."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", enabled=False)
    with pytest.warns(ampmon.AmpmonWarning, match="disabled"):
        iterate(scaler, model, optimizer, unscale=True)
    for _ in range(2):
        iterate(scaler, model, optimizer, unscale=True)
    assert (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == (1.0, {}, False)
    assert scaler.monitor is None
    recorded = recording(data_directory)
    assert len(recorded.events("disabled")) == 1
    assert recorded.updates == []


def test_pickles_are_what_they_were(data_directory: Path) -> None:
    """T16: ampmon's scaler pickles and copies as itself, a watched one as its own class; state keys are torch's."""
    ours = ampmon.GradScaler("cpu", init_scale=8.0)
    watched = ampmon.watch(torch.amp.GradScaler("cpu", init_scale=8.0))
    stock = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert ours.state_dict() == watched.state_dict() == stock.state_dict()
    for copied in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(copied) is ampmon.GradScaler
    for copied in (pickle.loads(pickle.dumps(watched)), copy.deepcopy(watched)):
        assert type(copied) is torch.amp.GradScaler
        assert copied.__dict__.keys() == stock.__dict__.keys()
    model = torch.nn.Linear(4, 4)
    iterate(copy.deepcopy(ours), model, SGD(model.parameters(), lr=0.1))
    assert [update.stream for update in recording(data_directory).updates] == ["scaler-3"]


def test_a_copy_in_mid_iteration_is_refused_as_ever() -> None:
    """T16: pickling between `unscale_` and `update` raises the stock scaler's AssertionError."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(AssertionError, match="may only be pickled"):
        pickle.dumps(scaler)


def test_a_scaler_may_be_watched_from_its_step_on(data_directory: Path) -> None:
    """A scaler that is watched after its gradients were unscaled records this update, and counts no error."""
    parameter = torch.nn.Parameter(torch.zeros(4))
    optimizer, scaler = SGD([parameter], lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(optimizer)
    monitor = ampmon.watch(scaler).monitor
    scaler.step(optimizer)
    scaler.update()
    assert monitor.errors == 0
    assert [each.event for each in recording(data_directory).updates] == ["steady"]


def test_a_forked_child_is_an_attempt_of_its_own(data_directory: Path) -> None:
    """T17: a forked child that trains writes its own spool, does not hang, and leaves the parent's spool alone."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    iterate(scaler, model, optimizer)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            iterate(scaler, model, optimizer)
            iterate(scaler, model, optimizer)
            current_run.finish()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    iterate(scaler, model, optimizer)
    parent, forked = recordings(data_directory)
    assert [update.ordinal for update in parent.updates] == [0, 1]
    assert [update.ordinal for update in forked.updates] == [0, 1]
    assert parent.attempt.run_id == forked.attempt.run_id
    assert parent.attempt.attempt_id != forked.attempt.attempt_id


def test_recipes_that_scale_other_things_than_losses(data_directory: Path) -> None:
    """T20: lists, tuples and generators of losses, and the outputs of a gradient penalty, scale as in torch."""
    stock, ours = (
        torch.amp.GradScaler("cpu", init_scale=4.0),
        ampmon.GradScaler("cpu", init_scale=4.0),
    )
    losses = [torch.tensor(1.0), torch.tensor(2.0)]
    for make in (list, tuple, iter):
        assert list(ours.scale(make(losses))) == list(stock.scale(make(losses)))
    weight = torch.ones(3, requires_grad=True)
    optimizer = SGD([weight], lr=0.1)
    (gradient,) = torch.autograd.grad(ours.scale((weight**2).sum()), weight, create_graph=True)
    penalty = (gradient / ours.get_scale()).pow(2).sum().sqrt()
    ours.scale((weight**2).sum() + penalty).backward()
    ours.step(optimizer)
    ours.update()
    assert len(recording(data_directory).updates) == 1


class Vendor:
    """A vendor's scaler with public methods only."""

    def __init__(self) -> None:
        self._value = 8.0
        self._found = False

    def is_enabled(self) -> bool:
        return True

    def get_scale(self) -> float:
        return self._value

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs * self._value

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad /= self._value
                self._found = self._found or not bool(parameter.grad.isfinite().all())

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.unscale_(optimizer)
        if not self._found:
            optimizer.step()

    def update(self) -> None:
        self._value *= 0.5 if self._found else 1.0
        self._found = False


def test_a_vendors_scaler_without_private_members_streams(data_directory: Path) -> None:
    """T22: without private members, the scale is read in public, and a skip is inferred from the back-off."""
    scaler: Any = ampmon.watch(Vendor())  # type: ignore[type-var]
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    iterate(scaler, model, optimizer)
    iterate(scaler, model, optimizer, spoil=float("nan"))
    recorded = recording(data_directory)
    assert [(u.scale, u.event, u.optimizers[0].skipped) for u in recorded.updates] == [
        (8.0, "steady", False),
        (8.0, "backoff", True),
    ]
    assert recorded.events("error") == []


class ScalerSubclass(torch.amp.GradScaler):
    """A user's subclass: its methods take and return more than torch's, and it has a `monitor` of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.monitor: Any = None

    def scale(self, outputs: Any, weight: float = 1.0) -> Any:
        return super().scale(outputs * weight)

    def unscale_(self, optimizer: torch.optim.Optimizer, threshold: float = 0.0) -> Any:
        super().unscale_(optimizer)
        return threshold

    def update(self, new_scale: Any = None) -> Any:
        super().update(new_scale)
        self.monitor = (self.monitor, self.get_scale())
        return self.monitor

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = False) -> Any:
        super().load_state_dict(state_dict)
        return strict


class Overseen(torch.amp.GradScaler):
    """A subclass with a method `monitor`."""

    def monitor(self) -> str:
        return "mine"


def test_a_subclass_does_what_it_did(data_directory: Path) -> None:
    """A watched subclass takes the same arguments and returns the same values; its own `monitor` stays."""

    def train(scaler: Any) -> list[Any]:
        model = torch.nn.Linear(4, 4)
        optimizer = SGD(model.parameters(), lr=0.1)
        loss = scaler.scale(torch.ones(()) * model(torch.ones(2, 4)).sum().sign(), weight=3.0)
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        found = [loss.abs(), scaler.unscale_(optimizer, 0.5), scaler.step(optimizer)]
        found += [
            scaler.update(),
            scaler.monitor,
            scaler.load_state_dict(scaler.state_dict(), strict=True),
        ]
        return found

    assert train(ampmon.watch(ScalerSubclass("cpu", init_scale=4.0))) == train(
        ScalerSubclass("cpu", init_scale=4.0)
    )
    assert ampmon.watch(Overseen("cpu")).monitor() == "mine"
    recorded = recording(data_directory)
    assert len(recorded.updates) == 1
    assert recorded.events("error") == []


def test_nothing_keeps_gradients_or_models_alive() -> None:
    """T24: after the step, gradients, parameters and optimizer are freed while the scaler and its monitor live."""
    model = torch.nn.Linear(64, 64)
    optimizer = AdamW(named(model.named_parameters()))
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model, monitor=ampmon.Config(every=1))
    for _ in range(3):
        scaler.scale(model(torch.ones(2, 64)).sum()).backward()
        gradient = weakref.ref(model.weight.grad)
        memory = model.weight.grad.untyped_storage()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        assert gradient() is None
        # Not even a detached view is left: this test's own handle is the last on the memory.
        assert torch._C._storage_Use_Count(memory._cdata) == 1
    alive = [weakref.ref(model.weight), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


def test_an_error_of_the_monitors_own_is_counted_and_training_goes_on(data_directory: Path) -> None:
    """T24: a gradient whose type breaks the probe costs one warning and an event each; every step is taken."""

    class Hostile(torch.Tensor):
        """A gradient that raises when detached."""

        def detach(self) -> torch.Tensor:
            raise RuntimeError("no")

    weight = torch.ones(3, requires_grad=True)
    optimizer = SGD([weight], lr=0.5)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=ampmon.Config(every=1))

    def train() -> None:
        for _ in range(3):
            scaler.scale((weight * 1.0).sum()).backward()
            weight.grad = weight.grad.as_subclass(Hostile)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    with pytest.warns(ampmon.AmpmonWarning, match="before_unscale") as warned:
        train()
    assert len(warned) == 1
    assert weight.tolist() == [-0.5] * 3
    assert scaler.monitor.errors == 3
    recorded = recording(data_directory)
    assert len(recorded.events("error")) == 3
    assert len(recorded.updates) == 3


def test_a_data_directory_that_cannot_be_used_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place to write, the scaler warns once with the reason and works like the stock one."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("AMPMON_DIR", str(blocked))
    with pytest.warns(ampmon.AmpmonWarning, match="not recording"):
        scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    model = torch.nn.Linear(4, 4)
    iterate(scaler, model, SGD(model.parameters(), lr=0.1))
    assert scaler.monitor is None
    assert scaler.get_scale() == 2.0


def test_mode_disabled_records_nothing(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AMPMON_MODE=disabled makes no monitor and no file."""
    monkeypatch.setenv("AMPMON_MODE", "disabled")
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    model = torch.nn.Linear(4, 4)
    iterate(scaler, model, SGD(model.parameters(), lr=0.1))
    ampmon.log({"loss": 1.0})
    assert scaler.monitor is None
    assert not data_directory.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"growth_interval": sys.maxsize},
        {"growth_interval": 2**60},
        {"name": "a\nb" * 200},
        {"name": "attempt"},
        {"name": 3},
    ],
)
def test_odd_arguments_that_torch_takes_are_taken(
    data_directory: Path, arguments: dict[str, Any]
) -> None:
    """Huge growth intervals and odd names are recorded in a form that a server accepts."""
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, **arguments)
    model = torch.nn.ModuleDict({"a\nb": torch.nn.Linear(4, 4)})
    iterate(scaler, model["a\nb"], SGD(named(model.named_parameters()), lr=0.1))
    recorded = recording(data_directory)
    assert len(recorded.updates) == 1
    assert recorded.events("error") == []
    (header,) = [header for header in recorded.messages if isinstance(header, wire.StreamHeader)]
    assert [parameter.name for parameter in header.parameters] == ["a b.weight", "a b.bias"]


def test_parameters_made_anew_at_every_step_take_one_place(data_directory: Path) -> None:
    """A tensor made anew for each step takes one place in the header, not one for each step."""
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=ampmon.Config(every=1))
    for _ in range(50):
        latent = torch.zeros(3, requires_grad=True)
        optimizer = SGD([latent], lr=0.1)
        scaler.scale((latent * 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    assert len(recorded.header().parameters) == 1
    assert recorded.statistics(49).amax.tolist() == [4.0]


@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")  # the lints need a hash
def test_optimizers_without_a_hash_are_measured(data_directory: Path) -> None:
    """Gradients are sampled although their optimizer has no hash, as that of a dataclass."""

    class Unhashable(SGD):
        __hash__ = None  # type: ignore[assignment]

    model = torch.nn.Linear(4, 4)
    optimizer = Unhashable(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", model=model, monitor=ampmon.Config(every=1))
    for _ in range(3):
        scaler.scale(model(torch.ones(4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.monitor is not None
    assert scaler.monitor.samples == 3


def test_a_parameter_at_anothers_address_is_not_taken_for_it(data_directory: Path) -> None:
    """If an optimizer is filled with new parameters whose ids return in another order, statistics keep their shapes."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    held = optimizer.param_groups[0]["params"]
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=ampmon.Config(every=1))
    ids: set[int] = set()
    for turn in range(8):
        held.clear()
        held.extend(torch.zeros(size, requires_grad=True) for size in ((3, 5), (5, 3))[turn % 2])
        ids.update(map(id, held))
        scaler.scale(torch.cat(held).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert len(ids) < 16  # so some ids came back
    recorded = recording(data_directory)
    shapes = [parameter.shape for parameter in recorded.header().parameters]
    for turn in range(8):
        statistics = recorded.statistics(turn)
        places = statistics.parameters.tolist()
        assert [shapes[place] for place in places] == [(n,) for n in statistics.looked.tolist()]
    assert sorted(shapes) == [(3,), (5,)]


def test_a_group_added_later_moves_nothing(data_directory: Path) -> None:
    """Unnamed parameters keep their places when an optimizer gets more of the same shape or is made anew."""
    weights = [torch.nn.Parameter(torch.ones(4, 4)) for _ in range(3)]
    optimizer = SGD([weights[1]], lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=ampmon.Config(every=1))
    for turn in range(3):
        if turn == 1:
            optimizer.add_param_group({"params": weights[:1]})
        elif turn == 2:
            optimizer = SGD(weights, lr=0.0)
        scaler.scale(sum(weights).sum()).backward()
        for number, weight in enumerate(weights):
            weight.grad.fill_(10.0 * number)
        scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    found = [
        dict(zip(each.parameters.tolist(), each.amax.tolist(), strict=True))
        for each in map(recorded.statistics, range(3))
    ]
    assert found == [{0: 10.0}, {0: 10.0, 1: 0.0}, {0: 10.0, 1: 0.0, 2: 20.0}]


def test_a_dropped_scaler_leaves_no_hook() -> None:
    """A scaler that is dropped while it learns the backward order removes its hooks."""
    model = torch.nn.Linear(4, 4)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    iterate(scaler, model, SGD(model.parameters(), lr=0.1))
    assert all(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    del scaler
    gc.collect()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())

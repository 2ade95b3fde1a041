"""The error index: each entry is complete, its links work, and it quotes what its source prints."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import ampmon
import scripts
from ampmon_server.pages import assets
from ampmon_server.pages.messages import PARTS, MessageEntry, entries


ROOT = Path(__file__).parents[2]
TORCH = Path(torch.__file__).parent
OURS = f"ampmon {ampmon.__version__}"
HOLE = ".*?"
KIND = re.compile(r"^\w*(?:Error|Exception|Warning): ")


def quoted(place: str) -> list[tuple[MessageEntry, str]]:
    """Messages whose entry was seen in ``place``, with that entry."""
    return [
        (entry, message) for entry in entries() for message in entry.messages if place in entry.seen
    ]


# -- strings in sources -------------------------------------------------------------------------------------------


def pattern(node: ast.AST) -> str:
    """A string of a source as a regular expression. Inserted values match anything."""
    match node:
        case ast.Constant(value=str(text)):
            return HOLE.join(map(re.escape, re.split(r"\{[\w:.]*\}|%[sd]", text)))
        case ast.JoinedStr(values=values):
            return "".join(map(pattern, values))
        case ast.BinOp(left=left, right=right, op=ast.Add()):
            return pattern(left) + pattern(right)
    return HOLE


@cache
def printable(path: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The patterns of a file's strings and their literal parts, if these have at least 18 characters in total."""
    found = {pattern(node) for node in ast.walk(ast.parse(path.read_text()))}
    own = {
        each: tuple(re.sub(r"\\(.)", r"\1", each, flags=re.DOTALL).split(HOLE)) for each in found
    }
    return tuple((each, parts) for each, parts in own.items() if len("".join(parts)) >= 18)


def prints(path: Path, message: str) -> bool:
    """Whether a string of the file matches the message, with at least a sixth of the message literal."""
    whole = KIND.sub("", message)
    texts = whole, re.sub(r"^ampmon(?: \w+)?: ", "", whole)
    return any(
        len("".join(parts)) >= len(whole) / 6
        and all(part in whole for part in parts)
        and any(re.fullmatch(each + r"\.?", text, re.DOTALL) for text in texts)
        for each, parts in printable(path)
    )


SOURCES = sorted([*ROOT.glob("ampmon/**/*.py"), *ROOT.glob("server/**/*.py")])


def test_our_messages_are_in_our_sources() -> None:
    """Each ampmon message matches a string in ampmon's sources."""
    ours = [
        message
        for entry, message in quoted(OURS)
        if "AmpmonWarning" in message or entry.seen == OURS
    ]

    assert len(ours) > 30
    assert [each for each in ours if not any(prints(path, each) for path in SOURCES)] == []


def test_torch_s_messages_are_in_the_torch_that_is_installed() -> None:
    """Each message of torch's Python code matches a string in a file that its entry names."""
    theirs = [
        (message, [TORCH.parent / path for path in re.findall(r"`(torch/\S+\.py)`", entry.seen)])
        for entry, message in quoted("`torch/")
        if "AmpmonWarning" not in message
    ]

    assert len(theirs) > 20
    assert [each for each, paths in theirs if not any(prints(path, each) for path in paths)] == []


def half(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float16)


def backward_of_nan() -> None:
    with torch.autograd.set_detect_anomaly(True):
        torch.sqrt(torch.tensor([-1.0], requires_grad=True)).sum().backward()


RAISED: dict[str, Callable[[], object]] = {
    "mat1 and mat2 must": lambda: torch.nn.Linear(2, 2)(half(1, 2)),
    "expected scalar type": lambda: torch.bmm(half(1, 2, 2), torch.ones(1, 2, 2)),
    "Input type (float)": lambda: torch.nn.Conv2d(1, 1, 1).half()(torch.ones(1, 1, 2, 2)),
    "value cannot": lambda: half(2).masked_fill(torch.tensor([True, False]), -1e9),
    '"cdist" not': lambda: torch.cdist(half(1, 2), half(1, 2)),
    "linalg.inv": lambda: torch.linalg.inv(half(2, 2)),
    "Index put": lambda: half(2).index_put_((torch.tensor([0]),), torch.ones(1)),
    "expected dtype float": lambda: torch.ones(1).lerp_(half(1), 0.1),
    "Function 'SqrtBackward0'": backward_of_nan,
    "probability tensor": lambda: torch.multinomial(torch.tensor([float("nan"), 1.0]), 1),
}
"""A CPU operation that raises each message of torch's C++ code, by the message's first words."""


@pytest.mark.parametrize("words", RAISED)
@pytest.mark.filterwarnings("ignore:Error detected in SqrtBackward0")
def test_torch_raises_what_the_index_quotes(words: str) -> None:
    """Each operation raises its entry's message, letter for letter."""
    [message] = [each for _, each in quoted("in C++") if KIND.sub("", each).startswith(words)]
    with pytest.raises(RuntimeError) as raised:
        RAISED[words]()

    assert f"{type(raised.value).__name__}: {raised.value}" == message


def test_messages_that_need_a_gpu_are_in_torch_s_library() -> None:
    """torch's library contains the C++ messages that no CPU operation raises, apart from type names."""
    others = [
        message
        for _, message in quoted("in C++")
        if not KIND.sub("", message).startswith(tuple(RAISED)) and "Ampmon" not in message
    ]
    library = (TORCH / "lib" / "libtorch_cpu.so").read_bytes()
    pieces = [
        piece for each in others for piece in re.split(r"torch\.cuda\.\w+", KIND.sub("", each))
    ]

    assert len(others) == 2
    assert [piece for piece in pieces if piece.encode() not in library] == []


def test_a_message_that_nobody_prints_is_noticed() -> None:
    """A message does not match a source string that differs in one word, or is longer or shorter."""
    path = TORCH / "amp" / "grad_scaler.py"

    assert prints(path, "AssertionError: Attempted step but _scale is None.  This may indicate")
    assert not prints(path, "AssertionError: Attempted step but scale is None.  This may indicate")
    assert not prints(path, "ValueError: Attempting to unscale FP16")
    assert not prints(path, "ValueError: Attempting to unscale FP16 gradients. Cast them.")


# -- the entries --------------------------------------------------------------------------------------------------


def test_each_entry_is_whole() -> None:
    """Each entry is complete and names the version or commit where it was seen. At least 40 messages have findings."""
    lacking = [
        entry.title
        for entry in entries()
        if not entry.messages or tuple(entry.parts) != PARTS or not all(entry.parts.values())
    ]
    undated = [
        entry.title
        for entry in entries()
        if not re.search(r"[\w-]+ \d+\.\d+|commit [0-9a-f]{7}", entry.seen)
    ]

    assert sum(len(entry.messages) for entry in entries() if entry.findings) >= 40
    assert (lacking, undated) == ([], [])


def test_each_heading_is_an_entry_with_an_anchor_of_its_own() -> None:
    """Each heading of the page becomes an entry. No two entries share an anchor, nor one with a section."""
    page = re.sub(r"^```.*?^```", "", assets.errors().read_text(), flags=re.MULTILINE | re.DOTALL)
    anchors = Counter(entry.anchor for entry in entries())

    assert len(anchors) == len(re.findall(r"^### ", page, re.MULTILINE))
    assert [each for each, times in anchors.items() if times > 1] == []
    assert set(anchors).isdisjoint(re.findall(r"\(#([\w-]+)\)", page))


def test_each_finding_has_a_page() -> None:
    """Each finding that an entry names has a page."""
    named = {rule for entry in entries() for rule in entry.findings}
    pages = {path.stem for path in ROOT.glob("docs/findings/*.md")}

    assert len(named) > 20
    assert named - pages == set()


def code(language: str) -> Iterator[tuple[MessageEntry, str]]:
    for entry in entries():
        for part in entry.parts.values():
            for block in re.findall(rf"```{language}\n(.*?)\n```", part, re.DOTALL):
                yield entry, block


CONTEXT = """
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
scaler = torch.amp.GradScaler("cpu")
inputs, targets = torch.randn(8, 4), torch.randint(0, 2, (8,))
batches = loader = [(inputs, targets)] * 8
loss_fn = torch.nn.functional.cross_entropy
checkpoint = {each: eval(each).state_dict() for each in ("model", "optimizer", "scaler")}
"""
RUN = """
import json, sys, warnings
warnings.simplefilter("error")
context, blocks = json.loads(sys.argv[1])
for anchor, block in blocks:
    names = {"print": lambda *words: [str(word) for word in words]}
    try:
        exec(context + block.replace('"cuda"', '"cpu"'), names)
    except Exception as error:
        print(anchor, type(error).__name__, error)
"""


def test_the_code_for_torch_and_ampmon_runs() -> None:
    """Each Python block for torch and ampmon runs in a small CPU training without a warning."""
    blocks = [
        (entry.anchor, block)
        for entry, block in code("python")
        if entry.seen.startswith(("torch ", OURS))
    ]

    assert len(blocks) > 40
    assert scripts.run("-c", RUN, json.dumps([CONTEXT, blocks])).stdout == ""


NAMES = """
import ampmon

batches = loader = [(inputs, targets)]
lr, dtype, device, number, batch, layer, x = 0.1, torch.float16, "cpu", 4, inputs, model, inputs
criterion, output, target, max_norm = loss_fn, model(inputs), targets, 1.0
accumulation, epochs, train = 4, 2, lambda *_: None
generator_parameters, discriminator_parameters = ([each] for each in model.parameters())
loss_of = lambda _: loss_fn(model(inputs), targets)
loss = loss_of(batch)
scaler.scale(loss_of(batch)).backward()
warnings.filterwarnings("ignore", "torch.cuda.amp.GradScaler is enabled")
"""
"""Further names that the pages of findings use, as in the middle of an iteration."""
ELSEWHERE = {"moved_outside_training", "poisoned_state", "ranks_disagree"}
"""Pages whose code needs a framework, a file or a process group."""


def test_the_code_of_the_findings_runs() -> None:
    """Each block on the other pages of findings runs in the same training without an error."""
    pages = {path.stem: path.read_text() for path in ROOT.glob("docs/findings/*.md")}
    blocks = [
        (rule, block)
        for rule, page in pages.items()
        for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        if rule not in ELSEWHERE
    ]
    context = "import warnings\n" + CONTEXT + NAMES

    assert len(blocks) > 50
    assert scripts.run("-c", RUN, json.dumps([context, blocks])).stdout == ""


def test_the_code_for_frameworks_can_be_read() -> None:
    """Each Python block parses, and each JSON block is an object."""
    for _, block in code("python"):
        ast.parse(textwrap.dedent(block))
    for _, block in code("json"):
        assert isinstance(json.loads(block), dict)

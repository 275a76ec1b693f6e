"""Rules of ``ops_registry/rules/recurrent.py``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.checking import Case, Make, case, cotangents, plain, rand, run_case
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import nn
import tracer
from ops_registry.errors import UnsupportedCallError
from ops_registry.rules.recurrent import gru_layer, lstm_layer, rnn_layer
from ops_registry.torch_private import onednn_takes_bfloat16

KINDS = ("RNN-tanh", "RNN-relu", "LSTM", "GRU")
INPUT, HIDDEN, STEPS, BATCH = 3, 4, 5, 3
#: The ends of three sequences, for packing; with the order of the second case sorting does something.
LENGTHS = ([5, 3, 1], [2, 5, 5])


def network(kind: str, **options: Any) -> torch.nn.RNNBase:
    """A stock module in float64, with biases that are not small."""
    name, _, nonlinearity = kind.partition("-")
    if nonlinearity:
        options["nonlinearity"] = nonlinearity
    torch.manual_seed(3)
    return getattr(torch.nn, name)(INPUT, HIDDEN, dtype=torch.float64, **options)


def state_of(module: torch.nn.RNNBase, batch: int | None = BATCH) -> list[torch.Tensor]:
    """Initial states for ``module``: h, and for an LSTM c."""
    cells = module.num_layers * (2 if module.bidirectional else 1)
    sizes = [module.proj_size or module.hidden_size]
    if module.mode == "LSTM":
        sizes.append(module.hidden_size)
    shapes = [(cells, size) if batch is None else (cells, batch, size) for size in sizes]
    return [rand(*shape, seed=5)(torch.device("cpu")) for shape in shapes]


def as_hx(module: torch.nn.Module, state: list[torch.Tensor]) -> Any:
    if not state:
        return None
    return tuple(state) if "LSTM" in type(module).__name__ else state[0]


def results(output: Any) -> list[torch.Tensor]:
    """The tensors of nested results."""
    if isinstance(output, PackedSequence):
        return [output.data]
    if isinstance(output, torch.Tensor):
        return [output]
    return [t for part in output for t in results(part)]


Call = Callable[..., Any]


def ordinary(module: torch.nn.Module, input: torch.Tensor, state: list[torch.Tensor]) -> Any:
    return module(input, as_hx(module, state))


def packed(lengths: list[int]) -> Call:
    def call(module: torch.nn.RNNBase, input: torch.Tensor, state: list[torch.Tensor]) -> Any:
        packing = pack_padded_sequence(input, torch.tensor(lengths), module.batch_first, enforce_sorted=False)
        return module(packing, as_hx(module, state))

    return call


def compare(
    module: torch.nn.Module, call: Call, input: torch.Tensor, state: list[torch.Tensor], second: bool = False
) -> None:
    """Values, and gradients of input, initial states and all parameters, equal those of torch."""
    found = []
    for tracked in (True, False):
        own = copy.deepcopy(module)
        if tracked:
            nn.track(own)
        data = [tracer.track(t.clone(), True) if tracked else t.clone().requires_grad_() for t in (input, *state)]
        torch.manual_seed(42)
        out = results(call(own, data[0], data[1:]))
        wanted = [*data, *own.parameters()]
        grads = torch.autograd.grad(out, wanted, cotangents(out), create_graph=second)
        found.append([plain(t) for t in (*out, *grads)])
        if second:
            again = torch.autograd.grad(grads, wanted, cotangents(list(grads), 2))
            found[-1] += [plain(t) for t in again]
    for position, (ours, theirs) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10, msg=lambda m, p=position: f"tensor {p}: {m}")


def sequence(module: torch.nn.RNNBase) -> torch.Tensor:
    shape = (BATCH, STEPS, INPUT) if module.batch_first else (STEPS, BATCH, INPUT)
    return rand(*shape)(torch.device("cpu"))


SHAPES = list(itertools.product((1, 2), (True, False), (True, False)))


@pytest.mark.parametrize("given", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize(("layers", "bias", "bidirectional"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_networks_equal_torch(kind: str, layers: int, bias: bool, bidirectional: bool, given: bool) -> None:
    for batch_first in (True, False):
        module = network(kind, num_layers=layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
        compare(module, ordinary, sequence(module), state_of(module) if given else [])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("given", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize(("layers", "bias", "bidirectional"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_equal_torch(
    kind: str, layers: int, bias: bool, bidirectional: bool, given: bool, lengths: list[int]
) -> None:
    for batch_first in (True, False):
        module = network(kind, num_layers=layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
        compare(module, packed(lengths), sequence(module), state_of(module) if given else [])


@pytest.mark.parametrize(("layers", "bias", "bidirectional"), SHAPES)
def test_projected_lstm_equals_torch(layers: int, bias: bool, bidirectional: bool) -> None:
    module = network("LSTM", num_layers=layers, bias=bias, bidirectional=bidirectional, proj_size=2)
    for call in (ordinary, packed([2, 5, 5])):
        compare(module, call, sequence(module), state_of(module))


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_without_a_batch_equal_torch(kind: str) -> None:
    module = network(kind, num_layers=2, bidirectional=True)
    compare(module, ordinary, rand(STEPS, INPUT)(torch.device("cpu")), state_of(module, None))


@pytest.mark.parametrize("call", [ordinary, packed([2, 5, 5])], ids=["ordinary", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_equal_torch(kind: str, call: Call) -> None:
    module = network(kind, num_layers=2, bidirectional=True)
    compare(module, call, sequence(module), state_of(module), second=True)


def test_second_derivatives_of_a_projected_lstm_equal_torch() -> None:
    module = network("LSTM", num_layers=2, proj_size=2)
    compare(module, ordinary, sequence(module), state_of(module), second=True)


@pytest.mark.parametrize("call", [ordinary, packed([2, 5, 5])], ids=["ordinary", "packed"])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers_takes_torchs_random_numbers(kind: str, bidirectional: bool, call: Call) -> None:
    for batch_first in (True, False):
        module = network(kind, num_layers=3, bidirectional=bidirectional, dropout=0.4, batch_first=batch_first)
        compare(module, call, sequence(module), state_of(module))


def test_no_dropout_outside_training() -> None:
    module = network("LSTM", num_layers=2, dropout=0.4).eval()
    compare(module, ordinary, sequence(module), state_of(module))


def test_everything_dropped_between_layers() -> None:
    module = network("GRU", num_layers=2, dropout=1.0)
    compare(module, ordinary, sequence(module), state_of(module))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_no_sequences(kind: str) -> None:
    module = network(kind)
    compare(module, ordinary, torch.zeros(STEPS, 0, INPUT, dtype=torch.float64), state_of(module, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_get_no_gradient(kind: str) -> None:
    module = nn.track(network(kind))
    module.weight_hh_l0.requires_grad_(False)
    module.bias_ih_l0.requires_grad_(False)
    module(sequence(module))[0].sum().backward()
    assert [p.grad is None for p in module.parameters()] == [False, True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_plain_parameters_give_the_gradient_of_a_tracked_input(kind: str) -> None:
    module = network(kind, bidirectional=True).requires_grad_(False)
    ours, theirs = tracer.track(sequence(module), True), sequence(module).requires_grad_()
    for input in (ours, theirs):
        module(input)[0].square().sum().backward()
    torch.testing.assert_close(plain(ours.grad), theirs.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_recorded_without_grad_mode(kind: str) -> None:
    module = nn.track(network(kind))
    with torch.no_grad():
        output, _ = module(sequence(module))
    assert not output.requires_grad
    torch.testing.assert_close(plain(output), plain(module(sequence(module))[0]))


# Cells.

CELLS = ("RNNCell-tanh", "RNNCell-relu", "LSTMCell", "GRUCell")


@pytest.mark.parametrize("given", [True, False], ids=["state", "no-state"])
@pytest.mark.parametrize("batch", [(2,), (0,), ()], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", CELLS)
def test_cells_equal_torch(kind: str, bias: bool, batch: tuple[int, ...], given: bool) -> None:
    cell = network(kind, bias=bias)
    state = [rand(*batch, HIDDEN, seed=s)(torch.device("cpu")) for s in range(2 if kind == "LSTMCell" else 1)]
    compare(cell, ordinary, rand(*batch, INPUT)(torch.device("cpu")), state if given else [], second=given)


def cell_inputs(gates: int, states: int) -> tuple[Make, ...]:
    weights = rand(gates * HIDDEN, INPUT), rand(gates * HIDDEN, HIDDEN)
    biases = rand(gates * HIDDEN), rand(gates * HIDDEN, seed=1)
    return rand(2, INPUT), *(rand(2, HIDDEN, seed=s) for s in range(states)), *weights, *biases


def lstm_cell(x: Any, h: Any, c: Any, *weights: Any) -> Any:
    return torch.lstm_cell(x, (h, c), *weights)


def layer_inputs(gates: int, states: int, projected: int | None = None) -> tuple[Make, ...]:
    """Six rows of input, states for three sequences, weights and biases of a layer."""
    out = projected or HIDDEN
    shapes = [(6, INPUT), (3, out), (3, HIDDEN)][: 1 + states]
    shapes += [(gates * HIDDEN, INPUT), (gates * HIDDEN, out), (gates * HIDDEN,), (gates * HIDDEN,)]
    if projected:
        shapes.append((projected, HIDDEN))
    return tuple(rand(*shape, seed=i) for i, shape in enumerate(shapes))


def layer(kind: str, sizes: list[int], reverse: bool, relu: bool = False) -> Callable[..., Any]:
    """An op of ``ops_registry/rules/recurrent.py`` for the first of the sequences."""

    def call(input: Any, h: Any, *others: Any) -> Any:
        h = h[: max(sizes)]
        if kind == "rnn":
            return rnn_layer(input, h, *others, relu, sizes, reverse)
        if kind == "gru":
            return gru_layer(input, h, *others, sizes, reverse)
        c, *weights = others
        w_hr = weights.pop() if len(weights) > 4 else None
        return lstm_layer(input, h, c[: max(sizes)], *weights, w_hr, sizes, reverse)

    return call


def wanted(count: int) -> tuple[tuple[int, ...], ...]:
    """Some sets of inputs that want a gradient: all of them would take long."""
    return ((0,), (1,), tuple(range(2, count)), tuple(range(count)))


CASES = [
    case("rnn_tanh_cell", torch.rnn_tanh_cell, *cell_inputs(1, 1)),
    case("rnn_relu_cell", torch.rnn_relu_cell, *cell_inputs(1, 1)),
    case("gru_cell", torch.gru_cell, *cell_inputs(3, 1)),
    case("lstm_cell", lstm_cell, *cell_inputs(4, 2), needs=((0,), (1,), (2,), (3,), (4,), (5,), (6,), tuple(range(7)))),
    case("rnn_layer", layer("rnn", [2, 2, 2], False, False), *layer_inputs(1, 1), needs=wanted(6)),
    case(
        "rnn_layer",
        layer("rnn", [3, 2, 1], False, True),
        *layer_inputs(1, 1),
        label="relu-packed-reverse",
        needs=wanted(6),
    ),
    case("gru_layer", layer("gru", [2, 2, 2], False), *layer_inputs(3, 1), needs=wanted(6)),
    case("gru_layer", layer("gru", [3, 2, 1], True), *layer_inputs(3, 1), label="packed-reverse", needs=wanted(6)),
    case("lstm_layer", layer("lstm", [2, 2, 2], False), *layer_inputs(4, 2), needs=wanted(7)),
    case("lstm_layer", layer("lstm", [3, 2, 1], True), *layer_inputs(4, 2), label="packed-reverse", needs=wanted(7)),
    case(
        "lstm_layer",
        layer("lstm", [3, 2, 1], False),
        *layer_inputs(4, 2, projected=2),
        label="projected",
        needs=wanted(8),
    ),
]


@pytest.mark.parametrize("c", CASES, ids=str)
def test_case(c: Case, device: torch.device) -> None:
    run_case(c, device)


# The ways to call them.


def flat_gru() -> tuple[Any, ...]:
    module = nn.track(network("GRU"))
    return module._flat_weights, True, 1, 0.0, False, False


def test_arguments_by_name() -> None:
    params, has_biases, *rest = flat_gru()
    input, hx = rand(STEPS, BATCH, INPUT)(torch.device("cpu")), torch.zeros(1, BATCH, HIDDEN, dtype=torch.float64)
    by_position, _ = torch.gru(input, hx, params, has_biases, *rest, False)
    names = ("num_layers", "dropout", "train", "bidirectional")
    named = dict(zip(names, rest, strict=True))
    by_name, _ = torch.gru(input=input, hx=hx, params=params, has_biases=has_biases, batch_first=False, **named)
    torch.testing.assert_close(plain(by_name), plain(by_position))
    assert by_name.requires_grad


def test_packed_arguments_by_name() -> None:
    params, has_biases, *rest = flat_gru()
    data, hx = rand(3, INPUT)(torch.device("cpu")), torch.zeros(1, 2, HIDDEN, dtype=torch.float64)
    sizes = torch.tensor([2, 1])
    by_position, _ = torch.gru(data, sizes, hx, params, has_biases, *rest)
    names = ("num_layers", "dropout", "train", "bidirectional")
    named = dict(zip(names, rest, strict=True))
    by_name, _ = torch.gru(data=data, batch_sizes=sizes, hx=hx, params=params, has_biases=has_biases, **named)
    torch.testing.assert_close(plain(by_name), plain(by_position))
    assert by_name.requires_grad


@pytest.mark.parametrize("spelled", [torch.ops.aten.gru, torch.ops.aten.gru.input, torch._VF.gru])  # type: ignore[attr-defined]
def test_every_spelling_is_recorded(spelled: Callable[..., Any]) -> None:
    input, hx = rand(STEPS, BATCH, INPUT)(torch.device("cpu")), torch.zeros(1, BATCH, HIDDEN, dtype=torch.float64)
    assert spelled(input, hx, *flat_gru(), False)[0].requires_grad


def test_a_sequence_of_no_steps_is_refused() -> None:
    with pytest.raises(UnsupportedCallError, match="no steps"):
        nn.track(network("LSTM"))(torch.zeros(0, 2, INPUT).double())


def test_a_state_for_another_batch_is_refused() -> None:
    with pytest.raises(UnsupportedCallError, match=r"state of shape \(1, 1, 4\) .* 3 sequences"):
        torch.gru(torch.zeros(5, 3, INPUT).double(), torch.zeros(1, 1, HIDDEN).double(), *flat_gru(), False)


def test_the_wrong_number_of_parameters_is_refused() -> None:
    params, *rest = flat_gru()
    with pytest.raises(UnsupportedCallError, match="given 3 parameters"):
        torch.gru(torch.zeros(5, 3, INPUT).double(), torch.zeros(1, 3, HIDDEN).double(), params[:3], *rest, False)


@pytest.mark.parametrize("kind", CELLS)
def test_a_cell_refuses_a_state_with_other_rows(kind: str) -> None:
    cell = nn.track(network(kind))
    state = [torch.zeros(1, HIDDEN).double()] * (2 if kind == "LSTMCell" else 1)
    with pytest.raises(UnsupportedCallError, match="3 rows"):
        cell(torch.zeros(3, INPUT).double(), as_hx(cell, state))


# Packing in a network.


def through_packing(embedding: torch.nn.Embedding, module: torch.nn.RNNBase, batch_first: bool) -> list[torch.Tensor]:
    words = torch.tensor([[1, 2, 0, 0], [3, 1, 2, 4], [4, 0, 0, 0]])
    embedded = embedding(words if batch_first else words.t())
    packing = pack_padded_sequence(embedded, torch.tensor([2, 4, 1]), batch_first, enforce_sorted=False)
    output, lengths = pad_packed_sequence(module(packing)[0], batch_first, total_length=6)
    assert lengths.tolist() == [2, 4, 1]
    (output.square().sum()).backward()
    return [plain(t) for t in (output, *(p.grad for p in [*embedding.parameters(), *module.parameters()]))]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_go_through_packing_and_padding(kind: str, batch_first: bool) -> None:
    embedding = torch.nn.Embedding(5, INPUT, dtype=torch.float64)
    module = network(kind, batch_first=batch_first, bidirectional=True)
    ours = through_packing(*map(nn.track, copy.deepcopy((embedding, module))), batch_first)
    for own, their in zip(ours, through_packing(embedding, module, batch_first), strict=True):
        torch.testing.assert_close(own, their, rtol=1e-9, atol=1e-10)


def test_gradients_of_sequences_packed_from_a_list() -> None:
    lists = [rand(n, INPUT)(torch.device("cpu")) for n in (3, 1, 4)]
    module = network("GRU").requires_grad_(False)
    ours, theirs = [tracer.track(s.clone(), True) for s in lists], [s.clone().requires_grad_() for s in lists]
    for sequences in (ours, theirs):
        module(pack_sequence(sequences, enforce_sorted=False))[1].square().sum().backward()
    for own, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(plain(own.grad), their.grad)


# In single precision torch has one kernel for a whole LSTM on the CPU, and so has its rule.


@pytest.mark.parametrize("used", range(3), ids=["output", "h", "c"])
@pytest.mark.parametrize(("layers", "bias", "bidirectional"), SHAPES)
def test_the_kernel_of_an_lstm_gives_torchs_gradients(layers: int, bias: bool, bidirectional: bool, used: int) -> None:
    module = network("LSTM", num_layers=layers, bias=bias, bidirectional=bidirectional).float()
    twin = nn.track(copy.deepcopy(module))
    data, state = sequence(module).float(), [s.float() for s in state_of(module)]
    for m in (module, twin):
        results(ordinary(m, data, state))[used].square().sum().backward()
    for ours, theirs in zip(twin.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(plain(ours.grad), theirs.grad, rtol=1e-4, atol=1e-5)


def test_second_derivatives_go_through_the_kernel_of_an_lstm() -> None:
    module = network("LSTM").float()
    found = []
    for m in (nn.track(copy.deepcopy(module)), network("LSTM")):
        data = sequence(module).to(next(m.parameters()).dtype)
        data = tracer.track(data, True) if m.weight_ih_l0.dtype == torch.float32 else data.requires_grad_()
        (slope,) = torch.autograd.grad(m(data)[0].square().sum(), data, create_graph=True)
        found.append(plain(torch.autograd.grad(slope.square().sum(), data)[0]).double())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not onednn_takes_bfloat16(), reason="torch has no kernel for it on this processor")
def test_an_lstm_in_bfloat16_is_that_of_torch_to_the_bit() -> None:
    module = network("LSTM").bfloat16()
    twin, data = nn.track(copy.deepcopy(module)), sequence(module).bfloat16()
    for m in (module, twin):
        m(data)[0].square().sum().backward()
    assert all(torch.equal(plain(a.grad), b.grad) for a, b in zip(twin.parameters(), module.parameters(), strict=True))


def test_the_kernel_of_an_lstm_is_left_alone_where_it_is_switched_off() -> None:
    module = network("LSTM").float()
    twin, data = nn.track(copy.deepcopy(module)), sequence(module).float()
    module(data)[0].sum().backward()
    with torch.backends.mkldnn.flags(enabled=False):
        twin(data)[0].sum().backward()
    torch.testing.assert_close(plain(twin.weight_hh_l0.grad), module.weight_hh_l0.grad, rtol=1e-4, atol=1e-5)


# Training.


class Classifier(torch.nn.Module):
    """Says whether the sum over a sequence is above zero."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.network = getattr(torch.nn, kind)(1, 12, batch_first=True)
        self.head = torch.nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.network(x)[0][:, -1])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_classifier_of_sequences_learns(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.track(Classifier(kind))
    data = torch.randn(64, 8, 1)
    target = (data.sum((1, 2)) > 0).long()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), target)
        loss.backward()
        optimiser.step()
    assert (model(data).argmax(1) == target).float().mean() > 0.95


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_low_precision_gradients_are_near_torchs(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(INPUT, HIDDEN, 2, dtype=dtype)
    twin, data = nn.track(copy.deepcopy(module)), torch.randn(STEPS, BATCH, INPUT, dtype=dtype)
    for m in (module, twin):
        m(data)[0].float().square().sum().backward()
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    for theirs, ours in zip(module.parameters(), twin.parameters(), strict=True):
        assert ours.grad is not None and ours.grad.dtype == dtype
        torch.testing.assert_close(plain(ours.grad), theirs.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_autocast_gives_torchs_dtypes_and_values(kind: str) -> None:
    torch.manual_seed(0)
    module = getattr(torch.nn, kind)(INPUT, HIDDEN, 2)
    twin, data = nn.track(copy.deepcopy(module)), torch.randn(STEPS, BATCH, INPUT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        theirs, ours = results(module(data)), results(twin(data))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(plain(our), their.detach(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("cell", [torch.rnn_tanh_cell, torch.gru_cell])
def test_cells_of_complex_numbers_equal_torch(cell: Callable[..., torch.Tensor]) -> None:
    gates = 3 if cell is torch.gru_cell else 1
    shapes = ((2, 3), (2, 4), (4 * gates, 3), (4 * gates, 4))
    data = [rand(*s, dtype=torch.complex128)(torch.device("cpu")) for s in shapes]
    ours, theirs = [tracer.track(d.clone(), True) for d in data], [d.clone().requires_grad_() for d in data]
    for leaves in (ours, theirs):
        cell(*leaves).abs().sum().backward()
    for own, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(plain(own.grad), their.grad)


def test_the_rule_of_a_layer_refuses_complex_numbers() -> None:
    x, h, w, u = (torch.randn(s, dtype=torch.complex128) for s in ((2, 3), (2, 4), (4, 3), (4, 4)))
    with pytest.raises(UnsupportedCallError, match="real numbers"):
        rnn_layer(tracer.track(x, True), h, w, u, None, None, False, [2], False)[0].abs().sum().backward()

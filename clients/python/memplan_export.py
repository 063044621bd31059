"""Write a torch.nn.Module down as a graph that memplan reads as model.graph.

Standard library and torch (2.5 or newer) only. Nothing is computed: the module
is exported with torch.export, which runs it on fake tensors.

    import memplan_export
    graph = memplan_export.export(module, (images,))     # a dict: model.graph
    memplan_export.save(graph, "graph.json")             # memplan estimate --graph graph.json

or, where a function without arguments returns the module:

    python memplan_export.py package.module:function --input 2x3x224x224 -o graph.json

The module is exported twice, with batches that differ by one sample, so that
every size is known as a number of samples times something: the graph holds for
any micro batch. docs/graph.md is the format.
"""

import argparse
import importlib
import json
import re
import sys

FORMAT = "memplan-graph"
VERSION = 1

# Higher-order operations whose bodies are written in their place.
_NO_GRAD = "wrap_with_set_grad_enabled"
_AUTOCAST = "wrap_with_autocast"


class NotExportable(Exception):
    """The module cannot be written down; the message says why."""


def export(module, args, kwargs=None, loss=None):
    """Return the graph of ``module`` called with ``args`` and ``kwargs``.

    The first dimension of every tensor of the same first size as the first
    tensor is the batch. ``loss`` is what a training loop does with the result:
    a function of it that returns a scalar, whose operations become part of the
    graph; or the name of a loss that memplan puts on it: ``cross_entropy``,
    ``mse`` or ``sum``. None leaves the choice to memplan.
    """
    import torch

    kwargs = dict(kwargs or {})
    tensors = [t for t in [*args, *kwargs.values()] if isinstance(t, torch.Tensor)]
    if not tensors or tensors[0].dim() == 0:
        raise NotExportable("the first input has to be a tensor whose first dimension is the batch")
    batch = tensors[0].shape[0]
    if batch < 2:  # a size of one is taken for a constant of the program
        return export(module, [_grown(t, batch) for t in args], {k: _grown(t, batch) for k, t in kwargs.items()}, loss)
    traced = module
    if callable(loss):
        traced = _with_loss(module, loss)
    small = _trace(traced, tuple(args), kwargs, batch)
    large = _trace(traced, tuple(_grown(t, batch) for t in args), {k: _grown(t, batch) for k, t in kwargs.items()}, batch + 1)
    graph = _merge(small, large, batch, "")
    if isinstance(loss, str):
        graph["loss"] = loss
    return graph


def save(graph, path):
    """Write a graph as JSON, one node a line."""
    with open(path, "w", encoding="utf-8") as f:
        f.write(dumps(graph))


def dumps(graph):
    """Return a graph as JSON, one entry of each list a line."""
    fields = []
    for key, value in graph.items():
        if isinstance(value, list):
            lines = ",\n".join("  " + json.dumps(v, separators=(",", ":")) for v in value)
            fields.append(f" {json.dumps(key)}:[\n{lines}]")
        else:
            fields.append(f" {json.dumps(key)}:{json.dumps(value)}")
    return "{\n" + ",\n".join(fields) + "}\n"


def _grown(value, batch):
    """A tensor with one sample more; anything else as it is."""
    import torch

    if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == batch:
        return torch.cat([value, value[:1]])
    return value


def _with_loss(module, loss):
    import torch

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return loss(self.module(*args, **kwargs))

    wrapped = WithLoss()
    wrapped.train(module.training)
    return wrapped


def _trace(module, args, kwargs, batch):
    """Export once and write everything down with plain numbers."""
    import torch

    try:
        program = torch.export.export(module, args, kwargs, strict=False)
    except Exception as e:  # what can go wrong is torch's to say
        raise NotExportable(f"torch.export cannot follow this module: {e}") from e
    writer = _Writer(program, module)
    return {
        "format": FORMAT, "version": VERSION, "torch": torch.__version__.split("+")[0],
        "class": _class_name(type(module)), "batch": batch,
        "modules": [{"path": path, "class": type(m).__name__} for path, m in module.named_modules()],
        "parameters": _parameters(module) + writer.constants,
        "inputs": writer.inputs, "calls": writer.calls, "nodes": writer.nodes, "outputs": writer.outputs,
    }


def _class_name(cls):
    return f"{cls.__module__}.{cls.__qualname__}"


def _parameters(module):
    """Parameters and buffers with their names; a tied one names the first."""
    first, out = {}, []
    for kind, named in (
        ("parameter", module.named_parameters(remove_duplicate=False)),
        ("buffer", module.named_buffers(remove_duplicate=False)),
    ):
        for name, t in named:
            entry = {"name": name, "kind": kind, "shape": list(t.shape), "dtype": _dtype(t.dtype)}
            if kind == "parameter" and not t.requires_grad:
                entry["frozen"] = True
            if id(t) in first:
                entry["tied"] = first[id(t)]
            first.setdefault(id(t), name)
            out.append(entry)
    return out


def _dtype(dtype):
    return str(dtype).removeprefix("torch.")


class _Writer:
    """Writes the nodes of an exported program as lists and numbers."""

    def __init__(self, program, module):
        self.calls = [{"module": ""}]
        self.nodes, self.inputs, self.constants, self.outputs = [], [], [], []
        self.names = {}  # of nodes: "%value" or "@parameter"
        self.made = 0
        self.modules = dict(module.named_modules())
        graph = program.graph
        specs = {s.arg.name: s for s in program.graph_signature.input_specs if hasattr(s.arg, "name")}
        for node in graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node, specs.get(node.name))
        self.walk(graph, program.graph_module, {}, False)

    def placeholder(self, node, spec):
        kind = spec.kind.name if spec is not None else "USER_INPUT"
        value = node.meta.get("val")
        if kind in ("PARAMETER", "BUFFER"):
            self.names[node] = "@" + spec.target
        elif kind == "CONSTANT_TENSOR":
            self.names[node] = "@" + node.name
            self.constants.append({"name": node.name, "kind": "constant", "shape": list(value.shape), "dtype": _dtype(value.dtype)})
        elif hasattr(value, "shape"):
            self.names[node] = "%" + node.name
            self.inputs.append({"name": node.name, "shape": list(value.shape), "dtype": _dtype(value.dtype)})

    def walk(self, graph, owner, outer, no_grad):
        """Write a graph's nodes; outer gives its placeholders their values."""
        result = None
        for node in graph.nodes:
            if node in outer:
                self.names[node] = outer[node]
            elif node.op == "call_function":
                self.function(node, owner, no_grad)
            elif node.op == "get_attr" and hasattr(getattr(owner, node.target, None), "shape"):
                value = getattr(owner, node.target)
                self.names[node] = "@" + node.name
                self.constants.append({"name": node.name, "kind": "constant", "shape": list(value.shape), "dtype": _dtype(value.dtype)})
            elif node.op == "output":
                result = node.args[0]
        if owner is not None and not outer:
            self.outputs = [self.names[n] for n in _flat(result) if n in self.names]
        return result

    def function(self, node, owner, no_grad):
        name = getattr(node.target, "_name", None) or getattr(node.target, "__name__", str(node.target))
        if name in (_NO_GRAD, _AUTOCAST):
            return self.inline(node, owner, name, no_grad)
        value = node.meta.get("val")
        if name == "getitem" and isinstance(self.names.get(node.args[0]), list):
            self.names[node] = self.names[node.args[0]][node.args[1]]
            return None
        tensors = [v for v in _flat(value) if hasattr(v, "shape")]
        if not tensors:
            return None
        self.names[node] = "%" + node.name
        if no_grad is not False and node.name in {n["name"] for n in self.nodes}:
            self.made += 1
            self.names[node] += f".{self.made}"
        entry = {"name": self.names[node][1:], "op": name.removeprefix("aten::"), "call": self.call(node), "args": self.arguments(node)}
        entry["out"] = [{"shape": list(v.shape), "dtype": _dtype(v.dtype)} for v in tensors]
        if no_grad:
            entry["no_grad"] = True
        self.nodes.append(entry)
        return None

    def inline(self, node, owner, name, no_grad):
        """Write the body of a higher-order operation in its place."""
        at = next(i for i, a in enumerate(node.args) if getattr(a, "op", None) == "get_attr")
        if name == _NO_GRAD:
            no_grad = not node.args[0]
        body = getattr(owner, node.args[at].target)
        holes = [n for n in body.graph.nodes if n.op == "placeholder"]
        outer = {hole: self.names.get(a, a) for hole, a in zip(holes, node.args[at + 1:])}
        outer[None] = None  # says that this is a body even where it takes nothing
        result = self.walk(body.graph, body, outer, no_grad)
        self.names[node] = [self.names.get(n) for n in _flat(result)]

    def call(self, node):
        """The call of a module that a node is part of."""
        at = 0
        for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
            if path not in self.modules:
                continue
            if path == "":
                continue
            count = re.search(r"@(\d+)$", str(key))
            call = {"module": path, "in": at}
            if count:
                call["again"] = int(count[1])
            if call not in self.calls:
                self.calls.append(call)
            at = self.calls.index(call)
        return at

    def arguments(self, node):
        """A node's arguments by the names of its schema."""
        schema = getattr(node.target, "_schema", None)
        names = [a.name for a in schema.arguments] if schema is not None else []
        out = {}
        for i, a in enumerate(node.args):
            out[names[i] if i < len(names) else str(i)] = self.value(a)
        for key, a in node.kwargs.items():
            out[key] = self.value(a)
        return out

    def value(self, a):
        import torch

        if isinstance(a, torch.fx.Node):
            return self.names.get(a)
        if isinstance(a, (list, tuple)):
            return [self.value(x) for x in a]
        if isinstance(a, torch.dtype):
            return "dtype:" + _dtype(a)
        if isinstance(a, float) and a in (float("inf"), float("-inf")) or a != a:
            return str(a)
        if a is None or isinstance(a, (bool, int, float, str)):
            return a
        return str(a)


def _flat(value):
    if isinstance(value, (list, tuple)):
        for v in value:
            yield from _flat(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _flat(v)
    else:
        yield value


def _merge(a, b, batch, path):
    """Of two traces, one with sizes as functions of the batch."""
    if path == "batch":
        return a
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {k: _merge(a[k], b[k], batch, f"{path}.{k}".lstrip(".")) for k in a}
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [_merge(x, y, batch, path) for x, y in zip(a, b)]
    if a == b and type(a) is type(b):
        return a
    if type(a) is int and type(b) is int:
        slope = b - a
        rest = a - slope * batch
        text = "batch" if slope == 1 else f"{slope}*batch"
        return text if rest == 0 else f"{text}{rest:+d}"
    raise NotExportable(f"with one sample more another program runs: {path} is {a} and then {b}")


def _input(text):
    """A tensor as the command line names it: 2x3x224x224, or 2x128:int64."""
    import torch

    sizes, _, dtype = text.partition(":")
    shape = [int(n) for n in sizes.split("x")]
    dtype = getattr(torch, dtype or "float32")
    return torch.zeros(shape, dtype=dtype)


def main(argv=None):
    """The command line; returns the exit code."""
    p = argparse.ArgumentParser(description="write a torch.nn.Module down as a graph that memplan reads")
    p.add_argument("module", help="package.module:function, of which the function returns the module")
    p.add_argument("--input", action="append", required=True, help="an input: sizes and perhaps a type, 2x3x224x224 or 2x128:int64; the first size is the batch")
    p.add_argument("--loss", choices=["cross_entropy", "mse", "sum"], help="what a training loop puts on the result")
    p.add_argument("--eval", action="store_true", help="export the module in eval mode")
    p.add_argument("-o", "--output", default="-", help="the file to write; - is the standard output")
    a = p.parse_args(argv)
    where, _, name = a.module.partition(":")
    sys.path.insert(0, "")
    try:
        module = getattr(importlib.import_module(where), name or "model")()
        module.train(not a.eval)
        graph = export(module, tuple(_input(x) for x in a.input), loss=a.loss)
    except (NotExportable, ImportError, AttributeError, ValueError) as e:
        print(f"memplan_export: {e}", file=sys.stderr)
        return 2
    if a.output == "-":
        sys.stdout.write(dumps(graph))
    else:
        save(graph, a.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

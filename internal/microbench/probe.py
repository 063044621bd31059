"""One probe of a card, in a process of its own.

The plan is one line of JSON on standard input; what is found goes to standard
output, a JSON object a line: {"about"}, {"figure"}, {"measured"}, {"events"},
{"skip"}, {"oom"}, {"error"}, and at last {"end"}. Where only the parent can see
what this process holds, {"ask"} is answered by a line on standard input.
Standard library and PyTorch; other libraries where a probe trains their models.
"""
import contextlib
import gc
import importlib.metadata
import json
import os
import sys
import time

OUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # libraries chat on standard output


def say(**line):
    OUT.write(json.dumps(line) + "\n")
    OUT.flush()


def figure(name, value, unit="bytes"):
    say(figure={"name": name, "value": float(value), "unit": unit})


class Skip(Exception):
    """The probe has nothing to run on here."""


PLAN = json.loads(sys.stdin.readline())
CPU = PLAN.get("device") == "cpu"
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    say(skip="PyTorch is not installed in this Python")
    sys.exit(0)

DEVICE = "cpu" if CPU else "cuda"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


# ---------------------------------------------------------------- what is held
def stats():
    return torch.cuda.memory_stats()


def held():
    """Bytes of this process on the card: the driver's word where the parent can
    read it, else what the card's free memory lost since before the process."""
    torch.cuda.synchronize()
    say(ask="process")
    answer = json.loads(sys.stdin.readline())
    if answer.get("process_bytes"):
        return answer["process_bytes"], "nvml"
    free, total = torch.cuda.mem_get_info()
    return total - free - PLAN.get("used_before_bytes", 0), "mem_get_info"


@contextlib.contextmanager
def extra(name, result=0):
    """Figures: what the body held at its peak beyond what there was before and
    its result, and what it left."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = stats()["requested_bytes.all.current"]
    yield
    torch.cuda.synchronize()
    after = stats()
    figure(name + ".peak", after["requested_bytes.all.peak"] - before - result)
    figure(name + ".kept", after["requested_bytes.all.current"] - before)


def clean():
    gc.collect()
    torch.cuda.empty_cache()


# ------------------------------------------------------------------ the probes
def context():
    """The CUDA context alone, and once kernels of every kind have run."""
    torch.empty(1, device=DEVICE)
    bytes_, method = held()
    figure(f"context ({method})", bytes_ - stats()["reserved_bytes.all.current"])
    x = torch.randn(256, 256, device=DEVICE, requires_grad=True)
    F.cross_entropy(F.layer_norm(F.gelu(x @ x), (256,)).softmax(-1), torch.zeros(256, dtype=torch.long, device=DEVICE)).backward()
    image = torch.randn(2, 8, 32, 32, device=DEVICE)
    F.max_pool2d(F.batch_norm(F.conv2d(image, torch.randn(8, 8, 3, 3, device=DEVICE)), None, None, training=True), 2).sum()
    bytes_, _ = held()
    figure(f"context and kernels ({method})", bytes_ - stats()["reserved_bytes.all.current"])


def workspace():
    """What matrix products take beside their operands and result."""
    for name, dtype in DTYPES.items():
        a, b, bias = (torch.randn(*s, device=DEVICE, dtype=dtype) for s in ((512, 512), (512, 512), (512,)))
        for op, run in (("matmul", lambda: a @ b), ("addmm", lambda: torch.addmm(bias, a, b)), ("bmm", lambda: torch.bmm(a[None], b[None]))):
            for turn in ("first", "again"):
                with extra(f"{op}.{name}.{turn}", a.nbytes):
                    out = run()
                    del out


def allocator():
    """Rounding and segment sizes of the caching allocator."""
    for size in (1, 512, 513, 1 << 20, (1 << 20) + 1, (10 << 20) - 512, 10 << 20, (10 << 20) + 1, (20 << 20) + 1):
        clean()
        allocated, reserved = stats()["allocated_bytes.all.current"], stats()["reserved_bytes.all.current"]
        x = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        figure(f"allocated.{size}", stats()["allocated_bytes.all.current"] - allocated)
        figure(f"reserved.{size}", stats()["reserved_bytes.all.current"] - reserved)
        del x


def operations():
    """name, operation of (x, w), shape of x, shape of w."""
    long = lambda x: torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
    tokens = (4, 64, 128)
    image = (2, 8, 16, 16)
    return [
        ("linear", lambda x, w: F.linear(x, w), tokens, (256, 128)),
        ("layer_norm", lambda x, w: F.layer_norm(x, (128,), w), tokens, (128,)),
        ("gelu", lambda x, w: F.gelu(x), tokens, None),
        ("silu", lambda x, w: F.silu(x), tokens, None),
        ("relu", lambda x, w: F.relu(x), tokens, None),
        ("softmax", lambda x, w: x.softmax(-1), tokens, None),
        ("mul", lambda x, w: x * w, tokens, tokens),
        ("add", lambda x, w: x + w, tokens, tokens),
        ("dropout", lambda x, w: F.dropout(x, 0.1), tokens, None),
        ("cross_entropy", lambda x, w: F.cross_entropy(x, long(x)), (256, 1000), None),
        ("matmul", lambda x, w: x @ w, tokens, (4, 128, 64)),
        ("conv2d", lambda x, w: F.conv2d(x, w, padding=1), image, (16, 8, 3, 3)),
        ("batch_norm", lambda x, w: F.batch_norm(x, None, None, w, training=True), image, (8,)),
        ("group_norm", lambda x, w: F.group_norm(x, 2, w), image, (8,)),
        ("max_pool2d", lambda x, w: F.max_pool2d(x, 2), image, None),
    ]


def saved_tensors():
    """What autograd keeps of each operation for its backward, views once."""
    for name, op, x_shape, w_shape in operations():
        for dtype in ("fp32",) if CPU else ("fp32", "bf16"):
            x = torch.randn(*x_shape, device=DEVICE, dtype=DTYPES[dtype], requires_grad=True)
            w = torch.randn(*w_shape, device=DEVICE, dtype=DTYPES[dtype], requires_grad=True) if w_shape else None
            kept = {}

            def pack(t):
                s = t.untyped_storage()
                kept[s.data_ptr() or id(s)] = s.nbytes()
                return t
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                out = op(x, w)
            figure(f"{name}.{dtype}", sum(kept.values()))
            del out


def attention():
    """Forward and backward of each kernel of scaled_dot_product_attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    for backend in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        if not hasattr(SDPBackend, backend):
            continue
        clean()
        q, k, v = (torch.randn(2, 8, 1024, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        try:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                with extra(f"{backend.lower()}.forward"):
                    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                with extra(f"{backend.lower()}.backward"):
                    out.sum().backward()
        except RuntimeError as e:
            if isinstance(e, torch.OutOfMemoryError):
                raise
            say(note=f"{backend}: {str(e)[:200]}")
        del q, k, v
        out = None


def convolution():
    """cuDNN's workspaces, by its heuristic and by its benchmark mode."""
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        for channels, size in ((64, 56), (256, 28), (512, 14)):
            for dtype in ("fp32", "bf16"):
                clean()
                x = torch.randn(16, channels, size, size, device=DEVICE, dtype=DTYPES[dtype], requires_grad=True)
                w = torch.randn(channels, channels, 3, 3, device=DEVICE, dtype=DTYPES[dtype], requires_grad=True)
                name = f"{'benchmark' if benchmark else 'heuristic'}.{channels}x{size}.{dtype}"
                with extra(name + ".forward"):
                    out = F.conv2d(x, w, padding=1)
                with extra(name + ".backward"):
                    out.sum().backward()
                del x, w, out


def optimizer():
    """State of each optimizer, and what a step needs for a moment."""
    kinds = [(f"adamw.{k}", torch.optim.AdamW, a) for k, a in (("foreach", {"foreach": True}), ("fused", {"fused": True}), ("for-loop", {"foreach": False}))]
    kinds += [("sgd.momentum", torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}), ("adagrad", torch.optim.Adagrad, {})]
    for name, kind, arguments in kinds:
        clean()
        ps = [nn.Parameter(torch.randn(512, 512, device=DEVICE)) for _ in range(16)]
        for p in ps:
            p.grad = torch.randn_like(p)
        o = kind(ps, **arguments)
        for turn in ("first", "again"):
            with extra(f"{name}.{turn}"):
                o.step()
        del o, ps


def timed(run, seconds=0.3):
    """Seconds of one run, by events on the card."""
    run()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    until, n = time.monotonic() + seconds, 0
    begin.record()
    while time.monotonic() < until and n < 200:
        run()
        n += 1
        if n % 8 == 0:
            torch.cuda.synchronize()  # do not queue far more than the time allows
    end.record()
    torch.cuda.synchronize()
    return max(begin.elapsed_time(end) / 1000 / n, 1e-9)


def rates():
    """Matrix products by type, and copies on the card and to it."""
    n = PLAN.get("size", 8192)
    for name, dtype, tf32 in (("fp32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False), ("fp16", torch.float16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(n, n, device=DEVICE, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        figure(f"matmul.{name}", 2 * n**3 / timed(lambda: torch.mm(a, b, out=out)) / 1e12, "TFLOP/s")
        del a, b, out
        clean()
    x = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    y = torch.empty_like(x)
    figure("copy.device", 2 * x.numel() / timed(lambda: y.copy_(x)) / 1e9, "GB/s")
    host = torch.empty(64 << 20, dtype=torch.uint8).pin_memory()
    figure("copy.from_host", host.numel() / timed(lambda: x[: host.numel()].copy_(host, non_blocking=True)) / 1e9, "GB/s")
    figure("copy.to_host", host.numel() / timed(lambda: host.copy_(x[: host.numel()], non_blocking=True)) / 1e9, "GB/s")


def nccl():
    """What a communicator holds on each card, outside the allocator."""
    n = torch.cuda.device_count()
    if n < 2:
        raise Skip("one card: there is nobody to talk to")
    import torch.multiprocessing as mp
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(nccl_rank, (n, queue), nprocs=n)
    for _ in range(n):
        rank, bytes_ = queue.get()
        figure(f"rank {rank} of {n}", bytes_)


def nccl_rank(rank, n, queue):
    import torch.distributed as dist
    torch.cuda.set_device(rank)
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    used = lambda: (lambda free, total: total - free)(*torch.cuda.mem_get_info()) - torch.cuda.memory_reserved()
    before = used()
    dist.init_process_group("nccl", rank=rank, world_size=n)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    queue.put((rank, used() - before))
    dist.barrier()
    dist.destroy_process_group()


# --------------------------------------------------------- small training jobs
def library(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skip(f"{name} is not installed in this Python")


def transformers_model(job):
    transformers = library("transformers")
    config = dict(job["model"]["config"])
    kind, cls = config.pop("model_type"), config.pop("architectures")[0]
    c = transformers.AutoConfig.for_model(kind, **config)
    training = job["training"]
    if training.get("num_classes"):
        c.num_labels = training["num_classes"]
    if training.get("activation_checkpointing") == "full" and hasattr(c, "use_cache"):
        c.use_cache = False
    weights = DTYPES[training.get("weights_dtype", "fp32")]
    with torch.device("meta"):  # filled on the card: no copy on the host
        model = getattr(transformers, cls)._from_config(c, attn_implementation="sdpa", **{dtype_argument(): weights})
    b = training["micro_batch_size"]
    if "image_size" in config:
        pixels = torch.zeros(b, 3, config["image_size"], config["image_size"])
        batch = {"pixel_values": pixels if training["precision"] != "bf16" else pixels.bfloat16(), "labels": torch.zeros(b, dtype=torch.long)}
    else:
        ids = torch.zeros(b, training["sequence_length"], dtype=torch.long)
        whole = "Classification" not in cls
        batch = {"input_ids": ids, "labels": ids.clone() if whole else torch.zeros(b, dtype=torch.long)}

    def loss(model, batch):
        out = model(**batch)
        return out.loss, out
    return model, batch, loss


def dtype_argument():
    """transformers 4 said torch_dtype until 4.56."""
    version = importlib.metadata.version("transformers").split(".")
    return "dtype" if (int(version[0]), int(version[1])) >= (4, 56) else "torch_dtype"


def torchvision_model(job):
    torchvision = library("torchvision")
    with torch.device("meta"):
        model = torchvision.models.get_model(job["model"]["id"].split("/")[-1], weights=None)
    criterion = nn.CrossEntropyLoss()
    b, (h, w) = job["training"]["micro_batch_size"], job["training"]["image_size"]
    batch = {"x": torch.zeros(b, 3, h, w), "y": torch.zeros(b, dtype=torch.long)}

    def loss(model, batch):
        out = model(batch["x"])
        return criterion(out, batch["y"]), out
    return model, batch, loss


def to_card(model):
    """Parameters and buffers in the order in which nn.Module.to() walks them,
    ties kept, with small random values."""
    done = {}

    def filled(t, like):
        if id(t) not in done:
            x = torch.empty_like(t, device=DEVICE)
            if x.is_floating_point():
                with torch.no_grad():
                    x.normal_(0, 0.02) if like is nn.Parameter else x.fill_(1)
            else:
                x.copy_(torch.arange(x.numel()).reshape(x.shape) if x.dim() else torch.zeros((), dtype=x.dtype))
            done[id(t)] = (t, nn.Parameter(x, requires_grad=t.requires_grad) if like is nn.Parameter else x)
        return done[id(t)][1]

    def walk(m):
        for child in m.children():
            walk(child)
        for name, p in m._parameters.items():
            if p is not None:
                m._parameters[name] = filled(p, nn.Parameter)
        for name, b in m._buffers.items():
            if b is not None:
                m._buffers[name] = filled(b, torch.Tensor)
    walk(model)
    return model


def adapted(job, model):
    adapter = job["training"].get("adapter")
    if not adapter:
        return model
    peft = library("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=adapter["rank"], lora_alpha=adapter["alpha"], lora_dropout=0.0,
                                                      target_modules=adapter["target_modules"], task_type="CAUSAL_LM"))


def train():
    """A few steps of a plain loop; peaks of the first and of the later ones."""
    job, steps = PLAN["job"], PLAN["steps"]
    training = job["training"]
    build = torchvision_model if job["model"].get("implementation") == "torchvision" else transformers_model
    model, batch, loss_of = build(job)
    model = adapted(job, to_card(model)) if training.get("adapter") else to_card(model)
    if training.get("adapter"):
        model = model.to(DEVICE)
    if training.get("activation_checkpointing") == "full":
        model.gradient_checkpointing_enable()
    report("load", [peaks()])
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trained, lr=1e-4)
    mixed = training["precision"].endswith("-mixed")
    loss = outputs = None
    rows = []
    for step in range(steps):
        if step == steps - 1:
            torch.cuda.memory._record_memory_history("all", context=None, max_entries=200_000)
        moved = {k: v.to(DEVICE, non_blocking=True) for k, v in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mixed):
            loss, outputs = loss_of(model, moved)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        rows.append(peaks())
        if step == 0:
            report("first_step", rows)
    report("steady_step", rows[1:])
    say(events=recorded())
    say(steps=steps)


def peaks():
    torch.cuda.synchronize()
    s = stats()
    torch.cuda.reset_peak_memory_stats()
    return {k: s[f"{k}_bytes.all.peak"] for k in ("requested", "allocated", "reserved")}


def report(phase, rows):
    for metric in ("requested", "allocated", "reserved"):
        say(measured={"metric": metric, "phase": phase, "bytes": max(r[metric] for r in rows), "relation": "equals", "method": "torch.cuda.memory_stats"})
    if phase != "load":
        bytes_, method = held()
        say(measured={"metric": "process", "phase": phase, "bytes": bytes_, "relation": "equals", "method": method})


def recorded():
    """Allocations of the step as they came, frees as negative numbers."""
    signs = {"alloc": 1, "free_completed": -1}
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    return [signs[e["action"]] * e["size"] for e in trace if e["action"] in signs]


# ------------------------------------------------------------------------ main
PROBES = {f.__name__: f for f in (context, workspace, allocator, saved_tensors, attention, convolution, optimizer, rates, nccl, train)}


def about():
    versions = {}
    for name in ("torch", "transformers", "peft", "torchvision"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name).split("+")[0]
    say(about={"versions": versions, "cuda": torch.version.cuda or "", "card": "" if CPU else torch.cuda.get_device_name()})


def main():
    if not CPU:
        if not torch.cuda.is_available():
            raise Skip("this PyTorch sees no CUDA card")
        if PLAN.get("limit_bytes"):
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction(max(0.01, min(1.0, PLAN["limit_bytes"] / total)))
        torch.cuda.reset_peak_memory_stats()
    about()
    PROBES[PLAN["probe"]]()
    say(end=True)


if __name__ == "__main__":
    try:
        main()
    except Skip as e:
        say(skip=str(e))
    except torch.OutOfMemoryError as e:
        say(oom=str(e)[:400])
    except Exception as e:
        import traceback
        traceback.print_exc()
        say(error=f"{type(e).__name__}: {str(e)[:400]}")
    OUT.flush()
    os._exit(0)  # the parent has everything; a teardown could only fail

"""Writes updates-torchX.jsonl: what torch allocates and frees from the clipping of the
gradients to the end of optimizer.step(), for a few parameters of different
types and shapes, in the first step and in a later one.

Run it with the no-op CUDA driver preloaded, once for each set of libraries:

    LD_PRELOAD=.../libcuda.so.1 python updates.py > updates-torch2.15.jsonl
"""
import json
import sys

import torch

MIXED = [["fp32", [300, 40]], ["fp32", [70000]], ["bf16", [1000, 256]], ["fp32", [8, 256]], ["bf16", [256]]]
BF16 = [["bf16", [1000, 256]], ["bf16", [256]], ["bf16", [688, 256]]]
FP32 = [["fp32", [1000, 256]], ["fp32", [256]], ["fp32", [256, 688]]]
SIZES = [["bf16", [256]], ["bf16", [64, 63]], ["bf16", [64, 64]], ["bf16", [1000, 100]], ["bf16", [333, 300]], ["fp32", [1000, 300]]]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TORCH = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad", "adafactor": "Adafactor"}
FORMS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}}


def make(o, params):
    kw = {"lr": 1e-4}
    if o["library"] == "torch":
        kw |= FORMS[o["implementation"]]
        if "momentum" in o: kw["momentum"] = o["momentum"]
        if "nesterov" in o: kw["nesterov"] = o["nesterov"]
        return getattr(torch.optim, TORCH[o["name"]])(params, **kw)
    if o["library"] == "transformers":
        from transformers.optimization import Adafactor
        return Adafactor(params, scale_parameter=False, relative_step=False, **kw)
    import bitsandbytes.optim as O
    if o["name"] == "sgd": kw["momentum"] = 0.9
    name = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad"}[o["name"]]
    return getattr(O, ("Paged" if o.get("paged") else "") + name + ("8bit" if o["state_bits"] == 8 else ""))(params, **kw)


def events(run):
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    try:
        run()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
    finally: torch.cuda.memory._record_memory_history(enabled=None)
    out, freed = [], []
    for e in trace:
        if e["action"] == "free_completed": freed.append(e["size"])
        elif e["action"] == "alloc":
            out += [f"-{n}" for n in sorted(freed)] + [f"+{e['size']}"]
            freed = []
    return " ".join(out + [f"-{n}" for n in sorted(freed)])


def case(optimizer, shapes, clip, scaled):
    params = [torch.nn.Parameter(torch.empty(s, dtype=DTYPES[d], device="cuda")) for d, s in shapes]
    for p in params: p.grad = torch.empty_like(p)
    row = {"torch": torch.__version__.split("+")[0], "optimizer": optimizer, "params": shapes, "clip": clip, "scaler": scaled}
    built = []
    row["construct"] = events(lambda: built.append(make(optimizer, params)))
    scaler = torch.amp.GradScaler("cuda", enabled=scaled)
    scaler.scale(torch.zeros((), device="cuda"))

    def step():
        if clip:
            scaler.unscale_(built[0])
            torch.nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(built[0])
        scaler.update()
    row["first"], row["later"] = events(step), events(step)
    return row


def cases():
    for name in ("adamw", "adam", "sgd", "rmsprop", "adagrad", "adafactor"):
        for form in FORMS:
            o = {"name": name, "library": "torch", "implementation": form}
            if form == "fused" and name in ("rmsprop", "adafactor"): continue
            yield o, MIXED, name == "adamw", False
    for form in FORMS:
        for more in ({"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}):
            yield {"name": "sgd", "library": "torch", "implementation": form} | more, MIXED, False, False
        for clip in (True, False):
            yield {"name": "adamw", "library": "torch", "implementation": form}, FP32, clip, True
    for form in ("foreach", "for-loop"):
        yield {"name": "rmsprop", "library": "torch", "implementation": form, "momentum": 0.9}, MIXED, False, False
    yield {"name": "adafactor", "library": "transformers"}, MIXED, False, False
    yield {"name": "adafactor", "library": "transformers"}, FP32, False, True
    for name in ("adamw", "adam", "lion", "sgd", "rmsprop", "adagrad"):
        for bits in (8, 32):
            half = name in ("adamw", "adam", "lion")
            o = {"name": name, "library": "bitsandbytes", "state_bits": bits}
            yield o, SIZES if half else FP32, False, False
            if half: yield o | {"paged": True}, SIZES, False, False


torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")        # older torch keeps a workspace from here on, as after a forward pass
for c in cases():
    try: print(json.dumps(case(*c)), flush=True)
    except RuntimeError as e: print(c[0], e, file=sys.stderr)

"""Writes updates-torchX.jsonl: what torch allocates and frees from the clipping of the
gradients to the end of optimizer.step(), for a few parameters of different
types and shapes, in the first step and in a later one.

Run it with the no-op CUDA driver preloaded, once for each set of libraries:

    LD_PRELOAD=.../libcuda.so.1 python updates.py > updates-torch2.15.jsonl

`updates.py rare` writes the optimizers that need a newer torch or a package of their own
(torchao, galore-torch, apollo-torch, adam-mini, prodigyopt, lion-pytorch, schedulefree):
rare-torch2.15.jsonl.
"""
import json
import sys

import torch

MIXED = [["fp32", [300, 40]], ["fp32", [70000]], ["bf16", [1000, 256]], ["fp32", [8, 256]], ["bf16", [256]]]
BF16 = [["bf16", [1000, 256]], ["bf16", [256]], ["bf16", [688, 256]]]
FP32 = [["fp32", [1000, 256]], ["fp32", [256]], ["fp32", [256, 688]]]
SIZES = [["bf16", [256]], ["bf16", [64, 63]], ["bf16", [64, 64]], ["bf16", [1000, 100]], ["bf16", [333, 300]], ["fp32", [1000, 300]]]
MATRICES = [["bf16", [1000, 256]], ["bf16", [256, 688]], ["fp32", [64, 64]], ["bf16", [300, 300]], ["fp32", [300, 700]]]
NAMES = ["q_proj.weight", "mlp.up_proj.weight", "norm.weight", "q_proj.bias", "embed_tokens.weight"]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TORCH = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad", "adafactor": "Adafactor",
         "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "muon": "Muon"}
FORMS = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}}


def make(o, params):
    kw = {"lr": 1e-4}
    if o["name"] == "muon": return torch.optim.Muon(params, **kw)
    if o["library"] == "torch":
        kw |= FORMS[o["implementation"]]
        if "momentum" in o: kw["momentum"] = o["momentum"]
        if "nesterov" in o: kw["nesterov"] = o["nesterov"]
        return getattr(torch.optim, TORCH[o["name"]])(params, **kw)
    if o["library"] == "transformers" and o["name"] == "adamw":
        from transformers.optimization import AdamW
        return AdamW(params, no_deprecation_warning=True, **kw)
    if o["library"] == "transformers":
        from transformers.optimization import Adafactor
        return Adafactor(params, scale_parameter=False, relative_step=False, **kw)
    if o["library"] == "torchao":
        import torchao.optim as O
        return getattr(O, {"adam": "Adam", "adamw": "AdamW"}[o["name"]] + ("Fp8" if o.get("state_dtype") == "fp8" else f"{o['state_bits']}bit"))(params, **kw)
    if o["library"] in ("galore-torch", "apollo-torch"):
        low = {"rank": o["rank"], "update_proj_gap": o.get("update_every", 200), "scale": 0.25, "proj_type": "std"}
        if o["library"] == "galore-torch":
            from galore_torch import GaLoreAdamW as Low
            torch.linalg.svd = thin_svd
        else:
            from apollo_torch import APOLLOAdamW as Low
            low |= {"proj": "random", "scale_type": "channel"}
        return Low([{"params": [p for p in params if p.ndim != 2]}, {"params": [p for p in params if p.ndim == 2]} | low], **kw)
    if o["library"] == "prodigyopt":
        from prodigyopt import Prodigy
        numbers()
        return Prodigy(params, lr=1.0)
    if o["library"] == "adam-mini":
        from adam_mini import Adam_mini
        return Adam_mini(zip(NAMES, params), dim=256, n_heads=4, verbose=False, **kw)
    if o["library"] == "lion-pytorch":
        from lion_pytorch import Lion
        return Lion(params, **kw)
    if o["library"] == "schedulefree":
        import schedulefree
        made = {"adamw": schedulefree.AdamWScheduleFree, "sgd": schedulefree.SGDScheduleFree}[o["name"]](params, foreach=o["implementation"] == "foreach", **kw)
        made.train()
        return made
    import bitsandbytes.optim as O
    if o["name"] == "sgd": kw["momentum"] = 0.9
    name = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "sgd": "SGD", "rmsprop": "RMSprop", "adagrad": "Adagrad", "ademamix": "AdEMAMix"}[o["name"]]
    return getattr(O, ("Paged" if o.get("paged") else "") + name + ("8bit" if o["state_bits"] == 8 else ""))(params, **kw)


def thin_svd(a, full_matrices=True):
    """What torch.linalg.svd makes in torch's allocator, less cusolver's workspace: the driver here has no cusolver."""
    k = min(a.shape)
    u, s, vh = a.new_empty(a.shape[0], k), a.new_empty(k), a.new_empty(k, a.shape[1])
    a.clone()
    return u, s, vh


def numbers():
    """Gives values to what a driver without arithmetic cannot answer: weights are not all zero, sums are 1."""
    any_, item = torch.Tensor.any, torch.Tensor.item
    torch.Tensor.any = lambda t: any_(t).numel() == 1
    torch.Tensor.item = lambda t: (item(t), 1.0)[1]


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


def case(optimizer, shapes, clip, scaled, warmup=0):
    params = [torch.nn.Parameter(torch.empty(s, dtype=DTYPES[d], device="cuda")) for d, s in shapes]
    for p in params: p.grad = torch.empty_like(p)
    row = {"torch": torch.__version__.split("+")[0], "optimizer": optimizer, "params": shapes, "clip": clip, "scaler": scaled}
    if optimizer["library"] == "adam-mini": row["names"] = NAMES
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
    row["first"] = events(step)
    if warmup: row["warmup"] = warmup
    for _ in range(warmup): step()
    row["later"] = events(step)
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
    yield {"name": "adamw", "library": "transformers", "implementation": "for-loop"}, MIXED, False, False       # not in transformers 5
    yield {"name": "adafactor", "library": "transformers"}, MIXED, False, False
    yield {"name": "adafactor", "library": "transformers"}, FP32, False, True
    for name in ("adamw", "adam", "lion", "sgd", "rmsprop", "adagrad"):
        for bits in (8, 32):
            half = name in ("adamw", "adam", "lion")
            o = {"name": name, "library": "bitsandbytes", "state_bits": bits}
            yield o, SIZES if half else FP32, False, False
            if half: yield o | {"paged": True}, SIZES, False, False


def rare():
    for name in ("adadelta", "adamax", "nadam", "radam"):
        for form in ("foreach", "for-loop"):
            yield {"name": name, "library": "torch", "implementation": form}, MIXED, name == "adadelta", False, 6 if name == "radam" else 0
    yield {"name": "muon", "library": "torch", "implementation": "for-loop"}, MATRICES, False, False
    for bits in (8, 32):
        yield {"name": "ademamix", "library": "bitsandbytes", "state_bits": bits}, SIZES, False, False
        yield {"name": "ademamix", "library": "bitsandbytes", "state_bits": bits, "paged": True}, SIZES, False, False
    for name in ("adam", "adamw"):
        for bits in (8, 4):
            yield {"name": name, "library": "torchao", "state_bits": bits}, SIZES + FP32, False, False
        yield {"name": name, "library": "torchao", "state_bits": 8, "state_dtype": "fp8"}, SIZES + FP32, False, False
    for name in ("galore", "apollo"):
        for rank in (16, 128):
            yield {"name": name + "_adamw", "library": name + "-torch", "rank": rank}, MATRICES + BF16, False, False
    yield {"name": "adam-mini", "library": "adam-mini"}, [["bf16", [256, 256]], ["bf16", [688, 256]], ["bf16", [256]], ["bf16", [256]], ["fp32", [300, 256]]], False, False
    yield {"name": "lion", "library": "lion-pytorch"}, MIXED, False, False
    for form in ("foreach", "for-loop"):
        for name in ("adamw", "sgd"): yield {"name": name, "library": "schedulefree", "implementation": form}, MIXED, False, False
    yield {"name": "prodigy", "library": "prodigyopt"}, MIXED, False, False      # last: it changes Tensor.item


torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")        # older torch keeps a workspace from here on, as after a forward pass
for c in rare() if sys.argv[1:] == ["rare"] else cases():
    try: print(json.dumps(case(*c)), flush=True)
    except Exception as e: print(c[0], e, file=sys.stderr)

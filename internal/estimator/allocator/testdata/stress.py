"""Random allocations on PyTorch's caching allocator, written as a trace that ReadTrace reads.

    python stress.py SEED OUT.json.gz STEPS LARGEST [MEMORY_FRACTION]

Needs a CUDA device, or the no-op driver. LARGEST scales the largest requests. Allocator options are taken from
PYTORCH_CUDA_ALLOC_CONF. The trace is explicit: record_stream and empty_cache are written where they were called.
"""
import gzip
import json
import os
import random
import sys

import torch

ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom")


def size(r, largest):
    k = r.random()
    if k < .45: return int(2 ** r.uniform(0, 20.5))
    if k < .8: return int(2 ** r.uniform(20, 24.5))
    if k < .9: return r.choice([512, 513, 1 << 20, (1 << 20) + 1, 2 << 20, 8519680, 10 << 20, (10 << 20) + 1, 11 << 20, 20 << 20])
    return int(2 ** r.uniform(24, 26) * largest)


def history():
    return torch.cuda.memory._snapshot()["device_traces"][0]


def perform(r, steps, largest):
    """What was done, in order; the places of empty_cache in torch's history, which does not record it."""
    streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(2)]
    live, done, rising = [], [], .5

    def free():
        live.pop(r.randrange(len(live)))
        done.append(("free_requested",))

    def use(t, s):                                             # a function, so that no name keeps t alive
        t.record_stream(s)
        done.append(("record_stream", t.data_ptr(), s.cuda_stream))

    for i in range(steps):
        if i % 40 == 0: rising = r.choice([.35, .5, .65, .8])
        k = r.random()
        if k < .006:
            before = len(history())
            torch.cuda.empty_cache()
            done.append(("empty_cache", before, len(history())))
        elif live and k < .06:
            use(r.choice(live), r.choice(streams))
        elif not live or r.random() < rising:
            s = streams[0] if r.random() < .85 else r.choice(streams)
            try:
                with torch.cuda.stream(s): live.append(torch.empty(size(r, largest), dtype=torch.uint8, device="cuda"))
                done.append(("alloc",))
            except torch.OutOfMemoryError:
                done.append(("oom",))
                for _ in range(len(live) // 2): free()
        else:
            free()
        done.append(("mark", torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    return done


def merge(done, trace):
    """torch's history with what it leaves out; every fourth mark."""
    base = min(e["addr"] for e in trace if e["action"] in ("segment_alloc", "segment_map")) - 2 ** 21
    handles = sorted({e["stream"] for e in trace})
    events, at, marks = [], 0, 0

    def record(kind, **more):
        events.append({"event": kind, **{k: v for k, v in more.items() if v or k != "stream"}})

    def upto(end):
        nonlocal at
        for e in trace[at:end]:
            place = {} if e["action"] == "oom" else {"address": e["addr"] - base}
            if e["action"] in ACTIONS: record(e["action"], bytes=e["size"], stream=handles.index(e["stream"]), **place)
        at = max(at, end)

    for kind, *rest in done:
        if kind == "empty_cache":
            upto(rest[0])
            record(kind)
            upto(rest[1])
        elif kind == "record_stream":
            record(kind, address=rest[0] - base, stream=handles.index(rest[1]))
        elif kind == "mark":
            marks += 1
            if marks % 4 == 0: record(kind, part="now", allocated_bytes=rest[0], reserved_bytes=rest[1])
        else:
            upto(next(i for i in range(at, len(trace)) if trace[i]["action"] == kind) + 1)
            if kind == "free_requested" and at < len(trace) and trace[at]["action"] == "free_completed" and trace[at]["addr"] == trace[at - 1]["addr"]: upto(at + 1)
    return events


def main():
    seed, out, steps, largest = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    torch.cuda.init()
    if len(sys.argv) > 5: torch.cuda.set_per_process_memory_fraction(float(sys.argv[5]))
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=10_000_000)
    done = perform(random.Random(seed), steps, largest)
    events = merge(done, history())
    with gzip.GzipFile(out, "wb", mtime=0) as f: f.write(json.dumps({"explicit": True, "events": events}, separators=(",", ":")).encode())
    stats = torch.cuda.memory_stats()
    print(out, {k: stats[k] for k in ("num_alloc_retries", "num_ooms", "reserved_bytes.all.peak")})
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

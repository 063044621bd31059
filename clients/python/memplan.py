"""memplan: how much GPU memory a training job needs, asked from Python.

One file, standard library only; copy it beside your script.

    import memplan
    server = memplan.Client("http://127.0.0.1:8080")
    print(server.estimate(job)["summary"])

Report what a job really took, after a few steps, so that answers learn from it:

    trainer.add_callback(memplan.hf_callback(job, server))            # Hugging Face Trainer
    Trainer(callbacks=[memplan.lightning_callback(job, server)])      # Lightning
    with memplan.Recorder(job, server) as record:                     # a plain loop
        for batch in loader:
            ...
            record.step()

Reporting never disturbs training: what goes wrong is logged, and training goes on.
"""

import json
import logging
import os
import subprocess
import sys
import urllib.error
import urllib.request

log = logging.getLogger("memplan")


class Error(Exception):
    """What the server refused, with its problem document."""

    def __init__(self, status, problem):
        self.status, self.problem = status, problem
        lines = [problem.get("detail") or problem.get("title") or "status %d" % status]
        for e in problem.get("errors") or []:
            lines.append("%s: got %s, want %s" % (e.get("path"), e.get("got", "nothing"), e.get("want")))
        super().__init__("\n".join(lines))


class Client:
    """A memplan server."""

    def __init__(self, url=None, timeout=30):
        self.url = (url or os.environ.get("MEMPLAN_SERVER") or "http://127.0.0.1:8080").rstrip("/") + "/api/v1"
        self.timeout = timeout

    def estimate(self, job, save=False, calibration=None):
        """The estimate of a job, as the public format has it."""
        query = "?save=%s" % ("true" if save else "false")
        if calibration:
            query += "&calibration=" + calibration
        return self._send("POST", "/estimates" + query, job)

    def check(self, job):
        """Whether a job may start: decision, verdict, and what would make it fit."""
        return self._send("POST", "/checks", job)

    def report(self, runs):
        """Keep a measured run, or a list of them, and return their predictions."""
        return self._send("POST", "/runs", runs)

    def calibrate(self, gpu, framework_version=None):
        """Fit the runs of a card; the fit is a candidate until it is activated."""
        body = {"gpu": gpu}
        if framework_version:
            body["framework"] = {"name": "pytorch", "version": framework_version}
        return self._send("POST", "/calibrations", body)

    def activate(self, calibration):
        """Put a fit in force."""
        return self._send("POST", "/calibrations/%s/activate" % calibration, {})

    def watch(self, samples, capacity_bytes=0):
        """Judge samples of a running process for leaks."""
        return self._send("POST", "/watch", {"samples": samples, "capacity_bytes": capacity_bytes})

    def _send(self, method, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            try:
                problem = json.load(e)
            except ValueError:
                problem = {"title": e.reason}
            raise Error(e.code, problem) from None


def measure(device=None):
    """The peaks of this process so far: torch's counters, and what the driver shows for the process."""
    import torch

    index = torch.cuda.current_device() if device is None else device
    stats = torch.cuda.memory_stats(index)
    measured = []
    for metric in ("requested", "allocated", "reserved"):
        peak = stats.get(metric + "_bytes.all.peak")
        if peak:
            measured.append({"metric": metric, "bytes": int(peak), "relation": "equals", "rounding_bytes": 0, "method": "torch.cuda.memory_stats"})
    process = process_bytes()
    if process:
        measured.append({"metric": "process", "bytes": process, "relation": "equals", "rounding_bytes": 1 << 20, "method": "nvidia-smi, once after the steps"})
    return measured


def process_bytes(pid=None):
    """What nvidia-smi shows for a process; None where it shows nothing, as inside most containers."""
    pid = str(pid or os.getpid())
    try:
        out = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"],
                             capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    for line in out.splitlines():
        cells = [c.strip() for c in line.split(",")]
        if len(cells) == 2 and cells[0] == pid and cells[1].isdigit():
            return int(cells[1]) << 20
    return None


def described(job):
    """The job with what this process knows better: the card, and the versions of libraries."""
    job = json.loads(json.dumps(job))
    runtime = job.setdefault("runtime", {})
    torch = sys.modules.get("torch")
    if torch is not None:
        runtime.setdefault("framework_version", str(torch.__version__).split("+")[0])
        if torch.cuda.is_available():
            job.setdefault("target", {}).setdefault("gpu", torch.cuda.get_device_name())
    libraries = {n: sys.modules[n].__version__ for n in ("transformers", "peft", "accelerate", "bitsandbytes", "trl") if hasattr(sys.modules.get(n), "__version__")}
    if libraries:
        runtime["library_versions"] = {**libraries, **runtime.get("library_versions", {})}
    return job


class Recorder:
    """Counts steps, and reports the peaks once after some. As a context it also reports a job that runs out of memory."""

    def __init__(self, job, server=None, after_steps=5):
        self.job, self.after = job, after_steps
        self.server = server if isinstance(server, Client) else Client(server)
        self.steps, self.reported = 0, None

    def step(self):
        """One optimizer step is done."""
        self.steps += 1
        if self.steps == self.after and self._first_rank():
            self._report(measure)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and "out of memory" in str(error).lower() and self.reported is None and self._first_rank():
            self._report(lambda: ran_out(str(error)))
        return False

    def _report(self, measured):
        try:
            run = {"job": described(self.job), "measured": measured(), "environment": environment()}
            self.reported = self.server.report(run)[0]
            log.info("memplan kept %s: %s", self.reported["id"], self.reported.get("flagged") or "it feeds the calibration")
        except Exception as e:  # a measurement must not end a training
            self.reported = False
            log.warning("memplan: not reported: %s", e)

    @staticmethod
    def _first_rank():
        return os.environ.get("RANK", "0") == "0"


def ran_out(message):
    """What an out-of-memory message measures: the process needed more than the card has."""
    import re

    found = re.search(r"total capacity of ([\d.]+) GiB|([\d.]+) GiB total capacity", message)
    if not found:
        raise ValueError("the message names no capacity")
    return [{"metric": "process", "bytes": int(float(found.group(1) or found.group(2)) * (1 << 30)), "relation": "more_than", "rounding_bytes": 0, "method": "out of memory"}]


def environment():
    """Where this runs."""
    import platform

    torch = sys.modules.get("torch")
    found = {"host": platform.node()}
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        if torch.version.cuda:
            found["cuda"] = torch.version.cuda
    return found


def hf_callback(job, server=None, after_steps=5):
    """A callback for the Trainer of transformers, and for those of TRL."""
    from transformers import TrainerCallback

    record = Recorder(job, server, after_steps)

    class Callback(TrainerCallback):
        recorder = record

        def on_step_end(self, args, state, control, **kwargs):
            record.step()

    return Callback()


def lightning_callback(job, server=None, after_steps=5):
    """A callback for Lightning."""
    try:
        from lightning.pytorch import Callback as Base
    except ImportError:
        from pytorch_lightning import Callback as Base

    record = Recorder(job, server, after_steps)

    class Callback(Base):
        recorder = record

        def on_train_batch_end(self, trainer, *args, **kwargs):
            if trainer.global_step > record.steps:  # accumulation: a step is not every batch
                record.step()

        def on_exception(self, trainer, module, exception):
            record.__exit__(type(exception), exception, None)

    return Callback()

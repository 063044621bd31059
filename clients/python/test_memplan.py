"""Runs against the server at MEMPLAN_SERVER, with modules that stand for torch, transformers and Lightning."""

import os
import sys
import types
import unittest

import memplan

JOB = {"model": {"id": "openai-community/gpt2"}, "training": {"micro_batch_size": 2, "sequence_length": 256}, "target": {"gpu": "RTX-4090"}}


def torch(allocated):
    cuda = types.SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0, get_device_name=lambda: "NVIDIA GeForce RTX 4090",
        memory_stats=lambda device: {"allocated_bytes.all.peak": allocated, "reserved_bytes.all.peak": allocated + (64 << 20)})
    return types.SimpleNamespace(__version__="2.6.0+cu124", cuda=cuda, version=types.SimpleNamespace(cuda="12.4"))


class Test(unittest.TestCase):
    def setUp(self):
        self.server = memplan.Client()
        self.predicted = self.server.estimate(JOB)["peak"]["allocated_bytes"]
        sys.modules["torch"] = torch(self.predicted)
        self.addCleanup(sys.modules.pop, "torch")

    def test_estimate_and_check(self):
        self.assertIn("needs", self.server.estimate(JOB)["summary"])
        self.assertEqual("allow", self.server.check(JOB)["decision"])
        self.assertEqual("prior", self.server.estimate(JOB, calibration="prior")["peak"]["interval"]["source"])

    def test_errors_name_the_fields(self):
        with self.assertRaises(memplan.Error) as caught:
            self.server.estimate({"model": {"id": "gpt2"}, "trainig": {}})
        self.assertEqual(422, caught.exception.status)
        self.assertIn("trainig", str(caught.exception))

    def test_plain_loop(self):
        with memplan.Recorder(JOB, self.server, after_steps=2) as record:
            record.step()
            self.assertIsNone(record.reported)
            record.step()
        self.assertTrue(record.reported["id"].startswith("run_"))
        self.assertIsNone(record.reported["flagged"])

    def test_out_of_memory(self):
        record = memplan.Recorder(JOB, self.server)
        with self.assertRaises(RuntimeError):
            with record:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1 GiB is free.")
        self.assertTrue(record.reported["id"].startswith("run_"))

    def test_a_server_that_is_away_disturbs_nothing(self):
        record = memplan.Recorder(JOB, memplan.Client("http://127.0.0.1:9", timeout=1), after_steps=1)
        with self.assertLogs("memplan", "WARNING"):
            record.step()
        self.assertFalse(record.reported)

    def test_only_the_first_rank_reports(self):
        os.environ["RANK"] = "1"
        self.addCleanup(os.environ.pop, "RANK")
        record = memplan.Recorder(JOB, self.server, after_steps=1)
        record.step()
        self.assertIsNone(record.reported)

    def test_hf_callback(self):
        sys.modules["transformers"] = types.SimpleNamespace(TrainerCallback=object, __version__="4.49.0")
        self.addCleanup(sys.modules.pop, "transformers")
        callback = memplan.hf_callback(JOB, self.server, after_steps=1)
        callback.on_step_end(None, None, None, model=None)
        self.assertIsNone(callback.recorder.reported["flagged"])

    def test_lightning_callback(self):
        sys.modules["lightning"] = types.ModuleType("lightning")
        sys.modules["lightning.pytorch"] = types.SimpleNamespace(Callback=object)
        self.addCleanup(sys.modules.pop, "lightning")
        self.addCleanup(sys.modules.pop, "lightning.pytorch")
        callback = memplan.lightning_callback(JOB, self.server, after_steps=1)
        callback.on_train_batch_end(types.SimpleNamespace(global_step=0), None, None, None, 0)
        self.assertIsNone(callback.recorder.reported, "accumulating")
        callback.on_train_batch_end(types.SimpleNamespace(global_step=1), None, None, None, 1)
        self.assertIsNone(callback.recorder.reported["flagged"])

    def test_watch(self):
        samples = [{"step": i, "process_bytes": (10 << 30) + i * (8 << 20)} for i in range(1, 60)]
        judged = self.server.watch(samples, 24 << 30)
        self.assertTrue(judged["leaking"])
        self.assertGreater(judged["out_of_memory"]["in"], 100)


if __name__ == "__main__":
    unittest.main()

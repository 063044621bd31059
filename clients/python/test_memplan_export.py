"""What needs no torch of memplan_export; "make graphs" runs the rest."""

import json
import unittest

import memplan_export as export


class Test(unittest.TestCase):
    def test_sizes_are_functions_of_the_batch(self):
        small = {"batch": 2, "nodes": [{"op": "view", "args": {"self": "%x", "size": [2, 49], "dim": -1}, "out": [98, 99, 5]}]}
        large = {"batch": 3, "nodes": [{"op": "view", "args": {"self": "%x", "size": [3, 49], "dim": -1}, "out": [147, 148, 5]}]}
        merged = export._merge(small, large, 2, "")
        self.assertEqual(merged, {"batch": 2, "nodes": [{"op": "view", "args": {"self": "%x", "size": ["batch", 49], "dim": -1}, "out": ["49*batch", "49*batch+1", 5]}]})

    def test_a_program_that_depends_on_the_batch_is_refused(self):
        for name, a, b in [
            ("another operation", {"nodes": [{"op": "add"}]}, {"nodes": [{"op": "mul"}]}),
            ("one operation more", {"nodes": [1]}, {"nodes": [1, 2]}),
            ("another switch", {"x": True}, {"x": False}),
        ]:
            with self.subTest(name), self.assertRaises(export.NotExportable):
                export._merge(a, b, 2, "")

    def test_what_is_written_is_json_with_a_line_for_each_node(self):
        graph = {"format": "memplan-graph", "nodes": [{"op": "relu"}, {"op": "add"}], "outputs": []}
        text = export.dumps(graph)
        self.assertEqual(json.loads(text), graph)
        self.assertIn('\n  {"op":"relu"},\n', text)


if __name__ == "__main__":
    unittest.main()

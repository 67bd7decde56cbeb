#!/usr/bin/env python3
"""Tests of predict.py: its rank correlation against another implementation's, and what its null predictors know."""

import sys
import unittest

# Git would see the folder of bytecode.
sys.dont_write_bytecode = True
import predict


def cell(at, pcpus, vcpus, measured, predicted):
    of = {"setting": (("hold", at),), "arm": "a", "pcpus": pcpus, "vcpus": vcpus, "measured": {"hodges_lehmann": measured}}
    return predict.predicted(of, predicted)


class Predict(unittest.TestCase):
    def test_tau_is_that_of_another_implementation(self):
        # scipy.stats.kendalltau([1, 2, 3, 4, 5], [3, 1, 2, 5, 4]) and ([1, 2, 2, 3], [1, 2, 3, 3]).
        self.assertAlmostEqual(predict.tau_b([(1, 3), (2, 1), (3, 2), (4, 5), (5, 4)]), 0.4)
        self.assertAlmostEqual(predict.tau_b([(1, 1), (2, 2), (2, 3), (3, 3)]), 0.8)
        self.assertIsNone(predict.tau_b([(1, 1), (1, 2)]))

    def test_blocks_are_compared_by_the_arms_that_both_have(self):
        a, same = {"tas": 1, "mcs": 2, "clh": 3}, {"tas": 10, "mcs": 20, "ticket": 0.1}
        other_way = {"tas": 3, "mcs": 2, "clh": 1}
        self.assertEqual(predict.mean_tau([(a, same)]), 1)
        self.assertEqual(predict.mean_tau([(a, same), (a, other_way)]), 0)
        self.assertIsNone(predict.mean_tau([(a, {"tas": 1})]))

    def test_nulls_predict_the_median_of_what_they_know(self):
        # Arms differ at the first setting, and at the second of the same ratio all are slow.
        figures = [("short", 2, 4, 1.0), ("short", 2, 4, 0.5), ("short", 2, 4, 0.9), ("long", 2, 4, 0.1), ("short", 1, 1, 1.0)]
        cells = [cell(*figure, figure[-1]) for figure in figures]
        near = lambda key: sum(cell["near"] for cell in predict.with_medians(cells, key))
        self.assertEqual(near(lambda cell: cell["setting"]), 4, "0.9 for 0.5 is off")
        # 0.7 for 1.0, 0.5, 0.9 and 0.1: near 0.9 alone.
        self.assertEqual(near(lambda cell: cell["vcpus"] / cell["pcpus"]), 2)


if __name__ == "__main__":
    unittest.main()

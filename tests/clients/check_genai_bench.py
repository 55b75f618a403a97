#!/usr/bin/env python3
"""Prints what genai-bench measured and fails unless every request of every run succeeded.

usage: check_genai_bench.py FOLDER LEAST        FOLDER: of an experiment; LEAST: requests of a run
"""
import json
import pathlib
import sys

folder, least = pathlib.Path(sys.argv[1]), int(sys.argv[2])
runs = sorted(folder.glob("*_num_concurrency_*.json"), key=lambda path: path.stat().st_mtime)
if not runs:
    sys.exit(f"{folder} has no results")
failed = False
for path in runs:
    metrics = json.loads(path.read_text())["aggregated_metrics"]
    stats = metrics["stats"]
    print(f"concurrency {metrics['num_concurrency']}: {metrics['num_requests']} requests, "
          f"{metrics['num_error_requests']} errors, on average {stats['num_input_tokens']['mean']:.0f} tokens in "
          f"and {stats['num_output_tokens']['mean']:.0f} out")
    complete = metrics["num_completed_requests"] == metrics["num_requests"] >= least
    failed |= metrics["num_error_requests"] != 0 or not complete
sys.exit(1 if failed else 0)

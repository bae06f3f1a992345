#!/usr/bin/env python3
"""Collects real out-of-memory messages with the numbers they were made from.

    oom_messages.py ORACLE GEN [--ops 4000] [--base BYTES] [--processes none|own|three]

Prints tab-separated rows: segment, device, total, free, processes, limit, allocated, reserved, private, message. ORACLE must find no NVML
(none), the NVML stand-in (own), or a variant that lists three processes (three). Only what the driver log, the statistics and the snapshot tell is
used; a limit is trunc(fraction x total).
"""
import argparse, json, os, subprocess, sys
p = argparse.ArgumentParser()
p.add_argument("oracle"); p.add_argument("gen"); p.add_argument("--ops", default="4000"); p.add_argument("--base", type=int, default=0)
p.add_argument("--processes", default="own"); p.add_argument("--bytes", type=int, default=1 << 28); p.add_argument("--seed", default="1")
p.add_argument("--conf", default="")
a = p.parse_args()
LARGE = 20 << 20
for flavour in ("oom", "pools", "poolfree", "frac", "everything"):
    script = subprocess.run([sys.executable, a.gen, "--seed", a.seed, "--n", a.ops, "--flavour", flavour], capture_output=True, text=True, check=True).stdout
    lines = []
    for line in script.splitlines():
        lines.append(line)
        if line.startswith("alloc "): lines.append("snapshot")
    env = dict(os.environ, FAKE_GPU_BYTES=str(a.bytes), FAKE_GPU_BASE=str(a.base), PYTORCH_CUDA_ALLOC_CONF=a.conf)
    out = subprocess.run([os.path.abspath(a.oracle), "--stats=full" and "--stats=delta", "--log=3", "-"], input="\n".join(lines) + "\n", env=env, capture_output=True, text=True, check=True).stdout
    rows = [json.loads(l) for l in out.splitlines()]
    stats, fraction = {}, None
    for row, after in zip(rows, rows[1:] + [{}]):
        stats.update(row.get("st", {}))
        words = row["op"].split()
        if words[0] == "set_fraction" and row["ok"]: fraction = float(words[1])
        if row.get("err") != "oom": continue
        info = [d for d in row["drv"] if d[0] == "cudaMemGetInfo"][-1]
        free, total = info[2], info[3]
        limit = "-" if fraction is None or fraction >= 1 else str(int(fraction * a.bytes))
        private = sum(b[1] for s in after["snapshot"]["segments"] if s["pool"] != [0, 0] for b in s["blocks"] if b[3] == "inactive")
        oom = [e for e in row["ev"] if e[0] == "oom"][-1]
        size = oom[2]
        segment = 2 << 20 if size <= 1 << 20 else LARGE if size < 10 << 20 else -(-size // (2 << 20)) * (2 << 20)
        used = total - free - a.base
        processes = {"none": "", "own": f"self={used}", "three": f"1=1152,self={used},4194304=5368709120"}[a.processes]
        get = lambda name: stats.get(name + ".all", [0])[0]
        print(segment, 0, total, free, processes, limit, get("allocated_bytes"), get("reserved_bytes"), private, row["msg"], sep="\t")

"""Makes the fixtures of the recording tests: python3 make.py (in its own directory; needs zstd on the PATH)."""

import base64
import copy
import gzip
import json
import lzma
import pickle
import pickletools
import subprocess

BASE = 0x7F3000000000
frame = {"filename": "/home/u/model.py", "line": 12, "name": "forward"}
outer = {"filename": "/home/u/train \u20ac.py", "line": 34, "name": "<module>"}
stack = [frame, outer]  # one list object, shared
other = [outer]


def entry(action, size, addr=None, stream=0, frames=None, time_us=1795176304954573, **more):
    key = "device_free" if action == "oom" else "addr"
    made = {
        "action": action,
        key: addr,
        "size": size,
        "stream": stream,
        "time_us": time_us,
        "compile_context": "N/A",
        "user_metadata": "",
    }
    if frames is not None:
        made["frames"] = frames
    made.update(more)
    return made


def snapshot():
    segments = [
        {
            "device": 0,
            "address": BASE,
            "total_size": 2 << 20,
            "allocated_size": 512,
            "active_size": 1536,
            "requested_size": 1100,
            "stream": 0,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [
                {"address": BASE, "size": 512, "requested_size": 100, "state": "active_allocated", "frames": stack},
                {
                    "address": BASE + 512,
                    "size": 1024,
                    "requested_size": 1000,
                    "state": "active_pending_free",
                    "frames": stack,
                },
                {
                    "address": BASE + 1536,
                    "size": (2 << 20) - 1536,
                    "requested_size": 0,
                    "state": "inactive",
                    "frames": [],
                },
            ],
        },
        {
            "device": 1,
            "address": BASE,
            "total_size": 20 << 20,
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": 0x5581234567890,
            "segment_type": "large",
            "segment_pool_id": (3, 1),
            "is_expandable": True,
            "frames": other,
            "blocks": [{"address": BASE, "size": 20 << 20, "requested_size": 7, "state": "inactive", "frames": []}],
        },
    ]
    traces = [
        [
            entry("segment_alloc", 2 << 20, BASE, frames=stack),
            entry("alloc", 100, BASE, frames=stack),
            entry("alloc", 1000, BASE + 512, frames=other),
            entry("free_requested", 1000, BASE + 512, frames=stack),
            entry("oom", 1 << 40, 123456789, frames=[]),
            entry("snapshot", 0, 0),
        ],
        [
            entry("segment_map", 20 << 20, BASE, stream=-2),
            entry("alloc", 7, BASE, stream=(1 << 64) - 2),
            entry("free_completed", 7, BASE),
            entry("segment_unmap", 1 << 20, (1 << 64) - (1 << 21)),
        ],
    ]
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.75,
        "expandable_segments": True,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {str(1 << i): (4 if i > 3 else 0) for i in range(16)},
    }
    notes = [
        {"stage": "START", "name": "step", "device": 0, "time_us": 5},
        {"stage": "END", "name": "step", "device": 0, "time_us": 9},
    ]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": settings,
        "external_annotations": notes,
    }


def old():
    """A 2.0 snapshot: it has history in place of address, requested_size and frames."""
    return {
        "segments": [
            {
                "device": 0,
                "address": BASE,
                "total_size": 2 << 20,
                "allocated_size": 512,
                "active_size": 512,
                "stream": 0,
                "segment_type": "small",
                "blocks": [
                    {
                        "size": 512,
                        "state": "active_allocated",
                        "history": [{"addr": BASE, "real_size": 100, "frames": stack}],
                    },
                    {"size": 1024, "state": "active_awaiting_free", "history": []},
                    {"size": (2 << 20) - 1536, "state": "inactive"},
                ],
            }
        ],
        "device_traces": [[{"action": "alloc", "addr": BASE, "size": 100, "stream": 0, "frames": stack}]],
    }


def newer():
    made = snapshot()
    pool = (0, 7)
    for trace in made["device_traces"]:
        for item in trace:
            item["pool_id"] = pool
    made["device_traces"][0].append({"action": "user_defined", "addr": 0, "size": 0, "stream": 0})
    made["device_traces"][0][0]["category"] = "x"
    made["allocator_settings"]["max_cached_size"] = 0
    made["segments"][0]["registered"] = True
    made["segments"][0]["blocks"][0]["colour"] = None
    made["version"] = 9
    return made


def save(name, data):
    with open(name, "wb") as file:
        file.write(data)


for protocol in range(6):
    save(f"snapshot.protocol{protocol}.pickle", pickle.dumps(snapshot(), protocol=protocol))
plain = pickle.dumps(snapshot(), protocol=4)
save(
    "snapshot.python-pickler.pickle",
    (lambda f: (pickle._Pickler(f, 4).dump(snapshot()), f.getvalue())[1])(__import__("io").BytesIO()),
)
save("snapshot.unmemoised.pickle", pickletools.optimize(pickle.dumps(copy.deepcopy(snapshot()), protocol=2)))
save("old.pickle", pickle.dumps(old(), protocol=2))
save("list.pickle", pickle.dumps(old()["segments"], protocol=4))
save("newer.pickle", pickle.dumps(newer(), protocol=4))
half = len(plain) // 2
save("snapshot.gz.bin", gzip.compress(plain[:half], mtime=0) + gzip.compress(plain[half:], mtime=0))
save("snapshot.xz.bin", lzma.compress(plain[:half]) + lzma.compress(plain[half:]))
zstd = lambda data: subprocess.run(["zstd", "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout
save("snapshot.zst.bin", zstd(plain[:half]) + b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + zstd(plain[half:]))
save("snapshot.json", json.dumps(snapshot()).encode())
# As torch.cuda._memory_viz writes pages, with its padding.
padded = plain + b"\x00" * (3 - len(plain) % 3)
files = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(padded).decode()}])
save(
    "snapshot.html",
    f"""
<!DOCTYPE html>
<html>
<head>
</head>
<body>
<script type="module">
import {{add_local_files}} from "./MemoryViz.js"
const local_files = {files}
add_local_files(local_files, 'Active Memory Timeline')
</script>
</body>
""".encode(),
)
many = b"N" * 100_000
save("n.gz.bin", gzip.compress(many, mtime=0))
save("n.xz.bin", lzma.compress(many))
save("n.zst.bin", zstd(many))

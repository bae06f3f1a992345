"""The two programs that are compared: how a flavour of script runs under a settings string, and what the programs answer.

With a bridge, our program is the real allocator's program with parkade in place of PyTorch's allocator; driver calls are then not compared.
"""

import glob
import json
import os
import signal
import subprocess

from releases import program, short

G, M = 1 << 30, 1 << 20
# The capacity in which each flavour of script runs.
FLAVOURS = {
    "basic": 8 * G,
    "streams": 8 * G,
    "oom": 512 * M,
    "frac": G,
    "gc": G,
    "boundary": 4 * G,
    "large": 2 * G,
    "pools": G,
    "capture": 4 * G,
    "everything": 2 * G,
    "poolfree": G,
    "lend": 256 * M,
    "graphs": 4 * G,
    "addresses": G,
    "ckpt": G,
    "ckptstreams": G,
    "by_hand": G,
    "every_operation": G,
    "graph_reuse": G,
}
# Private pools: the real allocator's answers are one of several valid outcomes.
ADDRESS_DEPENDENT = ("pools", "capture", "everything", "poolfree", "ckptstreams", "graphs", "addresses")
# These flavours release pools in mid-script.
RELEASES_POOLS = ("poolfree", "lend")
# The minor release that introduced the subject of a flavour. (Before 2.6, scripts can already release every pool of `pools`.
# Before 2.3 the harness ends the routings of a stream, not of a pool, which answers differently if there is no routing;
# before 2.10 the entries that a history in the script keeps have a different form.)
SINCE = {
    "poolfree": 6,
    "lend": 8,
    "graphs": 10,
    "addresses": 13,
    "by_hand": 3,
    "every_operation": 10,
    "graph_reuse": 10,
}
# Scripts that depend on the real allocator's answers.
CHECKPOINTS = ("ckpt", "ckptstreams")
CONFIGS = {
    "default": "",
    "split32": "max_split_size_mb:32",
    "split64nr40": "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "split200": "max_split_size_mb:200",
    "round4": "roundup_power2_divisions:4",
    "roundlist": "roundup_power2_divisions:[1:8,4:4,64:2,256:1,>:1]",
    "gc06": "garbage_collection_threshold:0.6",
    "gc08split64": "garbage_collection_threshold:0.8,max_split_size_mb:64",
    "exp": "expandable_segments:True",
    "exp_gc": "expandable_segments:True,garbage_collection_threshold:0.6",
    "exp_split64": "expandable_segments:True,max_split_size_mb:64",
    "exp_round4": "expandable_segments:True,roundup_power2_divisions:4",
    "relock": "release_lock_on_cudamalloc:True",
    "large64": "large_segment_size_mb:64",
    "ppmf": "per_process_memory_fraction:0.5",
    "graphreuse": "graph_capture_record_stream_reuse:True",
}


def environment(flavour, config, addresses, more=()):
    settings = CONFIGS[config]
    return dict(
        os.environ,
        FAKE_GPU_BYTES=str(FLAVOURS[flavour]),
        FAKE_ADDR_POLICY=addresses,
        PYTORCH_CUDA_ALLOC_CONF=settings,
        PYTORCH_ALLOC_CONF=settings,
        **dict(more),
    )


def command(options, flavour, config, addresses):
    """Returns parkade's command, which reads the script from standard input."""
    if options.bridge:
        return [program(options.release, options.oracle), "-", "--log=0"]
    return [
        options.parkade,
        "ops",
        "-",
        "--settings",
        CONFIGS[config],
        "--capacity",
        str(FLAVOURS[flavour]),
        "--addresses",
        addresses,
        "--profile",
        short(options.release),
    ]


def bridged(options, flavour, config, addresses):
    """Returns the environment of our command; None means this process's environment."""
    if not options.bridge:
        return None
    # The fake driver's libraries have the names under which parkade opens the driver's.
    fakes = glob.glob(
        os.path.join(options.oracle, f"fake-{13 if int(short(options.release).split('.')[1]) > 10 else 12}")
    )
    libraries = [folder for fake in fakes for folder in (fake, os.path.join(fake, "nvml"))]
    more = {
        "ORACLE_BRIDGE": os.path.abspath(options.bridge),
        "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
    }
    return environment(flavour, config, addresses, more)


def without_calls(options, lines):
    """Answers without the driver's calls, if a bridge is compared."""
    if not options.bridge:
        return lines
    return [json.dumps(without_call(json.loads(line))) for line in lines]


def without_call(answer):
    """What a callback frees is freed when the callback returns, not before: the harness decides the callback's place
    among the events.
    """
    answer.pop("drv", None)
    events = [event for event in answer.pop("ev", []) if event[0] != "free_callback"]
    return answer | ({"ev": events} if events else {})


def log(options):
    return ["--log=0"] if options.bridge else []


def real(options, flavour, config, addresses, script, more=()):
    """Returns the real allocator's answers: a list of lines."""
    run = subprocess.run(
        [program(options.release, options.oracle), "-", *log(options)],
        input=script,
        env=environment(flavour, config, addresses, more),
        capture_output=True,
    )
    if run.returncode not in (0, -signal.SIGABRT):  # the fake driver ends the process if its heap is damaged
        run.check_returncode()
    return without_calls(options, run.stdout.decode().splitlines())


def parkade(options, flavour, config, addresses, script):
    """Returns our answers: a list of lines."""
    env = bridged(options, flavour, config, addresses)
    run = subprocess.run(
        command(options, flavour, config, addresses), input=script, env=env, capture_output=True, check=True
    )
    return without_calls(options, run.stdout.decode().splitlines())


def digests(options, flavour, config, addresses, path, is_real, more=()):
    """The digests of one side's answers to the script in a file, 17 bytes for each; None if it did not reach the end."""
    words = (
        [program(options.release, options.oracle), "-", *log(options)]
        if is_real
        else command(options, flavour, config, addresses)
    )
    env = environment(flavour, config, addresses, more) if is_real else bridged(options, flavour, config, addresses)
    with open(path, "rb") as script:
        run = subprocess.run(
            [*words, "--digests"], stdin=script, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    return run.stdout if run.returncode == 0 else None

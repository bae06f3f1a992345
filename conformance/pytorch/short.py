#!/usr/bin/env python3
"""Runs a program in slightly more memory than its tensors take, under PyTorch's expandable segments and parkade's policies, and compares its losses.

  short.py gpt2 4                                         4 items per batch, in 1.005, 1.01 and 1.02 times the peak of its tensors
  short.py llama 3 --times 1.004 1.006 --policies pytorch-rescue compaction
    parser.add_argument(
        "--times",
        type=float,
        nargs="+",
        default=[1.005, 1.01, 1.02],
        help="memory limits, as multiples of the peak of the tensors (default: %(default)s)",
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=["pytorch-rescue"],
        metavar="NAME",
        help="parkade's policies (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=12, help="default: %(default)s")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="programs at the same time; step times mean something only with 1 (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=int, default=600, help="for one run (default: %(default)s)")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        options.pairs = pairs(options.pairs)
    except ValueError as error:
        parser.error(str(error))
    if min(options.steps, options.jobs, options.seconds) < 1 or min(options.times) < 1:
        parser.error("--steps, --jobs and --seconds must be at least 1, and --times at least 1.0")
    if options.side:
        print(json.dumps(attempt(options)), flush=True)
        # NCCL would wait at exit for ranks that no longer run.
        os._exit(0)
    header = ["program", "times its tensors", "policy", "ending", "same losses", "reserved, MiB", "retries", "rescues"]
    print(f"| {' | '.join(header)} | ms a step |\n|---|--:|---|---|---|--:|--:|--:|--:|", flush=True)
    codes = set()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in [pool.submit(compare, options, *pair) for pair in options.pairs]:
            try:
                codes.add(row.result())
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                codes.add(2)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

//! Out-of-memory messages of all versions, whole and cut, and logs that contain them.

use crate::choices::Choices;

const SIZES: [&str; 8] =
    ["4.88 GiB", "20.00 MiB", "512 bytes", "0 bytes", "39.59 GiB", "17179869183.99 GiB", "2.00 KiB", "900.00 GiB"];

const WRONG_SIZES: [&str; 5] = ["1e9 GiB", "-1.00 GiB", "99999999999999999999 bytes", "GiB", "3.5 TiB"];

const WORDS: [&str; 22] = [
    "CUDA out of memory. ",
    "HIP out of memory. ",
    "Tried to allocate ",
    "GPU 0 has a total capacity of ",
    "GPU 0; ",
    " total capacity; ",
    " already allocated; ",
    " is free. ",
    "Process 7 has ",
    " memory in use. ",
    "Of the allocated memory ",
    " is allocated by PyTorch, ",
    "with ",
    " allocated in private pools (e.g., CUDA Graphs), ",
    "and ",
    " is reserved by PyTorch but unallocated. ",
    "\n",
    "\r\n",
    "\u{1b}[31m",
    "torch.OutOfMemoryError: ",
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
    "cudaErrorMemoryAllocation",
];

const PREFIXES: [&str; 14] = [
    "",
    "[rank3]: ",
    "[rank4294967296]: ",
    "2: ",
    "ERROR trainer rank=5: ",
    "2026-11-22 10:00:00,123 ",
    "2026-11-22T10:00:00.123456Z ",
    "[2026-02-30 25:61:61] ",
    "[default0]:",
    "1/8: ",
    "(RayTrainWorker pid=12, ip=10.0.0.1) ",
    "\u{9b}",
    "[rank0]:[rank1]: ",
    "Nov 22 10:00:00 node7 ",
];

fn size(choices: &mut Choices<'_>) -> &'static str {
    if choices.once_in(24) { choices.pick(&WRONG_SIZES) } else { choices.pick(&SIZES) }
}

/// A message.
pub(crate) fn message(choices: &mut Choices<'_>) -> String {
    let [tried, total, free, used, allocated, unallocated] = std::array::from_fn(|_| size(choices));
    let device = choices.pick(&["0", "7", "128", "99999999999"]);
    let mut text = match choices.below(6) {
        0 => format!(
            "CUDA out of memory. Tried to allocate {tried} (GPU {device}; {total} total capacity; {allocated} already allocated; {free} \
             free; {used} reserved in total by PyTorch) If reserved memory is >> allocated memory"
        ),
        1 => format!(
            "CUDA out of memory. Tried to allocate {tried} (GPU {device}; {total} total capacity; {allocated} already allocated; {free} \
             free; {unallocated} cached)"
        ),
        2 => format!(
            "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacty of {total} of which {free} is free. \
             Including non-PyTorch memory, this process has {used} memory in use. {used} allowed; Of the allocated memory {allocated} \
             is allocated by PyTorch, with {unallocated} allocated in private pools (e.g., CUDA Graphs), and {unallocated} is reserved \
             by PyTorch but unallocated."
        ),
        3 => choices.words(&WORDS, 24),
        _ => format!(
            "CUDA out of memory. Tried to allocate {tried}. GPU {device} has a total capacity of {total} of which {free} is free. Process \
             7 has {used} memory in use. Process 8 has {used} memory in use. Of the allocated memory {allocated} is allocated by \
             PyTorch, and {unallocated} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large"
        ),
    };
    if choices.once_in(8) {
        let mut bytes = text.into_bytes();
        choices.damage(&mut bytes, 6);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    text
}

/// A log of several ranks.
pub(crate) fn log(choices: &mut Choices<'_>) -> String {
    let mut text = String::new();
    let lines = if choices.once_in(200) { 3000 } else { choices.below(12) };
    for _ in 0..lines {
        text.push_str(choices.pick(&PREFIXES));
        match choices.below(4) {
            0 => text.push_str(&choices.words(&WORDS, 6)),
            _ => text.push_str(&message(choices)),
        }
        text.push('\n');
    }
    text
}

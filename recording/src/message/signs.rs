//! The signs of out-of-memory messages that are not from PyTorch's GPU allocator: the words that identify a source, and how
//! to read their messages.

use std::ops::Range;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::figures::{OutOfMemoryMessage, Size, Source, sizes};
use super::patterns::{Stems, compiled};

/// The number of sources that have signs.
const SIGNED: usize = 22;

/// The words that one source's messages contain.
struct Sign {
    source: Source,
    /// Each message contains one of these stems, in upper or lower case; searching for the stems is much faster.
    stems: Stems,
    pattern: Regex,
}

/// The signs of all sources. The first match counts, so specific signs come before general ones.
static SIGNS: LazyLock<[Sign; SIGNED]> = LazyLock::new(|| {
    let signs: [(Source, &'static [&'static str], &str); SIGNED] = [
        (
            Source::CudaMallocAsync,
            &["allocation on device"],
            r"Allocation on device [0-9]{1,9} would exceed allowed memory|(?:OutOfMemoryError: |!!! )Allocation on device",
        ),
        (Source::Mps, &["mps backend"], r"MPS backend out of memory"),
        (
            Source::Assertion,
            &["internal assert failed"],
            r"INTERNAL ASSERT FAILED at .{0,200}(?:CachingAllocator|CUDAMallocAsyncAllocator)",
        ),
        (
            Source::MainMemory,
            &["cpuallocator", "pinned host", "on host: ", "bytes failed", "hostmemory", "arraymemoryerror", "for an array"],
            r"DefaultCPUAllocator: |pinned host memory|[0-9] bytes on host: |memory allocation of [0-9]+ bytes failed|cudaErrorHostMemory|numpy[a-z_.]*ArrayMemoryError|Unable to allocate .{0,40} for an array",
        ),
        (Source::Paddle, &["memory error on"], r"Out of memory error on [A-Z]PU [0-9]{1,9}\. Cannot allocate"),
        (
            Source::TensorFlow,
            &["oom when", "resourceexhausted", "tensorflow/core"],
            r"OOM when allocating tensor|ResourceExhaustedError|tensorflow/core/[a-z_/.]+: .{0,80}out of memory",
        ),
        (
            Source::CuPy,
            &["outofmemoryerror", "allocated so far"],
            r"cupy[A-Za-z._]*OutOfMemoryError|Out of memory allocating [0-9,]+ bytes \(allocated so far",
        ),
        (
            Source::Jax,
            &["resource_exhausted", "xlaruntimeerror", "ran out of memory"],
            r"RESOURCE_EXHAUSTED: |XlaRuntimeError: .{0,40}(?:[Oo]ut of|Ran out of) memory|Ran out of memory in memory space",
        ),
        (Source::Bfc, &["bfc) ran out"], r"Allocator \([A-Za-z0-9_]*bfc\) ran out of memory"),
        (
            Source::Rmm,
            &["std::bad_alloc", "rmm failure", "rmm::out_of"],
            r"std::bad_alloc: (?:out_of_memory|CUDA error)|RMM failure|rmm::out_of_memory",
        ),
        (Source::Ggml, &["ggml_", "llama_"], r"(?i)(?:ggml|llama)_[a-z_]+: .{0,200}out of memory"),
        (
            Source::System,
            &["killed process", "oom-kill:", "killed by signal", "insufficient shared", "oom_reaper"],
            r"[Oo]ut of memory: Killed process|oom-kill:|killed by signal: Killed|insufficient shared memory|oom_reaper: reaped",
        ),
        (
            Source::Server,
            &["cache blocks", "memory utilization", "in kv cache", "mem-fraction", "kv cache is"],
            r"No available memory for the cache blocks|Free memory on device .{0,60}less than desired GPU memory utilization|larger than the maximum number of tokens that can be stored in KV cache|Not enough memory\. Please try to increase --mem-fraction-static|KV cache is (?:larger|needed)",
        ),
        (Source::Nccl, &["nccl"], r"(?i)NCCL [a-z]+ .{0,160}out of memory|ncclUnhandledCudaError.{0,200}out of memory"),
        (
            Source::Library,
            &["alloc_failed", "status_memory_error", "allocfailed"],
            r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|CUSPARSE_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error|MIOPEN_STATUS_ALLOC_FAILED|miopenStatusAllocFailed",
        ),
        (
            Source::Cuda,
            &["memoryallocation", "out_of_memory", "out of memory", "error out of"],
            concat!(
                "cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY",
                "|(?i:cuda[a-z0-9_]{0,40}(?: [a-z]{1,12})? (?:error|failure|failed)[^a-z]{0,20}out of memory)",
                "|(?i:cudaMalloc[a-z]*(?:\\(\\))? .{0,40}out of memory|cuMem[a-z]+ .{0,60}out of memory)",
                "|Error out of memory at line [0-9]+ in file"
            ),
        ),
        (
            Source::Hip,
            &["outofmemory", "hiperror", "out of memory"],
            concat!(
                "hipErrorOutOfMemory|hipErrorMemoryAllocation",
                "|(?i:hip[a-z0-9_]* (?:error|failure|failed)[^a-z]{0,20}out of memory)",
                "|(?i:hipMalloc[a-z]*(?:\\(\\))? .{0,40}out of memory)"
            ),
        ),
        (
            Source::LevelZero,
            &["_error_out_of_"],
            r"(?:UR_RESULT|PI|ZE_RESULT)_ERROR_OUT_OF_(?:DEVICE_MEMORY|HOST_MEMORY|RESOURCES)",
        ),
        (
            Source::Driver,
            &["npuworkspace", "alloc device memory", "memory_allocation_failure", "video memory", "workspace allocation"],
            r"NPUWorkspaceAllocator tried to allocate|alloc device memory failed|Memory_Allocation_Failure|not enough GPU video memory|workspace Allocation of size ::[0-9]+ failed",
        ),
        (
            Source::Retry,
            &["failed with oom"],
            r"memory (?:allocation|mapping) failed with OOM on device [0-9]{1,9} while trying to (?:allocate|map) [0-9]{1,20} bytes",
        ),
        (Source::Summary, &["memory summary"], r"PyTorch [A-Z]+ memory summary, device ID [0-9]{1,9}"),
        (
            Source::Plain,
            &["out of"],
            r"(?i)(?:cuda|hip|gpu|device|xpu|npu|musa|mlu)[^.]{0,20} out of memory|out of (?:gpu|device|video) memory|out of resource: shared memory",
        ),
    ];
    signs.map(|(source, stems, pattern)| Sign { source, stems: Stems::of(stems), pattern: compiled(pattern) })
});
/// The requested size, in the words of these messages.
static WANTED: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?ix)(?:trying\ to\ allocate|tried\ to\ allocate|failed\ to\ allocate(?:\ request\ for)?|memory\ allocating|allocating|malloc)
        \ ([0-9][0-9,]*(?:\.[0-9]+)?)\ ?(bytes|[KMGT]i?B|[KMGT]|B)(?:\ \(([0-9]+)\ ?B(?:ytes)?\))?",
    )
});
/// A tensor that TensorFlow could not allocate.
static TENSOR: LazyLock<Regex> = LazyLock::new(|| compiled(r"allocating tensor with shape\[([0-9,]*)\] and type ([a-z0-9_]+)"));
/// The maximum distance of the size from the sign.
const NEAR: usize = 400;
/// The maximum distance of the figures after the sign, for messages with several figures.
const FIGURES_NEAR: usize = 2000;

impl OutOfMemoryMessage {
    /// Returns the first message from another source in a text without line breaks. Does not look for messages from PyTorch's
    /// own allocator.
    pub(super) fn find_foreign(text: &str) -> Option<OutOfMemoryMessage> {
        let mut signs = SIGNS.iter();
        signs.find_map(|sign| Some(OutOfMemoryMessage::at(sign.source, text, sign.pattern.find(text)?.range())))
    }

    /// Returns the message whose sign is at this position.
    pub(super) fn at(source: Source, text: &str, sign: Range<usize>) -> OutOfMemoryMessage {
        let end = text.floor_char_boundary(sign.end.saturating_add(FIGURES_NEAR));
        match source {
            Source::CudaMallocAsync | Source::Mps => OutOfMemoryMessage::read(source, &text[sign.start..end]),
            Source::Driver => {
                let read = OutOfMemoryMessage::read(source, &text[sign.start..end]);
                OutOfMemoryMessage {
                    is_complete: true,
                    tried: read.tried.or_else(|| wanted_size(&text[sign.start..end])),
                    ..read
                }
            }
            Source::Retry => OutOfMemoryMessage::retry(&text[sign.start..end]),
            Source::Summary => OutOfMemoryMessage::summary(&text[sign.start..end]),
            source => {
                let is_kernel = text[sign.clone()].contains("shared memory") && source == Source::Plain;
                let mut message = OutOfMemoryMessage::of(if is_kernel { Source::Kernel } else { source });
                let start = text.floor_char_boundary(sign.start.saturating_sub(NEAR));
                let end = text.ceil_char_boundary(sign.end.saturating_add(NEAR));
                let (before, after) = (&text[start..sign.end], &text[sign.start..end]);
                let bytes = [after, before].into_iter().find_map(|near| tensor_bytes(near).or_else(|| wanted(near)));
                message.tried = bytes.map(exactly);
                message.is_complete = true;
                message
            }
        }
    }

    /// Reads `memory allocation failed with OOM on device 1 while trying to allocate 20971520 bytes (free: 15794176, total:
    /// 150111977472)`.
    fn retry(text: &str) -> OutOfMemoryMessage {
        let mut message = OutOfMemoryMessage::of(Source::Retry);
        let number = |words: &str| -> Option<u64> {
            let rest = &text[text.find(words)? + words.len()..];
            rest[..rest.bytes().take_while(u8::is_ascii_digit).count()].parse().ok()
        };
        let size = |words: &str| number(words).map(exactly);
        message.device = number("device ").and_then(|device| u32::try_from(device).ok());
        message.tried = size("to allocate ").or_else(|| size("to map "));
        (message.free, message.total) = (size("(free: "), size(", total: "));
        message.is_complete = true;
        message
    }

    /// Returns the rows `Allocated memory`, `Active memory` and `GPU reserved memory` of a table of statistics, with their
    /// current values.
    fn summary(text: &str) -> OutOfMemoryMessage {
        let mut message = OutOfMemoryMessage::of(Source::Summary);
        let row = |name: &str| {
            let rest = &text[text.find(name)? + name.len()..];
            let end = rest.floor_char_boundary(40);
            sizes(&rest[..end]).first().map(|found| found.size)
        };
        message.device = text.find("device ID ").and_then(|at| {
            let rest = &text[at + "device ID ".len()..];
            rest[..rest.bytes().take_while(u8::is_ascii_digit).count()].parse().ok()
        });
        message.allocated = row("| Allocated memory |");
        message.active = row("| Active memory |");
        message.reserved = row("| GPU reserved memory |");
        message.unallocated = message.reserved.zip(message.allocated).map(|(reserved, allocated)| reserved.minus(allocated));
        message.is_complete = message.unallocated.is_some();
        message
    }
}

/// Returns the specificity of a source's signs: of the messages in one line, the one with the lowest number counts.
pub(super) fn order(of: Source) -> usize {
    SIGNS.iter().position(|sign| sign.source == of).unwrap_or(SIGNS.len())
}

/// The maximum length of a sign.
pub(super) const LONGEST_SIGN: usize = 1000;

/// The signs in a text that is read part by part.
#[derive(Default)]
pub(super) struct Signs {
    /// Whether each sign was found.
    is_found: [bool; SIGNED],
}

impl Signs {
    /// Returns the signs that begin in one part of a longer text, in text order: all signs of named sources and, if `is_all`,
    /// the first sign of each general source.
    pub(super) fn read(&mut self, text: &str, part: Range<usize>, is_all: bool) -> Vec<(Range<usize>, Source)> {
        let mut found_signs = Vec::new();
        let near = &text[..text.floor_char_boundary(part.end + LONGEST_SIGN)];
        for (Sign { source, stems, pattern }, is_found) in SIGNS.iter().zip(&mut self.is_found) {
            let is_wanted = |is_found: bool| !source.is_general() || (is_all && !is_found);
            if !is_wanted(*is_found) || !stems.are_in(&near[part.start..]) {
                continue;
            }
            let mut from = part.start;
            while is_wanted(*is_found) {
                let Some(found) = pattern.find_at(near, from).filter(|found| found.start() < part.end) else { break };
                *is_found = true;
                found_signs.push((found.range(), *source));
                from = found.end();
            }
        }
        found_signs.sort_unstable_by_key(|(range, _)| range.start);
        found_signs
    }
}

const fn exactly(bytes: u64) -> Size {
    Size { bytes, within: 0 }
}

fn wanted_size(text: &str) -> Option<Size> {
    wanted(text).map(exactly)
}

/// Returns the requested size; exact if the message also states it in bytes.
fn wanted(text: &str) -> Option<u64> {
    let captures = WANTED.captures(text)?;
    captures.get(3).and_then(|bytes| bytes.as_str().parse().ok()).or_else(|| in_units(&captures))
}

/// Returns a size such as `8,000 bytes`, `2.00GiB` or `7.48G`: all these frameworks count in powers of 1024.
fn in_units(captures: &Captures<'_>) -> Option<u64> {
    let number = captures[1].replace(',', "");
    let shift = match captures[2].as_bytes()[0].to_ascii_uppercase() {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => return number.parse().ok(),
    };
    let number: f64 = number.parse().ok()?;
    Some((number * (1_u64 << shift) as f64).round() as u64)
}

/// Returns the size of the tensor: the product of its dimensions and its type's size.
fn tensor_bytes(text: &str) -> Option<u64> {
    let captures = TENSOR.captures(text)?;
    let element: u64 = match &captures[2] {
        "bool" | "int8" | "uint8" | "qint8" | "quint8" => 1,
        "half" | "float16" | "bfloat16" | "int16" | "uint16" => 2,
        "float" | "float32" | "int32" | "uint32" => 4,
        "double" | "float64" | "int64" | "uint64" | "complex64" => 8,
        "complex128" => 16,
        _ => return None,
    };
    let mut dimensions = captures[1].split(',').filter(|dimension| !dimension.is_empty());
    dimensions.try_fold(element, |product, dimension| product.checked_mul(dimension.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_framework_is_known_by_its_words_and_the_size_is_read() {
        let known = [
            (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
                Source::Jax,
                Some(8 << 30),
            ),
            ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21.50GiB.", Source::Jax, Some(43 << 29)),
            (
                "RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
                Source::Jax,
                Some(2 << 30),
            ),
            (
                "ResourceExhaustedError: OOM when allocating tensor with shape[64,1024,1024] and type float on /job:localhost/replica:0/\
                 task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]",
                Source::TensorFlow,
                Some(256 << 20),
            ),
            (
                "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.50GiB (rounded to 2684354560)requested by op",
                Source::Bfc,
                Some(5 << 29),
            ),
            (
                "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 512 bytes).",
                Source::CuPy,
                Some(8 << 30),
            ),
            (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory",
                Source::Ggml,
                Some(4 << 30),
            ),
            (
                "failed to allocate 7.50G (8053063680 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
                Source::Cuda,
                Some(8_053_063_680),
            ),
            ("RuntimeError: CUDA error: out of memory", Source::Cuda, None),
            ("GPUassert: cudaErrorMemoryAllocation main.cu 12", Source::Cuda, None),
            ("RuntimeError: HIP error: out of memory", Source::Hip, None),
            ("hipErrorOutOfMemory: hipMalloc of 512 MiB", Source::Hip, None),
            ("buffer: allocating 4096.00 MiB on device 0: hipMalloc failed: out of memory", Source::Hip, Some(4 << 30)),
            ("terminate called: HIP out of memory.", Source::Plain, None),
            ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Source::Library, None),
            ("terminate called: CUDA out of memory.", Source::Plain, None),
            ("error: out of GPU memory, trying to allocate 512 MB", Source::Plain, Some(512 << 20)),
            ("Out of memory: Killed process 712 (python) total-vm:1kB", Source::System, None),
            (
                "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). \
                 Tried to allocate 256.00 MB on private pool.",
                Source::Mps,
                Some(256 << 20),
            ),
            (
                "[enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate \
                 1073741824 bytes. Error code 12",
                Source::MainMemory,
                Some(1 << 30),
            ),
        ];
        for (text, source, wanted_bytes) in known {
            let found = OutOfMemoryMessage::find_foreign(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((found.source, found.tried.map(|size| size.bytes)), (source, wanted_bytes), "{text}");
        }
        assert_eq!(OutOfMemoryMessage::find_foreign("all is well: no memory error"), None);
    }

    #[test]
    fn absurd_sizes_are_no_sizes() {
        let text = "OOM when allocating tensor with shape[99999999999,99999999999] and type float";
        assert_eq!(OutOfMemoryMessage::find_foreign(text).map(|found| found.tried), Some(None));
        let text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99999999999999999999999 bytes";
        assert_eq!(OutOfMemoryMessage::find_foreign(text).map(|found| found.tried), Some(None));
    }
}

//! Out-of-memory messages that are not those of PyTorch's GPU allocator: who wrote them, and how much was wanted.
//!
//! One is that of PyTorch's other GPU allocator, `backend:cudaMallocAsync`, which leaves caching to the driver, and has figures
//! of its own.

use std::ops::Range;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::out_of_memory::Size;
use super::patterns::compiled;

/// Who wrote a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framework {
    /// JAX, or another user of XLA.
    Jax,
    /// TensorFlow.
    TensorFlow,
    /// The BFC allocator, which TensorFlow and XLA share.
    Bfc,
    /// CuPy's memory pool.
    CuPy,
    /// RAPIDS Memory Manager.
    Rmm,
    /// PyTorch on Apple's GPUs.
    Mps,
    /// PyTorch's allocator of main memory.
    MainMemory,
    /// The operating system, which ended a process for lack of main memory.
    System,
    /// CUDA itself: `cudaMalloc` or another call, outside of PyTorch's allocator.
    Cuda,
    /// HIP itself, or a library on it: the same on AMD's GPUs.
    Hip,
    /// Whoever wrote only that CUDA, HIP or the GPU is out of memory.
    Plain,
}

impl Framework {
    /// Its name, for a sentence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Framework::Jax => "JAX (XLA)",
            Framework::TensorFlow => "TensorFlow",
            Framework::Bfc => "the BFC allocator of TensorFlow or XLA",
            Framework::CuPy => "CuPy",
            Framework::Rmm => "RAPIDS Memory Manager (RMM)",
            Framework::Mps => "PyTorch on Apple's GPUs (MPS)",
            Framework::MainMemory => "PyTorch's allocator of main memory (not of the GPU's)",
            Framework::System => "the operating system, about main memory (not the GPU's)",
            Framework::Cuda => "CUDA itself, outside of PyTorch's allocator",
            Framework::Hip => "HIP itself, outside of PyTorch's allocator",
            Framework::Plain => "C++ code, or only the first words of PyTorch's",
        }
    }
}

/// A message of another framework.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ForeignMessage {
    /// Who wrote it.
    pub framework: Framework,
    /// How many bytes were wanted, if the message states it; rounded as there.
    pub wanted_bytes: Option<u64>,
}

/// What a framework's messages contain. The first that is found counts, so the special ones come before the general ones.
static SIGNS: LazyLock<[(Framework, Regex); 11]> = LazyLock::new(|| {
    [
        (Framework::TensorFlow, compiled(r"OOM when allocating tensor|ResourceExhaustedError")),
        (Framework::CuPy, compiled(r"cupy[A-Za-z._]*OutOfMemoryError|Out of memory allocating [0-9,]+ bytes \(allocated so far")),
        (
            Framework::Jax,
            compiled(
                r"RESOURCE_EXHAUSTED: |XlaRuntimeError: .{0,40}(?:[Oo]ut of|Ran out of) memory|Ran out of memory in memory space",
            ),
        ),
        (Framework::Bfc, compiled(r"Allocator \([A-Za-z0-9_]*bfc\) ran out of memory")),
        (Framework::Rmm, compiled(r"std::bad_alloc: out_of_memory|RMM failure|rmm::out_of_memory")),
        (Framework::Mps, compiled(r"MPS backend out of memory")),
        (Framework::MainMemory, compiled(r"DefaultCPUAllocator: ")),
        (Framework::System, compiled(r"[Oo]ut of memory: Killed process|oom-kill:")),
        (
            Framework::Cuda,
            compiled(concat!(
                "cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
                "|(?i:cuda[a-z0-9_]* (?:error|failure|failed)[^a-z]{0,20}out of memory)",
                "|(?i:cudaMalloc[a-z]*(?:\\(\\))? .{0,40}out of memory|cuMem[a-z]+ .{0,60}out of memory)"
            )),
        ),
        (
            Framework::Hip,
            compiled(concat!(
                "hipErrorOutOfMemory|hipErrorMemoryAllocation|HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error",
                "|(?i:hip[a-z0-9_]* (?:error|failure|failed)[^a-z]{0,20}out of memory)",
                "|(?i:hipMalloc[a-z]*(?:\\(\\))? .{0,40}out of memory)"
            )),
        ),
        (Framework::Plain, compiled(r"(?i)(?:cuda|hip|gpu|device)[^.]{0,20} out of memory|out of (?:gpu|device|video) memory")),
    ]
});
/// How much was wanted, in the words of these messages.
static WANTED: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(?ix)(?:trying\ to\ allocate|tried\ to\ allocate|failed\ to\ allocate(?:\ request\ for)?|memory\ allocating|allocating|malloc)
        \ ([0-9][0-9,]*(?:\.[0-9]+)?)\ ?(bytes|[KMGT]i?B|[KMGT]|B)(?:\ \(([0-9]+)\ ?B(?:ytes)?\))?",
    )
});
/// A tensor that TensorFlow could not allocate.
static TENSOR: LazyLock<Regex> = LazyLock::new(|| compiled(r"allocating tensor with shape\[([0-9,]*)\] and type ([a-z0-9_]+)"));
/// How far from the sign the size may be.
const NEAR: usize = 400;

impl ForeignMessage {
    /// The first message of another framework in a text without line breaks. Texts about PyTorch's own allocator are not looked for.
    pub(super) fn find(text: &str) -> Option<ForeignMessage> {
        let mut signs = SIGNS.iter();
        signs.find_map(|(framework, sign)| Some(ForeignMessage::at(*framework, text, sign.find(text)?.range())))
    }

    /// How special a framework's signs are: of messages in one line that of the lowest number counts.
    pub(super) fn order(framework: Framework) -> usize {
        SIGNS.iter().position(|(of, _)| *of == framework).unwrap_or(SIGNS.len())
    }

    /// The message whose sign is here.
    fn at(framework: Framework, text: &str, sign: Range<usize>) -> ForeignMessage {
        let start = text.floor_char_boundary(sign.start.saturating_sub(NEAR));
        let end = text.ceil_char_boundary(sign.end.saturating_add(NEAR));
        let (before, after) = (&text[start..sign.end], &text[sign.start..end]);
        let wanted_bytes = [after, before].into_iter().find_map(|near| tensor_bytes(near).or_else(|| wanted(near)));
        ForeignMessage { framework, wanted_bytes }
    }
}

/// The signs of a text that is read part by part.
#[derive(Default)]
pub(super) struct Signs {
    /// The first message of each framework.
    first: [Option<ForeignMessage>; 11],
}

impl Signs {
    /// No sign is longer than this.
    pub(super) const LONGEST: usize = 1000;

    /// Reads the signs that begin in a part of a text, of which more is known around it. Returns where those of named frameworks are, in
    /// the order of the text: not those in words that PyTorch's own messages have too. The others are only read where `is_all`.
    pub(super) fn read(&mut self, text: &str, part: Range<usize>, is_all: bool) -> Vec<usize> {
        let mut places = Vec::new();
        let near = &text[..text.floor_char_boundary(part.end + Self::LONGEST)];
        for ((framework, sign), first) in SIGNS.iter().zip(&mut self.first) {
            let is_named = !matches!(framework, Framework::Cuda | Framework::Hip | Framework::Plain);
            let mut from = part.start;
            while is_named || (is_all && first.is_none()) {
                let Some(found) = sign.find_at(near, from).filter(|found| found.start() < part.end) else { break };
                first.get_or_insert_with(|| ForeignMessage::at(*framework, text, found.range()));
                if is_named {
                    places.push(found.start());
                }
                from = found.end();
            }
        }
        places.sort_unstable();
        places
    }

    /// The message of the most special sign.
    pub(super) fn first(&self) -> Option<ForeignMessage> {
        self.first.iter().flatten().next().copied()
    }
}

/// The size in words, exact if the message has it in bytes too.
fn wanted(text: &str) -> Option<u64> {
    let captures = WANTED.captures(text)?;
    captures.get(3).and_then(|bytes| bytes.as_str().parse().ok()).or_else(|| in_units(&captures))
}

/// `8,000 bytes`, `2.00GiB`, `7.48G`: all of these frameworks count in powers of 1024.
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

/// The size of the tensor: the product of its dimensions and the size of its type.
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

/// The message of PyTorch's cudaMallocAsync backend; what a cut one lacks is `None`.
///
/// PyTorch writes it in six lines, with the colons below each other:
///
/// ```text
/// Allocation on device 0 would exceed allowed memory. (out of memory)
/// Currently allocated     : 54.14 GiB
/// Requested               : 686.41 MiB
/// Device limit            : 79.35 GiB
/// Free (according to CUDA): 27.19 MiB
/// PyTorch limit (set by user-supplied memory fraction)
///                         : 17179869184.00 GiB
/// ```
///
/// Without a fraction the limit is 2^64 - 1 bytes, as in this one. Programs often show the first line alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CudaMallocAsyncMessage {
    /// The device.
    pub device: u32,
    /// What PyTorch had allocated, as it was requested.
    pub allocated: Option<Size>,
    /// What was requested.
    pub requested: Option<Size>,
    /// The device's memory.
    pub total: Option<Size>,
    /// What the driver said was free.
    pub free: Option<Size>,
    /// The limit; `Some(None)` if no fraction was set.
    pub limit: Option<Option<Size>>,
}

/// The first line.
static HEAD: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"Allocation on device ([0-9]{1,9}) would exceed allowed memory\. \(out of memory\)"));
/// The labels of the figures, and the figures.
static FIGURE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"(Currently allocated|Requested|Device limit|Free \(according to CUDA\)|PyTorch limit \(set by user-supplied memory fraction\)) ?: ?([0-9]{1,20})(?:\.([0-9]{2}))? (bytes|KiB|MiB|GiB)",
    )
});
/// How far behind the first line the figures may be, with prefixes of lines between them.
const FIGURES_NEAR: usize = 1000;

impl CudaMallocAsyncMessage {
    /// The first such message that begins in a part of a text without line breaks, of which more is known behind it.
    pub(super) fn find(text: &str, part: Range<usize>) -> Option<CudaMallocAsyncMessage> {
        let near = &text[..text.floor_char_boundary(part.end + FIGURES_NEAR)];
        let head = HEAD.captures_at(near, part.start)?;
        let (device, begin) = (head[1].parse().ok()?, head.get(0).filter(|head| head.start() < part.end)?.end());
        let mut found = CudaMallocAsyncMessage { device, allocated: None, requested: None, total: None, free: None, limit: None };
        let end = text.floor_char_boundary(begin.saturating_add(FIGURES_NEAR));
        for figure in FIGURE.captures_iter(&text[begin..end]) {
            let shift = match &figure[4] {
                "KiB" => 10,
                "MiB" => 20,
                "GiB" => 30,
                _ => 0,
            };
            let hundredths = figure.get(3).map_or(Some(0), |digits| digits.as_str().parse().ok());
            let size = figure[2].parse().ok().zip(hundredths).and_then(|(whole, part)| Size::new(whole, part, shift));
            let Some(size) = size else { continue };
            // The figures of a later message are not this one's.
            let place = match figure[1].as_bytes()[0] {
                b'C' => &mut found.allocated,
                b'R' => &mut found.requested,
                b'D' => &mut found.total,
                b'F' => &mut found.free,
                _ => {
                    let limit = (size.bytes < u64::MAX).then_some(size);
                    found.limit = found.limit.or(Some(limit));
                    continue;
                }
            };
            *place = place.or(Some(size));
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_framework_is_known_by_its_words_and_the_size_is_read() {
        let known = [
            (
                "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
                Framework::Jax,
                Some(8 << 30),
            ),
            ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21.50GiB.", Framework::Jax, Some(43 << 29)),
            (
                "RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
                Framework::Jax,
                Some(2 << 30),
            ),
            (
                "ResourceExhaustedError: OOM when allocating tensor with shape[64,1024,1024] and type float on /job:localhost/replica:0/\
                 task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]",
                Framework::TensorFlow,
                Some(256 << 20),
            ),
            (
                "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.50GiB (rounded to 2684354560)requested by op",
                Framework::Bfc,
                Some(5 << 29),
            ),
            (
                "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes (allocated so far: 512 bytes).",
                Framework::CuPy,
                Some(8 << 30),
            ),
            (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory",
                Framework::Cuda,
                Some(4 << 30),
            ),
            (
                "failed to allocate 7.50G (8053063680 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
                Framework::Cuda,
                Some(8_053_063_680),
            ),
            ("RuntimeError: CUDA error: out of memory", Framework::Cuda, None),
            ("GPUassert: cudaErrorMemoryAllocation main.cu 12", Framework::Cuda, None),
            ("RuntimeError: HIP error: out of memory", Framework::Hip, None),
            ("hipErrorOutOfMemory: hipMalloc of 512 MiB", Framework::Hip, None),
            ("buffer: allocating 4096.00 MiB on device 0: hipMalloc failed: out of memory", Framework::Hip, Some(4 << 30)),
            ("terminate called: HIP out of memory.", Framework::Plain, None),
            ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Framework::Cuda, None),
            ("terminate called: CUDA out of memory.", Framework::Plain, None),
            ("error: out of GPU memory, trying to allocate 512 MB", Framework::Plain, Some(512 << 20)),
            ("Out of memory: Killed process 712 (python) total-vm:1kB", Framework::System, None),
            (
                "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB, max allowed: 9.07 GB). \
                 Tried to allocate 256.00 MB on private pool.",
                Framework::Mps,
                Some(256 << 20),
            ),
            (
                "[enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate \
                 1073741824 bytes. Error code 12",
                Framework::MainMemory,
                Some(1 << 30),
            ),
        ];
        for (text, framework, wanted_bytes) in known {
            assert_eq!(ForeignMessage::find(text), Some(ForeignMessage { framework, wanted_bytes }), "{text}");
        }
        assert_eq!(ForeignMessage::find("all is well: no memory error"), None);
    }

    #[test]
    fn absurd_sizes_are_no_sizes() {
        let text = "OOM when allocating tensor with shape[99999999999,99999999999] and type float";
        assert_eq!(ForeignMessage::find(text).map(|found| found.wanted_bytes), Some(None));
        let text = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99999999999999999999999 bytes";
        assert_eq!(ForeignMessage::find(text).map(|found| found.wanted_bytes), Some(None));
    }
}

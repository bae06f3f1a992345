//! The sources of out-of-memory messages.

/// The source of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// PyTorch's caching allocator for GPUs, or the allocator of a port to another device (HIP, XPU, NPU, MLU, MUSA).
    PyTorch,
    /// PyTorch's caching allocator, refusing a request because of the program's own memory fraction, without asking
    /// the device.
    Fraction,
    /// PyTorch's other GPU allocator, `backend:cudaMallocAsync`, which leaves caching to the driver.
    CudaMallocAsync,
    /// PyTorch on Apple GPUs.
    Mps,
    /// A table of PyTorch's statistics (`torch.cuda.memory_summary()`).
    Summary,
    /// An assertion inside one of PyTorch's GPU allocators.
    Assertion,
    /// A warning from PyTorch's allocator that the device has refused memory, before the allocator frees what it can and
    /// retries.
    Retry,
    /// TensorFlow.
    TensorFlow,
    /// JAX, or another user of XLA.
    Jax,
    /// The BFC allocator, which is shared by TensorFlow and XLA.
    Bfc,
    /// PaddlePaddle.
    Paddle,
    /// CuPy's memory pool.
    CuPy,
    /// RAPIDS Memory Manager.
    Rmm,
    /// llama.cpp and the programs built on it.
    Ggml,
    /// PyTorch's host memory allocator, or any other host allocator.
    MainMemory,
    /// The operating system, which ended a process because host memory was short.
    System,
    /// An inference server that found too little memory for its cache.
    Server,
    /// NCCL.
    Nccl,
    /// cuBLAS, cuDNN, or AMD's counterparts.
    Library,
    /// CUDA itself: `cudaMalloc` or another call, outside PyTorch's allocator.
    Cuda,
    /// HIP itself, on AMD GPUs.
    Hip,
    /// Level Zero, the driver for Intel GPUs.
    LevelZero,
    /// The driver of a different accelerator.
    Driver,
    /// A kernel that needs more of a multiprocessor's memory than exists; no allocator manages that memory.
    Kernel,
    /// A source that states only that CUDA, HIP or the GPU is out of memory.
    Plain,
}

impl Source {
    /// Its name, for use in a sentence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Source::PyTorch | Source::Fraction => "PyTorch's GPU allocator",
            Source::CudaMallocAsync => "PyTorch's cudaMallocAsync backend",
            Source::Mps => "PyTorch on Apple GPUs (MPS)",
            Source::Summary => "torch.cuda.memory_summary()",
            Source::Assertion => "PyTorch's GPU allocator, about an internal error",
            Source::Retry => "PyTorch's GPU allocator, before a retry",
            Source::TensorFlow => "TensorFlow",
            Source::Jax => "JAX (XLA)",
            Source::Bfc => "the BFC allocator in TensorFlow or XLA",
            Source::Paddle => "PaddlePaddle",
            Source::CuPy => "CuPy",
            Source::Rmm => "RAPIDS Memory Manager (RMM)",
            Source::Ggml => "llama.cpp (ggml)",
            Source::MainMemory => "a host memory allocator (not the GPU's)",
            Source::System => "the operating system, about host memory (not the GPU's)",
            Source::Server => "an inference server, about its cache",
            Source::Nccl => "NCCL",
            Source::Library => "cuBLAS, cuDNN or a similar library",
            Source::Cuda => "CUDA itself",
            Source::Hip => "HIP itself",
            Source::LevelZero => "Level Zero",
            Source::Driver => "the device's driver",
            Source::Kernel => "a kernel compiler, about the memory of a multiprocessor",
            Source::Plain => "a program that states no figures",
        }
    }

    /// Whether the figures in its messages are identified by words, as in those of PyTorch's GPU allocator.
    pub(super) const fn has_figures(self) -> bool {
        matches!(self, Source::CudaMallocAsync | Source::Mps | Source::Summary | Source::Driver)
    }

    /// Whether its signs are words that also occur in or around PyTorch's own messages; they count only in a log that has
    /// none of those messages.
    pub(super) const fn is_general(self) -> bool {
        use Source::{Assertion, Cuda, Driver, Hip, Kernel, LevelZero, Library, Nccl, Plain, Retry, Server, Summary};
        matches!(self, Cuda | Hip | Plain | Library | Nccl | Retry | Assertion | Server | LevelZero | Driver | Kernel | Summary)
    }
}

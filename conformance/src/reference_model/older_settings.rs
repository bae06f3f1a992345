//! A second reader for the settings string of releases before 2.10, which have one parser for all keys and expect a certain
//! separator after each token. From PyTorch's `CUDAAllocatorConfig.cpp`; in 2.1, the parser is in
//! `CUDACachingAllocator.cpp`.

use parkade::settings::{Backend, ErrorKind, Settings};

use super::settings::{Refusal, clamped, double, is_key_of, sign_of};

/// The sizes in a string, in MiB, must be larger than this.
const LARGE_MIB: u64 = 20;

/// White space in C.
const BLANKS: [char; 6] = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];

/// A settings string in the dialect of a release before 2.10. Reading consumes its tokens.
pub struct OlderReader {
    /// The tokens, last one first.
    tokens: Vec<String>,
    minor: u32,
}

fn check_error<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err((ErrorKind::Check, text.into()))
}

impl OlderReader {
    /// Splits a string into tokens, as release 2.`minor` does: only spaces are removed.
    #[must_use]
    pub fn new(text: &str, minor: u32) -> OlderReader {
        let text = text.replace(' ', "");
        let is_separator = |letter: char| matches!(letter, ',' | ':' | '[' | ']');
        let pieces = text.split_inclusive(is_separator).flat_map(|piece| match piece.char_indices().next_back() {
            Some((last, letter)) if is_separator(letter) => vec![&piece[..last], &piece[last..]],
            _ => vec![piece],
        });
        let mut tokens: Vec<String> = pieces.filter(|token| !token.is_empty()).map(str::to_owned).collect();
        tokens.reverse();
        OlderReader { tokens, minor }
    }

    /// Returns the backend that the environment selects: the first known one that is the value of a key `backend`.
    #[must_use]
    pub fn backend(text: &str) -> Backend {
        for option in text.split(|letter| letter == ',' || BLANKS.contains(&letter)) {
            let Some(rest) = option.strip_prefix("backend:") else { continue };
            match rest.trim_start_matches(':').split(':').next() {
                Some("native") => return Backend::Native,
                Some("cudaMallocAsync") => return Backend::CudaMallocAsync,
                _ => {}
            }
        }
        Backend::Native
    }

    fn is_next(&self, token: &str) -> bool {
        self.tokens.last().is_some_and(|next| next == token)
    }

    fn expect(&mut self, separator: &str) -> Result<(), Refusal> {
        if !self.is_next(separator) {
            return check_error(format!("Error parsing CachingAllocator settings, expected {separator}"));
        }
        self.tokens.pop();
        Ok(())
    }

    fn value(&mut self, missing: &str) -> Result<String, Refusal> {
        self.tokens.pop().map_or_else(|| check_error(missing), Ok)
    }

    /// Reads all keys and changes the settings; those before an error keep their new values.
    ///
    /// # Errors
    /// PyTorch's error.
    pub fn read(mut self, settings: &mut Settings) -> Result<(), Refusal> {
        settings.max_split_bytes = u64::MAX;
        settings.roundup_power2_divisions = [0; 16];
        settings.garbage_collection_threshold = 0.0;
        while let Some(key) = self.tokens.pop() {
            if !is_key_of(self.minor, &key) {
                return check_error(format!("Unrecognized CachingAllocator option: {key}"));
            }
            self.expect(":")?;
            self.set(settings, &key)?;
            if !self.tokens.is_empty() {
                self.expect(",")?;
            }
        }
        Ok(())
    }

    fn set(&mut self, settings: &mut Settings, key: &str) -> Result<(), Refusal> {
        match key {
            "max_split_size_mb" => settings.max_split_bytes = self.size(key)?,
            "max_non_split_rounding_mb" => settings.max_non_split_rounding_bytes = self.size(key)?,
            "garbage_collection_threshold" => settings.garbage_collection_threshold = self.threshold()?,
            "roundup_power2_divisions" => self.divisions(&mut settings.roundup_power2_divisions)?,
            "expandable_segments" => settings.expandable_segments = self.flag(key)?,
            "pinned_use_background_threads" => settings.pinned_use_background_threads = self.flag(key)?,
            "graph_capture_record_stream_reuse" => settings.graph_capture_record_stream_reuse = self.flag(key)?,
            "release_lock_on_cudamalloc" | "release_lock_on_hipmalloc" => {
                settings.release_lock_on_cudamalloc = self.flag("release_lock_on_cudamalloc")?;
            }
            "pinned_use_cuda_host_register" | "pinned_use_hip_host_register" => {
                settings.pinned_use_cuda_host_register = self.flag("pinned_use_cuda_host_register")?;
            }
            "pinned_num_register_threads" => settings.pinned_num_register_threads = self.threads()?,
            _ => self.check_backend(settings.backend)?,
        }
        Ok(())
    }

    fn size(&mut self, key: &str) -> Result<u64, Refusal> {
        let mib = stoi(&self.value(&format!("Error, expecting {key} value"))?)?;
        if mib > LARGE_MIB {
            Ok(clamped(mib))
        } else {
            check_error(format!("CachingAllocator option {key} too small, must be > {LARGE_MIB}"))
        }
    }

    fn threshold(&mut self) -> Result<f64, Refusal> {
        let text = self.value("Error, expecting garbage_collection_threshold value")?;
        let number = double(text.trim_start_matches(BLANKS)).map_err(|kind| (kind, "stod".to_owned()))?;
        if number > 0.0 && number < 1.0 {
            Ok(number)
        } else if number >= 1.0 {
            check_error("garbage_collect_threshold too big, set it 0.0~1.0")
        } else {
            check_error("garbage_collect_threshold too small, set it 0.0~1.0")
        }
    }

    fn flag(&mut self, key: &str) -> Result<bool, Refusal> {
        match self.tokens.pop().as_deref() {
            Some("True") => Ok(true),
            Some("False") => Ok(false),
            _ => check_error(format!("Expected a single True/False argument for {key}")),
        }
    }

    fn threads(&mut self) -> Result<u64, Refusal> {
        match stoi(&self.value("Error, expecting pinned_num_register_threads value")?)? {
            threads if threads.count_ones() != 1 => check_error("Number of register threads has to be power of 2 "),
            threads if threads > 128 => check_error("Number of register threads should be less than or equal to 128"),
            threads => Ok(threads),
        }
    }

    fn check_backend(&mut self, loaded: Backend) -> Result<(), Refusal> {
        let name = self.value("Error parsing backend value")?;
        let backend = match name.as_str() {
            "native" => Backend::Native,
            "cudaMallocAsync" => Backend::CudaMallocAsync,
            _ => return check_error("Unknown allocator backend, options are native and cudaMallocAsync"),
        };
        if backend == loaded {
            return Ok(());
        }
        let place = match self.minor {
            1 => "../c10/cuda/CUDACachingAllocator.cpp\":1058",
            2 => "../c10/cuda/CUDAAllocatorConfig.cpp\":225",
            3 => "../c10/cuda/CUDAAllocatorConfig.cpp\":226",
            4 | 5 => "../c10/cuda/CUDAAllocatorConfig.cpp\":227",
            6 | 7 => "/pytorch/c10/cuda/CUDAAllocatorConfig.cpp\":250",
            8 => "/pytorch/c10/cuda/CUDAAllocatorConfig.cpp\":287",
            _ => "/pytorch/c10/cuda/CUDAAllocatorConfig.cpp\":288",
        };
        let says = "Allocator backend parsed at runtime != allocator backend parsed at load time";
        let text =
            format!("config[i] == get()->name() INTERNAL ASSERT FAILED at \"{place}, please report a bug to PyTorch. {says}");
        Err((ErrorKind::Internal, text))
    }

    /// Returns the error for a number of divisions that is no power of two.
    fn not_a_power<T>(&self, ending: &str) -> Result<T, Refusal> {
        let divisions = if self.minor < 8 { "divisons" } else { "divisions" };
        check_error(format!("For roundups, the {divisions} has to be power of 2 {ending}"))
    }

    fn divisions(&mut self, slots: &mut [u64; 16]) -> Result<(), Refusal> {
        if self.is_next("[") {
            self.tokens.pop();
            return self.list(slots);
        }
        let divisions = stoi(&self.value("Error, expecting roundup_power2_divisions value")?)?;
        if divisions.count_ones() != 1 {
            return self.not_a_power("");
        }
        *slots = [divisions; 16];
        Ok(())
    }

    /// Reads the list up to its end or to the end of the string.
    fn list(&mut self, slots: &mut [u64; 16]) -> Result<(), Refusal> {
        let may_be_zero = self.minor >= 4;
        let mut named: Option<usize> = None;
        while let Some(interval) = self.tokens.pop().filter(|token| token != "]") {
            self.expect(":")?;
            let divisions = stoi(&self.value("Error parsing roundup_power2_divisions value")?)?;
            match divisions.count_ones() {
                1 => {}
                0 if may_be_zero => {}
                _ => return self.not_a_power(if may_be_zero { "or 0 to disable roundup " } else { "" }),
            }
            if interval == ">" {
                // The interval named last is overwritten too.
                slots[named.unwrap_or(0)..].fill(divisions);
            } else {
                let mib = stoul(&interval)?;
                if mib.count_ones() != 1 {
                    return check_error("For roundups, the intervals have to be power of 2 ");
                }
                let slot = (mib.ilog2() as usize).min(15);
                if named.is_none() {
                    slots[..slot].fill(divisions);
                }
                slots[slot] = divisions;
                named = Some(slot);
            }
            if !self.is_next("]") {
                self.expect(",")?;
            }
        }
        Ok(())
    }
}

/// Returns the integer at the beginning of a text, after white space.
fn integer(text: &str, function: &str) -> Result<i128, Refusal> {
    let (sign, rest) = sign_of(text.trim_start_matches(BLANKS));
    let digits = &rest[..rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len())];
    if digits.is_empty() {
        return Err((ErrorKind::InvalidNumber, function.to_owned()));
    }
    let number: i128 = digits.parse().map_err(|_| (ErrorKind::NumberOutOfRange, function.to_owned()))?;
    Ok(number * sign as i128)
}

/// Reads an unsigned integer of 64 bits. A negative one wraps around.
fn stoul(text: &str) -> Result<u64, Refusal> {
    let number = integer(text, "stoul")?;
    let size = u64::try_from(number.unsigned_abs()).map_err(|_| (ErrorKind::NumberOutOfRange, "stoul".to_owned()))?;
    Ok(if number < 0 { size.wrapping_neg() } else { size })
}

/// Reads a 32-bit integer, which PyTorch converts to an unsigned number of 64 bits.
fn stoi(text: &str) -> Result<u64, Refusal> {
    let number = i32::try_from(integer(text, "stoi")?).map_err(|_| (ErrorKind::NumberOutOfRange, "stoi".to_owned()))?;
    Ok(i64::from(number) as u64)
}

//! What can go wrong with NVML: the library is not there, or a call fails.

use thiserror::Error;

/// NVML could not be opened, or a call failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NvmlError {
    /// The library could not be opened.
    #[error("no NVML ({reason})")]
    NoLibrary {
        /// The loader's error, which names the library.
        reason: String,
    },
    /// The library lacks this function: the driver is too old, or the library is something else.
    #[error("NVML has no {0}: driver 450 or newer has it")]
    MissingSymbol(&'static str),
    /// A call failed.
    #[error("{call}: {} (NVML code {code})", meaning(*code))]
    Refused {
        /// The call, by its name in NVML.
        call: &'static str,
        /// NVML's result code (an `nvmlReturn_t`), as a number, because a newer library has codes that older
        /// headers do not name.
        code: u32,
    },
}

/// Result code: not supported by this device or driver.
pub(super) const NOT_SUPPORTED: u32 = 3;
/// Result code: there are more entries than the buffer has room for.
pub(super) const INSUFFICIENT_SIZE: u32 = 7;

/// What a result code means, and what to do about it if something can be done.
const fn meaning(code: u32) -> &'static str {
    match code {
        2 => "an argument is not valid",
        NOT_SUPPORTED => "not supported by this device",
        4 => "no permission: ask as root, or as the owner of the MIG instance",
        6 => "not found",
        INSUFFICIENT_SIZE => "the list grew while it was read: ask again",
        9 => "the driver's kernel module is not loaded",
        10 => "timed out",
        12 => "a library of the driver was not found",
        13 => "the driver lacks the function",
        15 => "the device is lost: it fell off the bus, or was reset",
        16 => "the device needs a reset",
        17 => "the operating system refuses access to the device",
        18 => "the library and the kernel module have different versions: the driver was updated and not loaded again",
        _ => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_call_the_code_and_the_reason() {
        let refused = |code| NvmlError::Refused { call: "nvmlInit_v2", code }.to_string();
        assert_eq!(refused(9), "nvmlInit_v2: the driver's kernel module is not loaded (NVML code 9)");
        assert_eq!(refused(4), "nvmlInit_v2: no permission: ask as root, or as the owner of the MIG instance (NVML code 4)");
        assert_eq!(refused(4_000_000_000), "nvmlInit_v2: failed (NVML code 4000000000)");
    }
}

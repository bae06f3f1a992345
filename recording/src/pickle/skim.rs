//! Steps through the opcodes of a pickle without building anything, while the pickle is still being decompressed.
//!
//! A few kilobytes can decompress to gigabytes. The bytes so far show whether it is worth reading more: all opcodes must
//! exist, strings must not be longer than those in a snapshot, and the number of values must be in proportion to the number
//! of bytes.

use super::opcode::*;

/// The maximum length of a string, in bytes: 16 MiB. The longest string in a snapshot is its settings string.
const LONGEST_TEXT: u64 = 16 << 20;
/// The maximum number of values that one list, dict or tuple opcode takes from the stack. Python's picklers write 1,000 at a
/// time.
const MOST_AT_ONCE: u64 = 1 << 22;
/// The maximum memory for each byte, in bytes, if every value is kept: that of one-byte numbers in a list, doubled.
const MEMORY_A_BYTE: u64 = 6;
/// The memory that a small pickle may need, regardless of how few bytes it has.
const MEMORY_AT_LEAST: u64 = 64 << 20;

/// The state of processing a pickle.
#[derive(Debug, Default)]
pub(crate) struct Skim {
    /// The next opcode's offset, which may lie beyond the bytes so far.
    at: u64,
    /// The approximate number of bytes of memory that the values take.
    memory: u64,
    /// The number of values pushed since an opcode last took values from the stack.
    loose: u64,
    /// The offset at which the pickle ended, and why.
    ended: Option<(u64, &'static str)>,
}

/// The operand of an opcode.
enum Follows {
    Bytes(u64),
    /// The operand is this many lines.
    Lines(usize),
    /// A length of this many bytes, followed by that number of bytes.
    Counted(usize),
}

impl Skim {
    /// Returns the number of bytes that have been processed. These bytes are not needed again.
    pub(crate) fn done(&self) -> u64 {
        self.at
    }

    /// Continues with the bytes so far; `bytes` begins at `offset`. When the pickle has ended, returns where and why.
    pub(crate) fn advance(&mut self, bytes: &[u8], offset: u64) -> Option<(u64, &'static str)> {
        while self.ended.is_none() {
            let at = self.at.checked_sub(offset).and_then(|at| usize::try_from(at).ok());
            let rest = at.and_then(|at| bytes.get(at..)).unwrap_or_default();
            let Some((&code, operand)) = rest.split_first() else { break };
            let Some(length) = self.length(code, operand) else { break };
            self.count(code);
            self.at = self.at.saturating_add(1 + length);
        }
        self.ended
    }

    /// Returns the length of an opcode's operand, in bytes. Returns `None` if the bytes so far do not contain it, or if the
    /// pickle ends.
    fn length(&mut self, code: u8, operand: &[u8]) -> Option<u64> {
        match follows(code) {
            None => {
                self.ended = Some((
                    self.at,
                    if code == STOP { "the pickle ends" } else { "there is an opcode that no snapshot contains" },
                ));
                None
            }
            Some(Follows::Bytes(count)) => Some(count),
            Some(Follows::Lines(count)) => {
                let mut ends = operand.iter().enumerate().filter(|&(_, &byte)| byte == b'\n');
                match ends.nth(count - 1) {
                    Some((end, _)) => Some(end as u64 + 1),
                    None => self.check_text(operand.len() as u64).and(None),
                }
            }
            Some(Follows::Counted(width)) => {
                let mut count = [0; 8];
                count[..width].copy_from_slice(operand.get(..width)?);
                let count = u64::from_le_bytes(count);
                self.check_text(count)?;
                Some(width as u64 + count)
            }
        }
    }

    fn check_text(&mut self, length: u64) -> Option<()> {
        if length > LONGEST_TEXT {
            self.ended = Some((self.at, "there is a string longer than 16 MiB"));
            return None;
        }
        Some(())
    }

    fn count(&mut self, code: u8) {
        let (memory, takes) = match code {
            EMPTY_DICT | EMPTY_LIST | EMPTY_TUPLE | TUPLE1 | TUPLE2 | TUPLE3 => (24, false),
            TUPLE | LIST | DICT => (24, true),
            APPEND | APPENDS | SETITEM | SETITEMS => (0, true),
            POP | POP_MARK | PROTO | FRAME => (0, false),
            _ => (8, false),
        };
        self.memory += memory;
        self.loose = if takes { 0 } else { self.loose + u64::from(memory > 0) };
        if self.memory > MEMORY_AT_LEAST.max(self.at.saturating_mul(MEMORY_A_BYTE)) || self.loose > MOST_AT_ONCE {
            self.ended = Some((self.at, "there are far more values than a snapshot of this length contains"));
        }
    }
}

/// Returns the operand of an opcode, or `None` for STOP, and for opcodes that are refused or do not exist.
fn follows(code: u8) -> Option<Follows> {
    Some(match code {
        PROTO | BINGET | BINPUT | BININT1 => Follows::Bytes(1),
        BININT2 => Follows::Bytes(2),
        BININT | LONG_BINGET | LONG_BINPUT => Follows::Bytes(4),
        BINFLOAT | FRAME => Follows::Bytes(8),
        INT | LONG | FLOAT | STRING | UNICODE | GET | PUT => Follows::Lines(1),
        LONG1 | SHORT_BINSTRING | SHORT_BINUNICODE | SHORT_BINBYTES => Follows::Counted(1),
        LONG4 | BINSTRING | BINUNICODE | BINBYTES => Follows::Counted(4),
        BINUNICODE8 | BINBYTES8 | BYTEARRAY8 => Follows::Counted(8),
        MARK | POP | POP_MARK | DUP | NONE | NEWTRUE | NEWFALSE | APPEND | APPENDS | SETITEM | SETITEMS | MEMOIZE | DICT
        | LIST | TUPLE | EMPTY_DICT | EMPTY_LIST | EMPTY_TUPLE | TUPLE1 | TUPLE2 | TUPLE3 | REDUCE => Follows::Bytes(0),
        // The only accepted import: a module and a name.
        GLOBAL => Follows::Lines(2),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the end of a pickle whose bytes arrive in pieces.
    fn end(bytes: &[u8]) -> Option<(u64, &'static str)> {
        let mut skim = Skim::default();
        for so_far in (0..bytes.len()).step_by(1 + bytes.len() / 50) {
            let _ = skim.advance(&bytes[..so_far], 0);
        }
        skim.advance(bytes, 0)
    }

    #[test]
    #[cfg_attr(target_family = "wasm", ignore = "there are no files")]
    fn a_pickle_ends_where_it_stops() {
        for name in
            ["snapshot.protocol0", "snapshot.protocol2", "snapshot.protocol4", "snapshot.protocol5", "old", "newer", "list"]
        {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.pickle"));
            let bytes = std::fs::read(path).expect("a file");
            assert_eq!(end(&bytes), Some((bytes.len() as u64 - 1, "the pickle ends")), "{name}");
            assert_eq!(end(&bytes[..bytes.len() - 1]), None, "{name}: it goes on");
        }
    }

    #[test]
    fn what_no_snapshot_has_ends_it() {
        let many = "there are far more values than a snapshot of this length contains";
        let said = |bytes: &[u8]| end(bytes).map(|(at, what)| (at < 16 << 20, what));
        assert_eq!(end(b"\x80\x02\0\0"), Some((2, "there is an opcode that no snapshot contains")));
        assert_eq!(said(&[b"(".to_vec(), vec![b'N'; 16 << 20]].concat()), Some((true, many)));
        assert_eq!(said(&b"](]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]e0".repeat(1 << 18)), Some((true, many)));
        assert_eq!(
            said(&[&b"\x8e"[..], &u64::MAX.to_le_bytes(), b"A"].concat()),
            Some((true, "there is a string longer than 16 MiB"))
        );
        assert_eq!(said(&[&b"V"[..], &vec![b'A'; 17 << 20]].concat()), Some((true, "there is a string longer than 16 MiB")));
    }
}

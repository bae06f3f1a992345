//! Writes pickles as other programs might write them: with any protocol, any encoding of a number or a text, with or
//! without a memo, and with fields that are missing, repeated or of the wrong type.
//!
//! parkade's own writer produces only correct pickles, in PyTorch's two styles.
//!
//! Recordings are also written in this way; their keys are those in spec 7.3 to 7.5.

use std::collections::HashMap;

use parkade_recording::{Action, Annotation, Block, Entry, RecordedSettings, Recording, Segment, StackId};

use crate::choices::Choices;

/// The encoding of a pickle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spelling {
    /// Python's pickle protocol, 0 to 5.
    pub(crate) protocol: u8,
    /// Whether texts are written once and referred to afterwards.
    pub(crate) memoises: bool,
}

impl Spelling {
    /// Returns one of the encodings, usually that of `_dump_snapshot`.
    pub(crate) fn any(choices: &mut Choices<'_>) -> Spelling {
        let protocol = if choices.below(4) < 3 { 4 } else { choices.below(6) as u8 };
        Spelling { protocol, memoises: !choices.once_in(8) }
    }
}

/// A pickle that is being written.
pub(crate) struct Pickle<'c, 'b> {
    bytes: Vec<u8>,
    spelling: Spelling,
    choices: &'c mut Choices<'b>,
    texts: HashMap<String, u32>,
    memoised: u32,
    /// The number of fields still to be written correctly.
    sound_fields: usize,
    /// The number of fields that may still be corrupted.
    spoils: usize,
}

impl<'c, 'b> Pickle<'c, 'b> {
    /// Creates an empty pickle; at most `spoils` of its fields will be corrupted.
    pub(crate) fn new(spelling: Spelling, spoils: usize, choices: &'c mut Choices<'b>) -> Pickle<'c, 'b> {
        let bytes = if spelling.protocol >= 2 { vec![0x80, spelling.protocol] } else { Vec::new() };
        let mut pickle =
            Pickle { bytes, spelling, choices, texts: HashMap::new(), memoised: 0, sound_fields: usize::MAX, spoils };
        pickle.plan_next();
        pickle
    }

    fn plan_next(&mut self) {
        let shift = 2 + self.choices.below(9);
        self.sound_fields = if self.spoils == 0 { usize::MAX } else { self.choices.below(1 << shift) };
        self.spoils = self.spoils.saturating_sub(1);
    }

    /// Returns the complete pickle.
    #[must_use]
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    /// Writes a dict; `fields` writes its fields.
    pub(crate) fn dict(&mut self, fields: impl FnOnce(&mut Self)) {
        self.bytes.extend(if self.spelling.protocol == 0 { &b"(d("[..] } else { &b"}("[..] });
        fields(self);
        self.bytes.push(b'u');
    }

    /// Writes a list.
    pub(crate) fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        self.bytes.extend(if self.spelling.protocol == 0 { &b"(l("[..] } else { &b"]("[..] });
        for value in items {
            item(self, value);
        }
        self.bytes.push(b'e');
    }

    /// Writes a field of a dict: the key, and what `value` writes. The field is occasionally
    /// corrupted.
    pub(crate) fn field(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        if self.sound_fields > 0 {
            self.sound_fields -= 1;
            self.text(key);
            return value(self);
        }
        self.plan_next();
        match self.choices.below(6) {
            // The key is omitted.
            0 => {}
            1 => {
                self.text("a_key_of_tomorrow");
                self.wrong_value();
                self.text(key);
                value(self);
            }
            // If a key occurs twice, the last one counts.
            2 => {
                self.text(key);
                self.wrong_value();
                self.text(key);
                value(self);
            }
            3 => {
                self.text(key);
                let absurd = self.choices.size();
                self.integer(i128::from(absurd));
            }
            _ => {
                self.text(key);
                self.wrong_value();
            }
        }
    }

    /// Writes a value that probably has the wrong type.
    fn wrong_value(&mut self) {
        match self.choices.below(12) {
            0 => self.bytes.push(b'N'),
            1 => self.boolean(true),
            2 => self.float(f64::NAN),
            3 => self.text(""),
            4 => self.text("active_allocated"),
            5 => self.integer(-1),
            6 => self.integer(i128::from(u64::MAX) + 1),
            // An integer with 200 bits.
            7 => self.bytes.extend([&[0x8a, 25][..], &[0x7f; 25]].concat()),
            8 => self.bytes.extend(if self.spelling.protocol == 0 { &b"(l"[..] } else { &b"]"[..] }),
            9 => self.bytes.extend(b"(}u]e"),
            10 => self.pair((u64::MAX, 0)),
            _ => self.text(&"x".repeat(70_000)),
        }
    }

    /// Writes a text or, if it was written before, possibly a reference to it.
    pub(crate) fn text(&mut self, text: &str) {
        if let Some(&slot) = self.texts.get(text) {
            return match u8::try_from(slot) {
                _ if self.spelling.protocol == 0 => self.bytes.extend(format!("g{slot}\n").bytes()),
                Ok(short) => self.bytes.extend([b'h', short]),
                Err(_) => {
                    self.bytes.push(b'j');
                    self.bytes.extend(slot.to_le_bytes());
                }
            };
        }
        match (self.spelling.protocol, u8::try_from(text.len())) {
            (0, _) => {
                let escaped = text.replace('\\', "\\u005c").replace('\n', "\\u000a").replace('\r', "\\u000d");
                // Protocol 0 uses Latin-1 with escapes.
                let escaped =
                    escaped.chars().map(|c| if c.is_ascii() { c.to_string() } else { format!("\\U{:08x}", u32::from(c)) });
                self.bytes.push(b'V');
                self.bytes.extend(escaped.collect::<String>().bytes());
                self.bytes.push(b'\n');
            }
            (4.., Ok(short)) => self.bytes.extend([&[0x8c, short], text.as_bytes()].concat()),
            _ => {
                self.bytes.push(b'X');
                self.bytes.extend((text.len() as u32).to_le_bytes());
                self.bytes.extend(text.as_bytes());
            }
        }
        if self.spelling.memoises {
            self.memoise();
            self.texts.insert(text.to_owned(), self.memoised - 1);
        }
    }

    fn memoise(&mut self) {
        match (self.spelling.protocol, u8::try_from(self.memoised)) {
            (0, _) => self.bytes.extend(format!("p{}\n", self.memoised).bytes()),
            (4.., _) => self.bytes.push(0x94),
            (_, Ok(short)) => self.bytes.extend([b'q', short]),
            _ => {
                self.bytes.push(b'r');
                self.bytes.extend(self.memoised.to_le_bytes());
            }
        }
        self.memoised += 1;
    }

    /// Writes a boolean.
    pub(crate) fn boolean(&mut self, value: bool) {
        let spelled = match (self.spelling.protocol, value) {
            (0 | 1, true) => &b"I01\n"[..],
            (0 | 1, false) => &b"I00\n"[..],
            (_, true) => &[0x88][..],
            (_, false) => &[0x89][..],
        };
        self.bytes.extend(spelled);
    }

    /// Writes a float.
    pub(crate) fn float(&mut self, value: f64) {
        if self.spelling.protocol == 0 {
            self.bytes.extend(format!("F{value}\n").bytes());
        } else {
            self.bytes.push(b'G');
            self.bytes.extend(value.to_be_bytes());
        }
    }

    /// Writes an integer.
    pub(crate) fn integer(&mut self, value: i128) {
        match (self.spelling.protocol, i32::try_from(value)) {
            (0, Ok(_)) => self.bytes.extend(format!("I{value}\n").bytes()),
            (0 | 1, Err(_)) => self.bytes.extend(format!("L{value}L\n").bytes()),
            (_, Ok(short)) if (0..256).contains(&short) => self.bytes.extend([b'K', short as u8]),
            (_, Ok(short)) => {
                self.bytes.push(b'J');
                self.bytes.extend(short.to_le_bytes());
            }
            _ => {
                self.bytes.extend([0x8a, 16]);
                self.bytes.extend(value.to_le_bytes());
            }
        }
    }

    /// Writes a tuple of two numbers.
    pub(crate) fn pair(&mut self, pair: (u64, u64)) {
        if self.spelling.protocol < 2 {
            self.bytes.push(b'(');
        }
        self.integer(pair.0.into());
        self.integer(pair.1.into());
        self.bytes.push(if self.spelling.protocol < 2 { b't' } else { 0x86 });
    }
}

/// Returns the pickle of a recording; at most `spoils` of its fields are missing, repeated or of the wrong type.
pub(crate) fn spell(recording: &Recording, spelling: Spelling, spoils: usize, choices: &mut Choices<'_>) -> Vec<u8> {
    let is_bare_list = choices.once_in(12);
    let mut pickle = Pickle::new(spelling, spoils, choices);
    let segments =
        || recording.devices.iter().flat_map(|device| device.segments.iter().map(move |segment| (device.device, segment)));
    if is_bare_list {
        pickle.list(segments(), |pickle, (device, segment)| self::segment(pickle, recording, device, segment));
        return pickle.finish();
    }
    pickle.dict(|pickle| {
        pickle.field("segments", |pickle| {
            pickle.list(segments(), |pickle, (device, segment)| self::segment(pickle, recording, device, segment));
        });
        pickle.field("device_traces", |pickle| {
            let devices = recording.devices.iter().map(|device| device.device + 1).max().unwrap_or(0);
            pickle.list(0..devices, |pickle, number| {
                let device = recording.devices.iter().find(|device| device.device == number);
                pickle.list(device.into_iter().flat_map(|device| &device.trace), |pickle, entry| {
                    self::entry(pickle, recording, entry, device.and_then(|device| device.pools.get(entry.pool)));
                });
            });
        });
        if let Some(settings) = &recording.settings {
            pickle.field("allocator_settings", |pickle| self::settings(pickle, settings));
        }
        pickle.field("external_annotations", |pickle| pickle.list(&recording.annotations, annotation));
    });
    pickle.finish()
}

type Spelled<'p, 'c, 'b> = &'p mut Pickle<'c, 'b>;

fn number(pickle: Spelled<'_, '_, '_>, key: &str, value: impl Into<i128>) {
    let value = value.into();
    pickle.field(key, |pickle| pickle.integer(value));
}

fn optional(pickle: Spelled<'_, '_, '_>, key: &str, value: Option<impl Into<i128>>) {
    if let Some(value) = value {
        number(pickle, key, value);
    }
}

fn flag(pickle: Spelled<'_, '_, '_>, key: &str, value: Option<bool>) {
    if let Some(value) = value {
        pickle.field(key, |pickle| pickle.boolean(value));
    }
}

fn segment(pickle: Spelled<'_, '_, '_>, recording: &Recording, device: u32, segment: &Segment) {
    pickle.dict(|pickle| {
        number(pickle, "device", device);
        number(pickle, "address", segment.address);
        number(pickle, "total_size", segment.total_bytes);
        optional(pickle, "allocated_size", segment.allocated_bytes);
        optional(pickle, "active_size", segment.active_bytes);
        optional(pickle, "requested_size", segment.requested_bytes);
        number(pickle, "stream", segment.stream);
        pickle.field("segment_type", |pickle| pickle.text(if segment.large { "large" } else { "small" }));
        if let Some(pool) = segment.pool {
            pickle.field("segment_pool_id", |pickle| pickle.pair(pool));
        }
        flag(pickle, "is_expandable", Some(segment.expandable));
        stack(pickle, recording, segment.stack);
        pickle.field("blocks", |pickle| pickle.list(&segment.blocks, |pickle, block| self::block(pickle, recording, block)));
    });
}

fn block(pickle: Spelled<'_, '_, '_>, recording: &Recording, block: &Block) {
    pickle.dict(|pickle| {
        number(pickle, "address", block.address);
        number(pickle, "size", block.size);
        optional(pickle, "requested_size", block.requested);
        pickle.field("state", |pickle| pickle.text(block.state.name()));
        stack(pickle, recording, block.stack);
    });
}

fn entry(pickle: Spelled<'_, '_, '_>, recording: &Recording, entry: &Entry, pool: Option<(u64, u64)>) {
    pickle.dict(|pickle| {
        pickle.field("action", |pickle| pickle.text(entry.action.name()));
        number(pickle, if entry.action == Action::Oom { "device_free" } else { "addr" }, entry.address);
        number(pickle, "size", entry.size);
        number(pickle, "stream", entry.stream);
        optional(pickle, "time_us", entry.time());
        stack(pickle, recording, entry.stack);
        if let Some(pool) = pool {
            pickle.field("pool_id", |pickle| pickle.pair(pool));
        }
    });
}

fn stack(pickle: Spelled<'_, '_, '_>, recording: &Recording, stack: StackId) {
    if stack == StackId::NONE {
        return;
    }
    pickle.field("frames", |pickle| {
        pickle.list(recording.stacks.frames(stack), |pickle, frame| {
            pickle.dict(|pickle| {
                pickle.field("filename", |pickle| pickle.text(&frame.filename));
                number(pickle, "line", frame.line);
                pickle.field("name", |pickle| pickle.text(&frame.name));
            });
        });
    });
}

fn settings(pickle: Spelled<'_, '_, '_>, settings: &RecordedSettings) {
    pickle.dict(|pickle| {
        if let Some(text) = &settings.text {
            pickle.field("PYTORCH_CUDA_ALLOC_CONF", |pickle| pickle.text(text));
        }
        optional(pickle, "max_split_size", settings.max_split_size);
        if let Some(threshold) = settings.garbage_collection_threshold {
            pickle.field("garbage_collection_threshold", |pickle| pickle.float(threshold));
        }
        flag(pickle, "expandable_segments", settings.expandable_segments);
        flag(pickle, "release_lock_on_cudamalloc", settings.release_lock_on_cudamalloc);
        flag(pickle, "graph_capture_record_stream_reuse", settings.graph_capture_record_stream_reuse);
        if settings.has_newer_keys {
            number(pickle, "max_round_threshold", 0);
        }
        if let Some(divisions) = settings.roundup_power2_divisions {
            pickle.field("roundup_power2_divisions", |pickle| {
                pickle.dict(|pickle| {
                    for (place, division) in divisions.into_iter().enumerate() {
                        number(pickle, &(1 << place).to_string(), division);
                    }
                });
            });
        }
    });
}

fn annotation(pickle: Spelled<'_, '_, '_>, annotation: &Annotation) {
    pickle.dict(|pickle| {
        pickle.field("stage", |pickle| pickle.text(&annotation.stage));
        pickle.field("name", |pickle| pickle.text(&annotation.name));
        optional(pickle, "device", annotation.device);
        optional(pickle, "time_us", annotation.time_us);
    });
}

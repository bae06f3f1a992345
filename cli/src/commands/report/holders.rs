//! Shows who holds the memory at its peak: by kind (parameters, gradients, activations and so on), how the kind was recognised,
//! and whether the blocks live across the run's steps; and by the code that requested it. The results are rows of the page's
//! tables; the kinds also appear as a table for terminals and in JSON. The script shows the same for other moments
//! (`web/holders.js`, `web/kinds.js`).

use std::fmt::Write as _;

use parkade_analysis::holders::{Held, How, Kind, KindUse, StepLife, StepMark, Steps, Told, WithoutStack};
use parkade_analysis::timeline::HolderKey;
use parkade_recording::StackId;

use super::gather::{Device, Report};
use super::{labels, words};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::{Word, all, view};
use crate::terminal::markup::{counted, escape, grouped};
use crate::terminal::output::{self, Tone};
use crate::terminal::size::show_bytes;
use crate::terminal::table::Table;

view! {
    pub(super) struct OfKind(used: &KindUse) {
        /// `parameters` (with buffers), `gradients`, `optimizer_states`, `activations`, `inputs`, `temporaries`, `workspaces`,
        /// `caches` or `unknown`.
        kind: Word<Kind> = Word::of(&used.kind),
        /// The bytes held.
        bytes: u64 = used.held.bytes,
        /// The number of blocks.
        blocks: u64 = used.held.blocks,
        /// The bytes of blocks that are in use at the end of a step.
        across_steps_bytes: u64 = used.across_steps.bytes,
        /// The bytes of blocks that one step makes and frees. Of the rest neither is known.
        within_step_bytes: u64 = used.within_step.bytes,
        /// The same by how the kind was told.
        told_by: Vec<OfHow> = all(&used.told_by, OfHow::of),
    }
}

view! {
    struct OfHow(told: &(How, Held)) {
        /// `stack`, `annotation` (the optimizer's own), `size` (paired with parameters, or a library's workspace), `pairing`
        /// (the order of frees), `lifetime`, `repetition` (the step before), `steps` (in a run that trains nothing: made and
        /// freed within one step, or carried through several) or `not_told`.
        how: Word<How> = Word::of(&told.0),
        /// The bytes told so.
        bytes: u64 = told.1.bytes,
        /// The number of blocks.
        blocks: u64 = told.1.blocks,
    }
}

view! {
    pub(super) struct NoStack(without: WithoutStack) {
        /// The bytes made on threads without Python calls, as autograd's are.
        autograd_bytes: u64 = without.autograd.bytes,
        /// The number of those blocks.
        autograd_blocks: u64 = without.autograd.blocks,
        /// The bytes from before the first entry.
        early_bytes: u64 = without.early.bytes,
        /// The number of those blocks.
        early_blocks: u64 = without.early.blocks,
    }
}

view! {
    /// The steps that were found.
    pub(super) struct FoundSteps(mark: &StepMark, steps: &Steps) {
        /// How many steps end in the file.
        count: usize = steps.ends.len(),
        /// How the steps are recognised: by an `annotation`, or by `repetition`, that is, by what the run repeats.
        told_by: Word<StepMark> = Word::of(mark),
        /// The annotation.
        mark: Option<String> = match mark {
            StepMark::Annotation(mark) => Some(mark.clone()),
            StepMark::Repetition => None,
        },
    }
}

/// The steps, if any were found.
pub(super) fn found_steps(steps: &Steps) -> Option<FoundSteps> {
    steps.mark.as_ref().map(|mark| FoundSteps::of(mark, steps))
}

/// The live blocks at the peak of allocated memory, by kind.
pub(super) fn kinds_at_peak(device: &Device) -> Vec<KindUse> {
    device.told.at(&device.timeline.log, device.peak_allocated_moment)
}

/// Those of the live blocks that have no stack.
pub(super) fn without_stack(device: &Device) -> Option<WithoutStack> {
    device.told.without_stack(&device.timeline.log, device.peak_allocated_moment)
}

/// The kinds for terminals. Files without a trace have none, because their blocks have no lifetimes.
pub(super) fn kinds(answer: &mut Answer, device: &Device) {
    let uses = kinds_at_peak(device);
    let total: u64 = uses.iter().map(|used| used.held.bytes).sum();
    if total == 0 || device.verdict.is_none() {
        return;
    }
    answer.title(format!("what kinds of blocks these are ({})", passes(device)));
    answer.paragraphs(steps(device));
    let mut table = Table::bare(2).with_left([3, 4]);
    for used in &uses {
        let share = format!("{:.1} %", used.held.bytes as f64 / total as f64 * 100.0);
        let blocks = format!("{} x", grouped(used.held.blocks));
        let how: Vec<String> = [told_by(used), lives(used)].into_iter().flatten().collect();
        table.row([show_bytes(used.held.bytes), share, blocks, kind_name(used.kind).to_owned(), how.join("; ")]);
    }
    answer.table(table);
    without_stack(device).map(frameless).unwrap_or_default().into_iter().for_each(|line| answer.toned(Tone::Dim, line));
    answer.gap();
}

/// The passes that were found.
fn passes(device: &Device) -> String {
    match device.told.passes {
        0 => "no forward pass with its backward pass was found".to_owned(),
        1 => "1 forward pass with its backward pass was found".to_owned(),
        passes => format!("{passes} forward passes with their backward passes were found"),
    }
}

/// The steps that were found, and how.
fn steps(device: &Device) -> Option<String> {
    let Steps { mark, ends } = &device.told.steps;
    let by = match mark.as_ref()? {
        StepMark::Annotation(mark) => format!("marked by {}", output::shorten(mark, 60)),
        StepMark::Repetition => "inferred from what the run repeats".to_owned(),
    };
    Some(format!("{} steps, {by}", ends.len()))
}

/// How a kind was recognised.
fn told_by(used: &KindUse) -> Option<String> {
    let told: Vec<&str> = used.told_by.iter().map(|&(how, _)| told_words(how)).collect();
    (used.kind != Kind::Unknown).then(|| format!("by {}", told.join(", ")))
}

/// Whether a kind's blocks live across the steps; `None` if that is not known for any of them.
fn lives(used: &KindUse) -> Option<String> {
    let total = used.held.bytes.max(1) as f64;
    let part = |(held, words): (Held, &str)| match held.bytes as f64 / total * 100.0 {
        percent if percent < LEAST_PERCENT => None,
        percent if percent >= 100.0 - LEAST_PERCENT => Some(words.to_owned()),
        percent => Some(format!("{percent:.0} % {words}")),
    };
    let parts: Vec<String> =
        [(used.across_steps, "across steps"), (used.within_step, "within one step")].into_iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Smaller shares are not mentioned.
const LEAST_PERCENT: f64 = 0.5;

/// The classification of blocks for the page: the distinct classifications, and for each block of the log its index among them.
pub(super) struct Legend {
    /// The number of the kind in [`Kind::ALL`], how it was recognised, and how it lives relative to the steps (0 across, 1 within,
    /// 2 not known).
    pub(super) told: Vec<(usize, &'static str, u8)>,
    pub(super) blocks: Vec<u64>,
}

impl Legend {
    /// The legend of a device, if its blocks have lifetimes.
    pub(super) fn of(device: &Device) -> Legend {
        let mut legend = Legend { told: Vec::new(), blocks: Vec::new() };
        if device.verdict.is_none() {
            return legend;
        }
        let mut places = std::collections::BTreeMap::new();
        for (&Told { kind, how }, &life) in device.told.told.iter().zip(&device.told.lives) {
            let place = *places.entry((kind, how, life)).or_insert_with(|| {
                let number = Kind::ALL.iter().position(|&other| other == kind).unwrap_or(0);
                let life = match life {
                    StepLife::Across => 0,
                    StepLife::Within => 1,
                    StepLife::NotTold => 2,
                };
                legend.told.push((number, told_words(how), life));
                legend.told.len() - 1
            });
            legend.blocks.push(place as u64);
        }
        legend
    }
}

/// Describes the blocks without a stack.
fn frameless(without: WithoutStack) -> Vec<String> {
    let line = |held: Held, what: &str| {
        let (bytes, blocks) = (show_bytes(held.bytes), counted(held.blocks, "block"));
        (held.blocks > 0).then(|| format!("without a stack: {bytes} in {blocks} {what}"))
    };
    let autograd =
        line(without.autograd, "requested on threads without Python calls, such as autograd's, typically in a backward pass");
    let early = line(without.early, "from before the first entry");
    autograd.into_iter().chain(early).collect()
}

/// A kind in a table.
pub(super) const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::OptimizerStates => "optimizer states",
        kind => kind.name(),
    }
}

/// How a kind was recognised, in words.
const fn told_words(how: How) -> &'static str {
    match how {
        How::Stack => "stack",
        How::Annotation => "the optimizer's annotation",
        How::Size => "size",
        How::Pairing => "the order of frees",
        How::Lifetime => "lifetime",
        How::Repetition => "the step before",
        How::Steps => "the steps",
        How::NotTold => "nothing",
    }
}

/// The number of holders on a page.
const HOLDERS: usize = 14;

/// The title of the table of holders.
pub(super) fn title(device: &Device) -> String {
    let total = show_bytes(device.curves.allocated.peak());
    let is_by_stack = device.holders.iter().any(|holder| matches!(holder.key, HolderKey::Stack(_)));
    let by = if is_by_stack { "by where it was requested" } else { "by block size, because the file has no stacks" };
    if device.verdict.is_none() {
        return format!("{total} in use, {by}");
    }
    format!("{total} {}, {by}", words::after(device.peak_allocated_moment))
}

/// How the kinds were recognised.
pub(super) fn kinds_title(device: &Device) -> String {
    let found: Vec<String> = [Some(passes(device)), steps(device)].into_iter().flatten().collect();
    escape(&format!("By kind: {}.", found.join("; ")))
}

/// The kinds at the peak of allocated memory.
pub(super) fn kind_rows(device: &Device) -> String {
    let uses = if device.verdict.is_some() { kinds_at_peak(device) } else { Vec::new() };
    let total = device.curves.allocated.peak().max(1) as f64;
    let most = uses.first().map_or(1, |used| used.held.bytes.max(1)) as f64;
    let row = |used: &KindUse| {
        let how: Vec<String> = [told_by(used), lives(used)].into_iter().flatten().collect();
        let how =
            if how.is_empty() { String::new() } else { format!("<span class=\"called\">{}</span>", escape(&how.join("; "))) };
        let what = format!("{}{how}", escape(kind_name(used.kind)));
        holder_row(&what, (used.held.bytes, used.held.blocks), total, most)
    };
    uses.iter().map(row).collect()
}

/// A row of a table of holders; its description is HTML.
fn holder_row(what: &str, (bytes, blocks): (u64, u64), total: f64, most: f64) -> String {
    let (percent, bar) = (bytes as f64 / total * 100.0, bytes as f64 / most * 100.0);
    format!(
        "<tr><td class=\"what\">{what}</td><td class=\"number\" title=\"{} bytes\">{}</td><td class=\"share\"><i style=\"width:{bar:.1}%\"></i><span>{percent:.1} %</span></td>\
         <td class=\"number\">{}</td></tr>",
        grouped(bytes),
        show_bytes(bytes),
        grouped(blocks)
    )
}

/// The holders at that moment.
pub(super) fn rows(report: &Report, device: &Device) -> String {
    let total = device.curves.allocated.peak().max(1) as f64;
    let most = device.holders.first().map_or(1, |holder| holder.bytes.max(1)) as f64;
    let mut rows = String::new();
    for holder in device.holders.iter().take(HOLDERS) {
        let mut what = escape(&words::holder(report, holder.key));
        if let HolderKey::Stack(stack) = holder.key
            && stack != StackId::NONE
        {
            let numbers = report.names.telling(&report.stacks, stack);
            let text = |&number: &u32| labels::in_full((&report.names, &report.stacks), number);
            let frames: Vec<String> = numbers.iter().take(60).filter_map(text).map(|call| escape(&call)).collect();
            if let Some(label) = report.labels.get(stack).filter(|label| !label.called.is_empty()) {
                what = format!("{}<span class=\"called\">{}</span>", escape(&label.own), escape(&label.called));
            }
            what = format!("<details><summary>{what}</summary><ol><li>{}</li></ol></details>", frames.join("</li><li>"));
        }
        rows.push_str(&holder_row(&what, (holder.bytes, holder.blocks), total, most));
    }
    if device.holders.len() > HOLDERS {
        let rest = &device.holders[HOLDERS..];
        let bytes: u64 = rest.iter().map(|holder| holder.bytes).sum();
        let _ = write!(
            rows,
            "<tr class=\"rest\"><td class=\"what\">{}</td><td class=\"number\">{}</td><td class=\"share\"><span>{:.1} %</span></td><td class=\"number\">{}</td></tr>",
            counted(rest.len() as u64, "other"),
            show_bytes(bytes),
            bytes as f64 / total * 100.0,
            grouped(rest.iter().map(|holder| holder.blocks).sum())
        );
    }
    rows
}

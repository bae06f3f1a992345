//! Where pages, pictures and folded stacks may be written: never over the recording, nor over one another, nor unasked over somebody else's file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Result, bail};

use super::OWN_MARK;
use crate::output_file::{is_same_file, refuse_source};

/// Refuses targets that must not be written to. `force` permits only what can be made again.
pub(super) fn check(recording: &Path, targets: &[(&str, &Path)], force: bool) -> Result<()> {
    for (place, &(what, target)) in targets.iter().enumerate() {
        refuse_source(recording, target)?;
        refuse_to_overwrite(target, force)?;
        if let Some((other, _)) = targets[..place].iter().find(|(_, other)| is_same_file(other, target)) {
            bail!("the {other} and the {what} are both to be written to {}: choose two files", target.display());
        }
    }
    Ok(())
}

fn refuse_to_overwrite(target: &Path, force: bool) -> Result<()> {
    let Ok(file) = File::open(target) else { return Ok(()) };
    let mut head = Vec::new();
    let is_own = file.take(1024).read_to_end(&mut head).is_ok() && String::from_utf8_lossy(&head).contains(OWN_MARK);
    if !is_own && !head.is_empty() && !force {
        bail!("{} already exists and was not {OWN_MARK}: --force overwrites it", target.display());
    }
    Ok(())
}

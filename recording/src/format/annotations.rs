//! Reading `external_annotations`: the beginnings and ends of user scopes (spec 7.5).

use super::error::{FormatError, FormatProblem, Place};
use super::fields::Fields;
use super::stacks::StackReader;
use super::values::{self, optional};
use crate::pickle::{Loaded, Value};
use crate::recording::Annotation;

/// Reads the annotations. Equal texts are stored once: one scope's name may occur a million times.
///
/// # Errors
/// [`FormatError`] for the first annotation that makes no sense.
pub(crate) fn read_annotations(
    loaded: &Loaded,
    list: &[Value],
    stacks: &mut StackReader,
) -> Result<Vec<Annotation>, FormatError> {
    let mut fields = Fields::new(["name", "stage", "device", "time_us"], &[]);
    let mut annotation = |dict: Value| -> Result<Annotation, FormatProblem> {
        let [name, stage, device, time_us] = fields.look_up(loaded, dict, "external_annotations")?;
        Ok(Annotation {
            name: stacks.text(loaded, name, "name")?,
            stage: stacks.text(loaded, stage, "stage")?,
            device: optional(device, |value| values::signed(loaded, value, "device"))?,
            time_us: optional(time_us, |value| values::signed(loaded, value, "time_us"))?,
        })
    };
    let read = |(number, &dict): (usize, &Value)| {
        annotation(dict).map_err(|problem| FormatError { place: Place::Annotation { annotation: number }, problem })
    };
    list.iter().enumerate().map(read).collect()
}

//! Text in HTML and SVG, escaped: shared with the pages of studies.

pub(crate) use crate::terminal::markup::{counted, escape, fill, grouped, point};

//! Text in HTML and SVG, escaped: shared with the pages of studies.

pub(crate) use parkade_terminal::markup::{counted, escape, fill, grouped, point};

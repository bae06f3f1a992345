//! Styles the cells of tables on a terminal. A build without the feature `native` has no terminal, so its tables have no styles.

#[cfg(feature = "native")]
pub(super) use styled::{bad, dim, enable, good};
#[cfg(not(feature = "native"))]
pub(super) use unstyled::{bad, dim, enable, good};

#[cfg(feature = "native")]
mod styled {
    use comfy_table::{Attribute, Cell, Color, Table};

    /// Keeps styles even if standard output is not a terminal: the stream removes them.
    pub(in super::super) fn enable(table: &mut Table) {
        table.enforce_styling().style_text_only();
    }

    pub(in super::super) fn dim(cell: Cell) -> Cell {
        cell.add_attribute(Attribute::Dim)
    }

    pub(in super::super) fn good(cell: Cell) -> Cell {
        cell.fg(Color::DarkGreen)
    }

    pub(in super::super) fn bad(cell: Cell) -> Cell {
        cell.fg(Color::DarkRed).add_attribute(Attribute::Bold)
    }
}

#[cfg(not(feature = "native"))]
mod unstyled {
    use comfy_table::{Cell, Table};

    pub(in super::super) fn enable(_: &mut Table) {}

    pub(in super::super) fn dim(cell: Cell) -> Cell {
        cell
    }

    pub(in super::super) fn good(cell: Cell) -> Cell {
        cell
    }

    pub(in super::super) fn bad(cell: Cell) -> Cell {
        cell
    }
}

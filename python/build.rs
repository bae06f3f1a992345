//! On macOS the linker must be told that the interpreter, which loads the module, has the symbols that are missing.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}

//! Extracts the path of a C++ function: its namespaces, its classes and its name, without the return type, template arguments
//! and parameters.
//!
//! A recording contains symbols as the unwinder found them: mangled or demangled, cut in the middle, with or without
//! parameters. Nothing here fails: if a symbol is not a path, the result is whatever parts it has.

/// The parts of a symbol's path, the outermost namespace first. Anonymous namespaces are left out.
pub(crate) fn path(symbol: &str) -> Vec<&str> {
    if let Some(mangled) = symbol.strip_prefix("_Z") { mangled_path(mangled) } else { demangled_path(symbol) }
}

/// Whether a symbol is from C++: it has a path or parameters, or is mangled.
pub(crate) fn is_cpp(symbol: &str) -> bool {
    symbol.contains("::") || symbol.contains('(') || symbol.starts_with("_Z")
}

/// The path of `bool at::native::f<int>(long) [clone .isra.0]`: `at`, `native`, `f`.
fn demangled_path(symbol: &str) -> Vec<&str> {
    let bytes = symbol.as_bytes();
    let (mut parts, mut start, mut depth, mut at) = (Vec::new(), 0, 0_usize, 0);
    // The end of the current part, if template arguments follow it.
    let mut end = None;
    while let Some(&byte) = bytes.get(at) {
        let is_operator = || symbol.get(start..at).is_some_and(|part| part.trim_start().starts_with("operator"));
        let is_outside = depth == 0;
        match byte {
            b'(' if is_outside && symbol[at..].starts_with("(anonymous namespace)") => {
                at += "(anonymous namespace)".len();
                start = at;
                continue;
            }
            b'(' if is_outside && !(is_operator() && symbol[at..].starts_with("()(")) => break,
            b'<' if is_outside && is_operator() => {}
            b'>' if is_operator() || at.checked_sub(1).is_some_and(|before| bytes[before] == b'-') => {}
            b'<' | b'(' | b'{' | b'[' => {
                if is_outside && start < at {
                    end.get_or_insert(at);
                }
                depth += 1;
            }
            b'>' | b')' | b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if is_outside && bytes.get(at + 1) == Some(&b':') => {
                push(&mut parts, symbol, start, end.take().unwrap_or(at));
                at += 2;
                start = at;
                continue;
            }
            // The preceding part was the return type, or an attribute follows.
            b' ' if is_outside && symbol[at..].starts_with(" [") => break,
            b' ' if is_outside && !is_operator() => {
                parts.clear();
                end = None;
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    push(&mut parts, symbol, start, end.unwrap_or(at));
    parts
}

fn push<'s>(parts: &mut Vec<&'s str>, symbol: &'s str, start: usize, end: usize) {
    let part = symbol.get(start..end).unwrap_or_default().trim_matches(['&', '*', ' ']);
    if !part.is_empty() {
        parts.push(part);
    }
}

/// The path of `N2at4_ops3bmm4callE...`: each name is preceded by its length.
fn mangled_path(mangled: &str) -> Vec<&str> {
    let mut rest = mangled.trim_start_matches(['N', 'K', 'L']);
    let mut parts = Vec::new();
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let Some((length, after)) = rest.split_at_checked(digits) else { break };
        let Some((name, after)) = length.parse().ok().and_then(|length| after.split_at_checked(length)) else { break };
        if !name.starts_with("_GLOBAL__N") {
            parts.push(name);
        }
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_without_types_and_arguments() {
        let cases: [(&str, &[&str]); 13] = [
            ("at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)", &["at", "_ops", "bmm", "call"]),
            ("at::_ops::bmm::call", &["at", "_ops", "bmm", "call"]),
            ("bool at::cuda::blas::gemm_and_bias<float, float>(bool, long)", &["at", "cuda", "blas", "gemm_and_bias"]),
            ("at::Tensor& at::native::f<&at::native::g>(at::Tensor&)", &["at", "native", "f"]),
            ("at::(anonymous namespace)::(anonymous namespace)::wrapper_CUDA_mm(long)", &["at", "wrapper_CUDA_mm"]),
            (
                "c10::impl::wrap_kernel_functor_unboxed_<c10::guts::typelist<at::Tensor (long)> >::call(c10::OperatorKernel*)",
                &["c10", "impl", "wrap_kernel_functor_unboxed_", "call"],
            ),
            ("c10::impl::wrap_<c10::Pointer<at::Tensor (c10::ArrayRef<c10::SymInt>, std::opt", &["c10", "impl", "wrap_"]),
            ("torch::autograd::Node::operator()(std::vector<at::Tensor>&&)", &["torch", "autograd", "Node", "operator"]),
            ("at::native::f(at::Tensor&) [clone .isra.0]", &["at", "native", "f"]),
            ("at::native::f [clone .cold]", &["at", "native", "f"]),
            ("_ZN2at4_ops3bmm4callERKNS_6TensorES4_", &["at", "_ops", "bmm", "call"]),
            ("_ZN5torch4cuda12_GLOBAL__N_115gather_with_cppEv", &["torch", "cuda", "gather_with_cpp"]),
            ("_start", &["_start"]),
        ];
        for (symbol, expected) in cases {
            assert_eq!(path(symbol), expected, "{symbol}");
        }
    }

    #[test]
    fn no_text_is_too_odd() {
        for symbol in [
            "",
            "::",
            "((((",
            ">>>>",
            "operator",
            "operator<",
            "a::operator->",
            "_Z",
            "_ZN9",
            "_ZN99at",
            "é::ü<ß",
            "(anonymous namespace)",
        ] {
            assert!(path(symbol).iter().all(|part| symbol.contains(part)), "{symbol}");
        }
        assert!(!is_cpp("_PyEval_EvalFrameDefault") && is_cpp("_ZN2at5emptyEv") && is_cpp("f(long)"));
    }
}

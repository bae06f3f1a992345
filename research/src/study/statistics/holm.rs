//! Holm's correction for many comparisons.

/// Corrects the p values of several comparisons: Holm, A simple sequentially rejective multiple test procedure,
/// 1979. Returns them in the order given.
#[must_use]
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&one, &other| p_values[one].total_cmp(&p_values[other]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut least = 0.0_f64;
    for (smaller, &place) in order.iter().enumerate() {
        least = least.max(p_values[place] * (p_values.len() - smaller) as f64).min(1.0);
        adjusted[place] = least;
    }
    adjusted
}

//! Plots as SVG in a page: axes, lines, a legend. Colours are classes of the page.

use std::fmt::Write as _;

use crate::terminal::markup::{escape, point};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 800.0;
const TOP: f64 = 16.0;
/// Height of the plot itself.
const HEIGHT: f64 = 330.0;
/// Below it: the numbers and the name of the horizontal axis.
const BELOW: f64 = 54.0;
const LEGEND_STEP: f64 = 21.0;

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    Logarithmic,
}

/// An axis and the format of its numbers.
pub(super) struct Axis {
    pub(super) name: String,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) scale: Scale,
    pub(super) show: fn(f64) -> String,
}

impl Axis {
    /// The position of a value from 0 to 1, clamped.
    fn share(&self, value: f64) -> f64 {
        let along = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(f64::MIN_POSITIVE).ln(),
        };
        let (from, to) = (along(self.from), along(self.to));
        if to > from { ((along(value) - from) / (to - from)).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Five to ten round values; on a logarithmic axis 1, 2, 5, 10 and so on.
    fn ticks(&self) -> Vec<f64> {
        if self.to <= self.from {
            return vec![self.from];
        }
        if self.scale == Scale::Logarithmic {
            let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            let steps: &[f64] = if self.to / self.from > 2000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let values = decades.flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
            return values.filter(|value| (self.from..=self.to).contains(value)).collect();
        }
        let rough = (self.to - self.from) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough).unwrap_or(power);
        let first = (self.from / step - 1e-9).ceil();
        (0..20).map(|number| (first + f64::from(number)) * step).take_while(|value| *value <= self.to + step * 1e-9).collect()
    }
}

/// A plot under construction.
pub(super) struct Plot {
    x: Axis,
    y: Axis,
    body: String,
    legend: Vec<(String, String)>,
}

impl Plot {
    pub(super) fn new(x: Axis, y: Axis) -> Plot {
        Plot { x, y, body: String::new(), legend: Vec::new() }
    }

    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (LEFT + self.x.share(x) * (RIGHT - LEFT), TOP + (1.0 - self.y.share(y)) * HEIGHT)
    }

    fn path(&self, points: impl IntoIterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (number, (x, y)) in points.into_iter().enumerate() {
            let (x, y) = self.place(x, y);
            point(&mut path, if number == 0 { 'M' } else { 'L' }, x, y);
        }
        path
    }

    /// An area below a line.
    pub(super) fn area(&mut self, name: &str, points: &[(f64, f64)]) {
        let ends = points.first().zip(points.last()).map(|(first, last)| [(last.0, self.y.from), (first.0, self.y.from)]);
        let path = self.path(points.iter().copied().chain(ends.into_iter().flatten()));
        let _ = writeln!(self.body, "<path class=\"area\" d=\"{path}Z\"><title>{}</title></path>", escape(name));
        self.legend.push((name.to_owned(), "<rect class=\"area\" y=\"-9\" width=\"22\" height=\"11\"/>".to_owned()));
    }

    /// A line in the colour of this number.
    pub(super) fn line(&mut self, name: &str, number: usize, points: impl IntoIterator<Item = (f64, f64)>) {
        let path = self.path(points);
        let class = class(number);
        // Later lines are thinner, so that identical lines below them still show.
        let width = (4.2 - 0.7 * number as f64).max(1.4);
        let _ = writeln!(
            self.body,
            "<path class=\"line {class}\" stroke-width=\"{width:.1}\" d=\"{path}\"><title>{}</title></path>",
            escape(name)
        );
        self.legend.push((name.to_owned(), format!("<path class=\"line {class}\" stroke-width=\"{width:.1}\" d=\"M0 -4h22\"/>")));
    }

    /// A dot. A smaller `radius` shows a dot on top of another.
    pub(super) fn dot(&mut self, name: &str, number: usize, at: (f64, f64), radius: f64) {
        let class = class(number);
        let (x, y) = self.place(at.0, at.1);
        let _ = writeln!(
            self.body,
            "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"><title>{}</title></circle>",
            escape(name)
        );
        self.legend.push((name.to_owned(), format!("<circle class=\"dot {class}\" cx=\"11\" cy=\"-4\" r=\"6\"/>")));
    }

    /// The position of a point in the picture.
    pub(super) fn pixel(&self, at: (f64, f64)) -> (f64, f64) {
        self.place(at.0, at.1)
    }

    /// The picture.
    pub(super) fn svg(&self, title: &str) -> String {
        let height = (TOP + HEIGHT + BELOW).max(TOP + 20.0 + LEGEND_STEP * self.legend.len() as f64);
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">\n", escape(title));
        let (bottom, middle) = (TOP + HEIGHT, TOP + HEIGHT / 2.0);
        for value in self.y.ticks() {
            let (_, y) = self.place(self.x.from, value);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                (self.y.show)(value)
            );
        }
        for value in self.x.ticks() {
            let (x, _) = self.place(value, self.y.from);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{}\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 4.0,
                bottom + 20.0,
                (self.x.show)(value)
            );
        }
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{RIGHT}\"/>\
             <text class=\"name\" x=\"{:.0}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text class=\"name\" transform=\"translate(16 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            bottom + 44.0,
            escape(&self.x.name),
            escape(&self.y.name)
        );
        svg += &self.body;
        for (place, (name, symbol)) in self.legend.iter().enumerate() {
            let y = TOP + 14.0 + LEGEND_STEP * place as f64;
            let _ = writeln!(
                svg,
                "<g transform=\"translate({} {y:.0})\">{symbol}<text x=\"32\">{}</text></g>",
                RIGHT + 26.0,
                escape(name)
            );
        }
        svg + "</svg>\n"
    }
}

/// Twelve colours; further lines are dashed.
fn class(number: usize) -> String {
    format!("c{} d{}", number % 12, (number / 12) % 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(from: f64, to: f64, scale: Scale) -> Axis {
        Axis { name: "bytes".to_owned(), from, to, scale, show: |value| format!("{value:.1}") }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(axis(0.0, 100.0, Scale::Linear).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let ticks = axis(0.98, 1.3, Scale::Linear).ticks();
        assert!(ticks.len() >= 3 && (ticks[0] - 1.0).abs() < 1e-9, "{ticks:?}");
        assert_eq!(axis(0.3, 30.0, Scale::Logarithmic).ticks(), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(axis(1.0, 1.0, Scale::Linear).ticks(), [1.0]);
    }

    #[test]
    fn outliers_are_clamped() {
        let mut plot = Plot::new(axis(0.0, 10.0, Scale::Linear), axis(0.0, 1.0, Scale::Linear));
        plot.line("a <b>", 13, [(-5.0, 0.0), (20.0, 1.0)]);
        let svg = plot.svg("title");
        assert!(
            svg.contains(
                "<path class=\"line c1 d1\" stroke-width=\"1.4\" d=\"M78.0 346.0L800.0 16.0\"><title>a &lt;b&gt;</title>"
            ),
            "{svg}"
        );
    }
}

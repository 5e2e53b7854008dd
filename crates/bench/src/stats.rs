//! What a handful of measurements say, and how sure one may be of it.
//!
//! Five start-up times are few; their mean alone pretends to know more than it does. So a
//! [`Summary`] carries the half-width of a 95 % confidence interval by Student's t, which is wide
//! for few runs and shrinks as they grow. Nothing here guesses at outliers or drops them.

use serde::Serialize;

/// The usual figures of a sample. Units are those of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many values there were.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation of the sample (divided by n - 1); 0 for one value.
    pub deviation: f64,
    /// Half-width of the 95 % confidence interval of the mean; 0 for one value, where none exists.
    pub ci95: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Summary {
    /// Summarises a sample; `None` if it is empty.
    ///
    /// # Examples
    ///
    /// ```
    /// use evenkeel_bench::stats::Summary;
    ///
    /// let summary = Summary::of(&[2.0, 4.0, 6.0]).unwrap();
    /// assert_eq!((summary.mean, summary.deviation), (4.0, 2.0));
    /// ```
    #[must_use]
    pub fn of(sample: &[f64]) -> Option<Self> {
        let first = *sample.first()?;
        let n = count_as_f64(sample.len());
        let mean = sample.iter().sum::<f64>() / n;
        let squares: f64 = sample.iter().map(|x| (x - mean).powi(2)).sum();
        let (deviation, ci95) = if sample.len() > 1 {
            let deviation = (squares / (n - 1.0)).sqrt();
            (deviation, student_t(0.975, n - 1.0) * deviation / n.sqrt())
        } else {
            (0.0, 0.0)
        };
        Some(Self {
            count: sample.len(),
            mean,
            deviation,
            ci95,
            min: sample.iter().copied().fold(first, f64::min),
            max: sample.iter().copied().fold(first, f64::max),
        })
    }
}

/// Returns the value below which the fraction `p` of the sample lies, interpolated linearly
/// between neighbours (Hyndman and Fan's type 7, the default of R and NumPy); `None` if it is empty.
///
/// `p` is taken as the nearest of 0 to 1.
#[must_use]
pub fn percentile(sample: &[f64], p: f64) -> Option<f64> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = p.clamp(0.0, 1.0) * count_as_f64(last);
    // Found by counting, not by a cast: the sample is small and a cast from f64 proves nothing.
    let below = (0..=last).rev().find(|&i| count_as_f64(i) <= place).unwrap_or(0);
    let above = (below + 1).min(last);
    let part = place - count_as_f64(below);
    Some(sorted[below] + (sorted[above] - sorted[below]) * part)
}

/// Returns the middle of the sample; `None` if it is empty.
#[must_use]
pub fn median(sample: &[f64]) -> Option<f64> {
    percentile(sample, 0.5)
}

/// Returns the value that Student's t with `freedom` degrees of freedom stays below with
/// probability `p` (0.5 < p < 1), to about ten digits.
#[must_use]
pub fn student_t(p: f64, freedom: f64) -> f64 {
    // P(|T| > t) = I_{v/(v+t^2)}(v/2, 1/2) falls with t; bisect for 2(1 - p).
    let tail = 2.0 * (1.0 - p);
    let exceeds = |t: f64| incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5) > tail;
    let (mut low, mut high) = (0.0, 1.0);
    while exceeds(high) && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if exceeds(middle) { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// The regularised incomplete beta function, by its continued fraction (modified Lentz).
///
/// Source: NIST Digital Library of Mathematical Functions, 8.17.22.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return if x <= 0.0 { 0.0 } else { 1.0 };
    }
    // The fraction converges fast on this side only; the other is its mirror image.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front =
        (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    let guard = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d, mut fraction) = (1.0, 0.0, 1.0);
    for i in 0..500_u32 {
        let m = f64::from(i / 2);
        let numerator = if i == 0 {
            1.0
        } else if i % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / guard(1.0 + numerator * d);
        c = guard(1.0 + numerator / c);
        fraction *= c * d;
        if i > 0 && (1.0 - c * d).abs() < 1e-14 {
            break;
        }
    }
    // The first factor made c = 2 where the fraction begins with 1: see the test of known values.
    front * (fraction - 1.0)
}

/// The logarithm of the gamma function for positive arguments, by Stirling's series after
/// shifting the argument above 10, where eight terms leave less than 1e-15.
///
/// Source: NIST Digital Library of Mathematical Functions, 5.11.1.
fn ln_gamma(x: f64) -> f64 {
    let (mut x, mut shift) = (x, 0.0);
    while x < 10.0 {
        shift += x.ln();
        x += 1.0;
    }
    let series = [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0];
    let square = x * x;
    let correction = series.iter().rev().fold(0.0, |sum, term| sum / square + term) / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + correction - shift
}

#[expect(clippy::cast_precision_loss, reason = "samples have far fewer than 2^52 values")]
fn count_as_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance, "found {found}, expected {expected}");
    }

    #[test]
    fn student_t_agrees_with_the_printed_tables() {
        // Rounded to six digits in the tables, hence half a unit of the last one.
        for (freedom, t) in [(1.0, 12.706205), (2.0, 4.302653), (4.0, 2.776445), (9.0, 2.262157)] {
            close(student_t(0.975, freedom), t, 5e-7);
        }
        close(student_t(0.975, 30.0), 2.042272, 5e-7);
        close(student_t(0.975, 1e6), 1.959966, 5e-7);
        close(student_t(0.95, 5.0), 2.015048, 5e-7);
    }

    #[test]
    fn the_interval_of_five_values_is_that_of_the_textbook() {
        let summary = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((summary.count, summary.mean), (5, 3.0));
        assert_eq!((summary.min, summary.max), (1.0, 5.0));
        close(summary.deviation, 2.5_f64.sqrt(), 1e-12);
        close(summary.ci95, 2.776445 * (2.5_f64 / 5.0).sqrt(), 1e-6);
    }

    #[test]
    fn one_value_has_no_spread_and_none_has_no_summary() {
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.mean, one.deviation, one.ci95), (7.0, 0.0, 0.0));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn percentiles_interpolate_and_ignore_the_order_of_the_sample() {
        let sample = [40.0, 10.0, 30.0, 20.0];
        assert_eq!(percentile(&sample, 0.0), Some(10.0));
        assert_eq!(percentile(&sample, 1.0), Some(40.0));
        assert_eq!(median(&sample), Some(25.0));
        close(percentile(&sample, 0.9).unwrap(), 37.0, 1e-12);
        assert_eq!(percentile(&[], 0.5), None);
    }
}

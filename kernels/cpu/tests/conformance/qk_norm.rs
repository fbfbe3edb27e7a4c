//! Conformance of the normalisation of queries and keys, for every implementation.

use crate::support::{Rng, assert_same, assert_varied, for_each_cpu, step};
use swinq_kernels::{Pool, QkNorm, RowOut};
use swinq_numerics::{QkNormSpec, Quantizer, code_stride, reference};

/// Sizes and input of one case.
struct Case {
    heads: usize,
    d: usize,
    rows: usize,
    hi_lo: Vec<bool>,
    /// f32 `[rows, 3 * heads * d]`.
    x: Vec<f32>,
}

impl Case {
    fn new(heads: usize, d: usize, rows: usize, hi_lo: &[bool]) -> Case {
        let mut rng = Rng((heads + 10 * d + 1000 * rows) as u64);
        let x = rng.floats(rows * 3 * heads * d, 3.0);
        Case { heads, d, rows, hi_lo: hi_lo.to_vec(), x }
    }

    fn spec(&self, codes: Option<[Quantizer; 3]>) -> QkNormSpec<'_> {
        QkNormSpec { heads: self.heads, head_dim: self.d, hi_lo: &self.hi_lo, codes }
    }

    /// The queries and keys normalised, and the values as they are.
    fn normalized(&self) -> Vec<f32> {
        let mut y = self.x.clone();
        for row in y.chunks_exact_mut(3 * self.heads * self.d) {
            row.chunks_exact_mut(self.d).take(2 * self.heads).for_each(reference::normalize);
        }
        y
    }

    /// The codes of [`Case::normalized`], with 77 in the bytes of padding.
    fn codes(&self, sites: [Quantizer; 3]) -> Vec<u8> {
        let columns = self.heads * self.d;
        let mut codes = Vec::new();
        for row in self.normalized().chunks_exact(3 * columns) {
            let start = codes.len();
            for (part, site) in row.chunks_exact(columns).zip(sites) {
                codes.extend(part.iter().map(|&y| site.code(y).cast_unsigned() ^ 0x80));
            }
            for (part, site) in row.chunks_exact(columns).zip(sites).take(2) {
                for head in (0..self.heads).filter(|&head| self.hi_lo.get(head) == Some(&true)) {
                    let low = |&y: &f32| reference::lo_code(y * site.recip()).cast_unsigned() ^ 0x80;
                    codes.extend(part[head * self.d..][..self.d].iter().map(low));
                }
            }
            codes.resize(start + code_stride(codes.len() - start), 77);
        }
        codes
    }
}

fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new(3, 32, 49, &[]),
        Case::new(24, 32, 5, &[]),
        Case::new(3, 32, 64, &[false, true, true]),
        Case::new(2, 7, 9, &[true, false]),
        Case::new(1, 1, 1, &[true]),
        Case::new(2, 24, 3, &[false, false]),
        Case::new(1, 33, 2, &[true]),
        Case::new(5, 48, 300, &[true; 5]),
        Case::new(3, 64, 8, &[false, true, false]),
        Case::new(2, 16, 17, &[true, true]),
        Case::new(1, 8, 0, &[]),
    ];
    // Vectors that are zero, too short or too long for a reciprocal, or no numbers, in some of 49 rows.
    for (row, x) in cases[0].x.chunks_exact_mut(3 * 3 * 32).enumerate().filter(|(row, _)| row % 3 == 0) {
        let at = row % 5 * 32;
        x[at..at + 32].fill([0.0, 1e-20, f32::NAN, 1e30][row % 4]);
        x[at + 32] = f32::INFINITY;
    }
    cases
}

#[test]
fn operands_are_the_references() {
    // Steps of the second kind are so small that codes are clamped.
    let kinds = [[1.0 / 127.0, 1.0 / 127.0, 0.02], [0.002, 0.004, 0.001]];
    for_each_cpu(|cpu| {
        for (case, sites) in
            kinds.iter().flat_map(|sites| cases().into_iter().map(|case| (case, sites.map(step))))
        {
            let what = format!("{cpu:?} {} heads of {}, {} rows", case.heads, case.d, case.rows);
            let float = QkNorm::new(cpu, &case.spec(None));
            let codes = QkNorm::new(cpu, &case.spec(Some(sites)));
            let (want, want_codes) = (case.normalized(), case.codes(sites));
            for threads in [1, 3] {
                let mut pool = Pool::new(threads);
                let mut got = vec![5.0; want.len()];
                float.run(&mut pool, case.rows, &case.x, RowOut::F32(&mut got));
                assert_same(&got, &want, &what);
                let mut got = vec![77; case.rows * code_stride(codes.columns_out())];
                codes.run(&mut pool, case.rows, &case.x, RowOut::Codes(&mut got));
                assert_eq!(got, want_codes, "{what}");
                if case.rows > 1 {
                    assert_varied(&got, &what);
                }
            }
        }
    });
}

#[test]
#[should_panic(expected = "QkNorm: the output is of the other type")]
fn an_output_of_the_other_type_is_refused() {
    let case = Case::new(1, 4, 1, &[]);
    let op = QkNorm::new(swinq_kernels::Cpu::available()[0], &case.spec(None));
    op.run(&mut Pool::new(1), 1, &case.x, RowOut::Codes(&mut [0; 12]));
}

//! The kernels of the loss of logits and of feature maps.

use swinq_cuda::training::{LossProgram, MapsProgram};
use swinq_testing::Rng;

use super::close;
use super::iteration::{doubles, words_of};
use crate::host_kernels::compiler::Compiler;
use crate::host_kernels::launch::{Launch, floats};

/// `log(softmax(x / t))` of class `i`.
fn log_softmax(x: &[f32], t: f64, i: usize) -> f64 {
    let total: f64 = x.iter().map(|&x| (f64::from(x) / t).exp()).sum();
    f64::from(x[i]) / t - total.ln()
}

#[test]
fn losses() {
    let Some(compiler) = Compiler::get() else { return };
    let (images, classes, t, smoothing, share) = (3, 300, 2.0, 0.1, 0.7);
    let (weight_labels, weight_kl, factor, loss_scale) = (0.7, 1.3, 0.5 / 3.0, 8.0);
    let mut rng = Rng(4);
    let (logits, teacher) = (rng.floats(images * classes, 4.0), rng.floats(images * classes, 4.0));
    let best = |image: usize| {
        let row = &logits[image * classes..][..classes];
        (0..classes).fold(0, |best, i| if row[i] > row[best] { i } else { best })
    };
    // The last label is no class.
    let labels = [best(0) as u32, 7, 300];
    let partners = [5u32, best(1) as u32, 299];
    for (taught, mixed) in [(true, true), (true, false), (false, false)] {
        let controls = words_of(&[loss_scale, share, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let launch = |entry, config, of_images: &[u32], outcome: &[u32], first: usize| {
            let launch = Launch::new(&LossProgram::program(entry), config).array(&logits);
            let launch = launch.optional(taught.then_some(&teacher[..])).array(&labels);
            let launch = launch.optional(mixed.then_some(&partners[..])).array(&controls);
            let launch = launch.array(&vec![0.0f32; images * classes]).array(of_images).array(outcome);
            let numbers = [weight_labels, weight_kl, smoothing, t, factor];
            let launch = numbers.iter().fold(launch, |launch, x: &f64| launch.long(x.to_bits()));
            launch.int(images).int(classes).int(first).run(compiler)
        };
        let none = vec![0; 6 * images];
        let found = launch("loss_of_images", LossProgram::images_launch(images), &none, &[0; 16], 1);
        let at = found.len() - 3;
        let (gradient, of_images) = (floats(&found[at]), doubles(&found[at + 1]));
        let (mut want, mut sums, mut correct) = (Vec::new(), [0.0; 2], 0.0);
        for image in 0..images {
            let (x, y) = (&logits[image * classes..][..classes], &teacher[image * classes..][..classes]);
            let (own, partner) =
                (labels[image] as usize, if mixed { partners[image] } else { labels[image] } as usize);
            let own_share = if mixed { share } else { 1.0 };
            correct += f64::from(u8::from(best(image) == own));
            for i in 0..classes {
                let part =
                    if i == own { own_share } else { 0.0 } + if i == partner { 1.0 - own_share } else { 0.0 };
                let target = smoothing / classes as f64 + (1.0 - smoothing) * part;
                let log = log_softmax(x, 1.0, i);
                sums[0] -= factor * target * log;
                let mut slope = weight_labels * (log.exp() - target);
                if taught {
                    let (log_p, log_q) = (log_softmax(x, t, i), log_softmax(y, t, i));
                    sums[1] += factor * t * t * log_q.exp() * (log_q - log_p);
                    slope += weight_kl * t * (log_p.exp() - log_q.exp());
                }
                want.push(slope * factor * loss_scale);
            }
        }
        close("gradient", &gradient, &want, 1e-6);
        let before = words_of(&[1.0, 2.0, 5.0, 3.0, 4.0, 0.0, 0.0, 0.0]);
        for first in [1, 0] {
            let config = LossProgram::batch_launch();
            let found = launch("loss_of_batch", config, &words_of(&of_images), &before, first);
            let outcome = doubles(found.last().unwrap());
            let total = weight_labels * sums[0] + weight_kl * sums[1];
            let more = |already: f64| if first == 1 { 0.0 } else { already };
            let want =
                [sums[0] + more(1.0), sums[1] + more(2.0), 0.0, total + more(3.0), correct + more(4.0)];
            for (found, want) in outcome.iter().zip(want) {
                assert!((found - want).abs() < 1e-9 * want.abs().max(1.0), "{found} instead of {want}");
            }
        }
    }
}

/// Maps of one part and of several parts; the last one is shorter.
#[test]
fn losses_of_maps() {
    let Some(compiler) = Compiler::get() else { return };
    let (images, weight, share, loss_scale) = (3, 0.6, 0.25, 8.0);
    for (values, whole) in [(300, 1), (MapsProgram::parts(1).1 * 2 + 77, 3)] {
        let count = images * values;
        let (parts, part) = MapsProgram::parts(values);
        assert_eq!(parts, whole);
        let mut rng = Rng(6);
        let (map, target) = (rng.floats(count, 2.0), rng.floats(count, 1.0));
        let controls = words_of(&[loss_scale, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let launch = |entry, config, memory: [&[u32]; 3], first: usize| {
            let launch = Launch::new(&MapsProgram::program(entry), config).array(&map).array(&target);
            let launch = launch.array(&controls).array(&vec![0.0f32; count]);
            let launch = memory.iter().fold(launch, |launch, words| launch.array(words));
            let launch = launch.long(f64::to_bits(weight)).long(f64::to_bits(share)).int(images).int(values);
            launch.int(part).int(parts).int(first).run(compiler)
        };
        let none = (vec![0; 4 * images * parts], vec![0; 4 * images]);
        let before = words_of(&[1.0, 2.0, 5.0, 3.0, 4.0, 6.0, 1.0, 0.0]);
        let squares = MapsProgram::squares_launch(images, parts);
        let found = launch("squares", squares, [&none.0, &none.1, &before], 1);
        let partial = words_of(&doubles(&found[4]));
        let (mut errors, mut slopes) = (Vec::new(), Vec::new());
        for image in 0..images {
            let of = |i: usize| (f64::from(map[i] - target[i]).powi(2), f64::from(target[i]).powi(2));
            let all = (image * values..(image + 1) * values).map(of);
            let (noise, signal) = all.fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            errors.push(noise / signal);
            slopes.push(2.0 * weight * share * loss_scale / signal);
        }
        for first in [1, 0] {
            let found = launch("errors", MapsProgram::errors_launch(), [&partial, &none.1, &before], first);
            let outputs = share * errors.iter().sum::<f64>();
            let want = match first {
                1 => [0.0, 0.0, outputs, weight * outputs, 0.0, 6.0, 1.0, 0.0],
                _ => [1.0, 2.0, 5.0 + outputs, 3.0 + weight * outputs, 4.0, 6.0, 1.0, 0.0],
            };
            for (found, want) in doubles(found.last().unwrap()).iter().zip(want) {
                assert!((found - want).abs() < 1e-9 * want.abs().max(1.0), "{found} instead of {want}");
            }
            let of_images = words_of(&doubles(&found[5]));
            let config = MapsProgram::gradient_launch(count);
            let found = launch("gradient", config, [&partial, &of_images, &before], first);
            let want: Vec<f64> =
                (0..count).map(|i| f64::from(map[i] - target[i]) * slopes[i / values]).collect();
            close("gradient", &floats(&found[3]), &want, 1e-6);
        }
    }
}

//! Times the float forward of a random Swin-T at batch 8, and shows how the time is spent.
//!
//! ```text
//! cargo run --release -p swinq-float --example forward_time
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use swinq_float::{Attention, Float, FloatError, Sites, Swin};
use swinq_model::{Site, load_config, random_model};

const RUNS: usize = 7;

/// Sites of the float forward that measure the time until each kind of site is reached.
struct Timed {
    last: Instant,
    spent: BTreeMap<String, Duration>,
}

impl Timed {
    fn record(&mut self, key: String) {
        *self.spent.entry(key).or_default() += self.last.elapsed();
        self.last = Instant::now();
    }

    /// The name of the site without its stage and block.
    fn kind(site: Site) -> String {
        site.to_string()
            .split('.')
            .filter(|part| part.parse::<usize>().is_err())
            .skip(1)
            .collect::<Vec<_>>()
            .join(".")
    }
}

impl Sites for Timed {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        self.record(Timed::kind(site));
        Ok(x)
    }

    fn watches(&self, site: Site) -> bool {
        !matches!(site, Site::Output(_))
    }

    fn attend(&mut self, attention: &Attention<'_>, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        self.record(Timed::kind(Site::Probs(attention.block)));
        let y = attention.attend(&logits, &v)?;
        self.record("(attend)".to_owned());
        Ok(y)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = load_config("swin_tiny_patch4_window7_224", &[])?;
    let model = random_model(&config, 1);
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu)?;
    let images = Tensor::randn(0f32, 1.0, (8, 3, 224, 224), &Device::Cpu)?;
    let mut seconds = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        swin.forward(&images, &mut Float)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    println!("batch of 8: median {:.3} s, best {:.3} s of {RUNS}", seconds[RUNS / 2], seconds[0]);
    let mut timed = Timed { last: Instant::now(), spent: BTreeMap::new() };
    swin.forward(&images, &mut timed)?;
    timed.record("(end)".to_owned());
    println!("milliseconds until each kind of site:");
    let mut spent: Vec<_> = timed.spent.into_iter().collect();
    spent.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    for (kind, time) in spent {
        println!("{:>9.1}  {kind}", time.as_secs_f64() * 1e3);
    }
    Ok(())
}

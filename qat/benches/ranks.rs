//! Times the addition of Swin-T's gradients over ranks, in the buckets of a training, beside a copy of the
//! same bytes.
//!
//! ```console
//! $ cargo bench -p swinq-qat --bench ranks
//! ```
//!
//! The ranks are threads that talk TCP over the loopback interface, as the processes of `--devices` do.

use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use swinq_qat::job::{Identity, Job};
use swinq_qat::ranks::{Bucket, ProcessGroup, RankInfo, Rendezvous};

/// Parameters of Swin-T with 1000 classes.
const PARAMETERS: usize = 28_288_354;
/// Values of a bucket: 4 MiB.
const BUCKET: usize = 1 << 20;
/// Additions of all gradients that are timed; the first is not counted.
const RUNS: usize = 7;

fn main() {
    println!("| ranks | ms for {:.0} MB | ms of a copy | GB/s through rank 0 |", bytes() / 1e6);
    println!("|-------|------------------|--------------|---------------------|");
    for size in [2, 4, 8] {
        let (sum, copy) = (median(on_ranks(size)), median(copies()));
        // Rank 0 receives the gradients of every other rank and sends the sums to each.
        let traffic = 2.0 * (size - 1) as f64 * bytes();
        println!("| {size:5} | {:16.1} | {:12.1} | {:19.2} |", 1e3 * sum, 1e3 * copy, traffic / sum / 1e9);
    }
}

fn bytes() -> f64 {
    (4 * PARAMETERS) as f64
}

/// Seconds of copies of all gradients.
fn copies() -> Vec<f64> {
    let source = vec![1f32; PARAMETERS];
    let mut target = vec![0f32; PARAMETERS];
    let time = |_| {
        let start = Instant::now();
        target.copy_from_slice(black_box(&source));
        black_box(&mut target);
        start.elapsed().as_secs_f64()
    };
    (0..RUNS).map(time).collect()
}

/// Seconds that rank 0 of `size` ranks takes for each addition of all gradients.
fn on_ranks(size: usize) -> Vec<f64> {
    let timeout = Duration::from_secs(60);
    let info = |rank| RankInfo { rank, size, local_rank: rank, local_size: size, ..RankInfo::default() };
    let first = Rendezvous::new(info(0), timeout).expect("a free port");
    let address = first.info().address.clone();
    let other = |rank| RankInfo { address: address.clone(), ..info(rank) };
    let others = (1..size).map(|rank| Rendezvous::new(other(rank), timeout).expect("a place"));
    let all: Vec<Rendezvous> = std::iter::once(first).chain(others).collect();
    std::thread::scope(|scope| {
        let start = |rendezvous: Rendezvous| scope.spawn(move || additions(&mut meet(rendezvous)));
        let ranks: Vec<_> = all.into_iter().map(start).collect();
        let times: Vec<Vec<f64>> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        times[0].clone()
    })
}

fn meet(rendezvous: Rendezvous) -> ProcessGroup {
    rendezvous.wait(&identity(), &|| None).expect("all ranks")
}

fn identity() -> Identity {
    let job = "model: q.safetensors\nfloat: f.safetensors\ndata: {path: images}\noutput: out\n";
    Job::from_yaml("bench", job, &[]).expect("a valid job").identity(&[])
}

fn additions(group: &mut ProcessGroup) -> Vec<f64> {
    (0..=RUNS).map(|_| addition(group)).skip(1).collect()
}

/// Seconds of one addition, when all buckets are there.
fn addition(group: &mut ProcessGroup) -> f64 {
    let (sender, buckets) = mpsc::channel();
    let sizes = (0..PARAMETERS).step_by(BUCKET).map(|start| BUCKET.min(PARAMETERS - start));
    let gradients: Vec<Bucket> = sizes.map(|len| vec![1.0; len]).collect();
    let count = gradients.len();
    gradients.into_iter().try_for_each(|bucket| sender.send(bucket)).expect("the receiver is here");
    let start = Instant::now();
    black_box(group.sum_buckets(buckets, count).expect("all ranks answer"));
    start.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

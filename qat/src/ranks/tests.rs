//! Exchanges between ranks that are threads of one process.

use std::time::{Duration, Instant};

use super::*;
use crate::job::{Identity, Job};

fn identity(more: &str) -> Identity {
    let text =
        format!("model: q.safetensors\nfloat: f.safetensors\ndata: {{path: images}}\noutput: out\n{more}");
    Job::from_yaml("test", &text, &[]).unwrap().identity(&[])
}

/// Runs `rank` on `size` ranks, each in a thread, and returns the results in the order of the ranks.
fn on_ranks<T: Send>(
    size: usize,
    timeout: Duration,
    rank: impl Fn(Result<ProcessGroup, RankError>) -> T + Sync,
    job: impl Fn(usize) -> Identity + Sync,
) -> Vec<T> {
    let info = |rank| RankInfo { rank, size, local_rank: rank, local_size: size, ..RankInfo::default() };
    let first = Rendezvous::new(info(0), timeout).unwrap();
    let address = first.info().address.clone();
    std::thread::scope(|scope| {
        let mut all = vec![first];
        for rank in 1..size {
            all.push(Rendezvous::new(RankInfo { address: address.clone(), ..info(rank) }, timeout).unwrap());
        }
        let (rank, job) = (&rank, &job);
        let start = |rendezvous: Rendezvous| {
            scope.spawn(move || {
                let job = job(rendezvous.info().rank);
                rank(rendezvous.wait(&job, &|| None))
            })
        };
        let threads: Vec<_> = all.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn sums_are_those_of_additions_in_the_order_of_the_ranks() {
    // The sum of these depends on the order: (1e8 + 1) - 1e8 + 3 = 3, 1e8 - 1e8 + 1 + 3 = 4 in f32.
    let values = [1e8f32, 1.0, -1e8, 3.0];
    let found = on_ranks(
        4,
        LONG,
        |group| {
            let mut group = group.unwrap();
            let mine = values[group.info().rank];
            let mut sums = [mine, 2.0 * mine];
            group.sum(&mut sums).unwrap();
            let mut exact = [f64::from(mine)];
            group.sum(&mut exact).unwrap();
            (sums, exact)
        },
        |_| identity(""),
    );
    assert_eq!(found, [([3.0, 6.0], [4.0]); 4]);
}

#[test]
fn the_work_of_rank_0_may_take_longer_than_the_time_limit() {
    let limit = Duration::from_secs(1);
    let found = on_ranks(
        2,
        limit,
        |group| {
            let mut group = group.unwrap();
            let rank = group.info().rank;
            let work = || -> Result<String, RankError> {
                std::thread::sleep(limit * 2);
                Ok(format!("made by rank {rank}"))
            };
            let document = group.first(work).unwrap();
            let bytes = group.share(|| Ok::<_, RankError>(vec![rank as u8 + 7])).unwrap();
            (document, bytes)
        },
        |_| identity(""),
    );
    assert_eq!(found, vec![("made by rank 0".to_owned(), vec![7]); 2]);
}

#[test]
fn every_rank_learns_why_one_of_them_ended() {
    let found = on_ranks(
        3,
        LONG,
        |group| {
            let mut group = group.unwrap();
            if group.info().rank == 1 {
                group.end("the loss is NaN");
                return "ended".to_owned();
            }
            let error = group.sum(&mut [1.0f32]).unwrap_err().to_string();
            group.end(&error);
            error
        },
        |_| identity(""),
    );
    let reason = "rank 1: the loss is NaN";
    assert_eq!(found, [reason, "ended", reason]);
}

#[test]
fn a_rank_that_is_gone_or_silent_is_named() {
    let limit = Duration::from_secs(1);
    for silent in [false, true] {
        let began = Instant::now();
        let found = on_ranks(
            3,
            limit,
            |group| {
                let mut group = group.unwrap();
                if group.info().rank == 2 {
                    if silent {
                        // Until the others have ended.
                        while group.connections[0].receive(Kind::Numbers).is_ok()
                            || began.elapsed() < limit * 3
                        {}
                    }
                    return String::new();
                }
                let error = group.sum(&mut [1.0f32]).unwrap_err().to_string();
                group.end(&error);
                error
            },
            |_| identity(""),
        );
        let word = if silent { "sent nothing for 1 s" } else { "closed its connection" };
        for error in &found[..2] {
            assert!(error.starts_with("rank 2 (127.0.0.1:") && error.contains(word), "{error}");
        }
    }
}

#[test]
fn ranks_with_different_jobs_are_refused() {
    let found = on_ranks(
        2,
        LONG,
        |group| group.unwrap_err().to_string(),
        |rank| identity(if rank == 0 { "seed: 1" } else { "seed: 2" }),
    );
    for error in found {
        assert!(
            error.contains("rank 1")
                && error.contains("has another job")
                && error.contains("seed is 2 and was 1"),
            "{error}"
        );
    }
}

#[test]
fn what_is_not_a_rank_is_ignored() {
    use std::io::Write;
    let info = RankInfo { size: 2, local_size: 2, ..RankInfo::default() };
    let first = Rendezvous::new(info.clone(), LONG).unwrap();
    let address = first.info().address.clone();
    let mut stranger = std::net::TcpStream::connect((address.0.as_str(), address.1)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let second = Rendezvous::new(RankInfo { rank: 1, local_rank: 1, address, ..info }, LONG).unwrap();
    let sums = std::thread::scope(|scope| {
        let run = |rendezvous: Rendezvous| {
            scope.spawn(move || {
                let mut sum = [1.0f64];
                rendezvous.wait(&identity(""), &|| None).unwrap().sum(&mut sum).unwrap();
                sum
            })
        };
        [run(first), run(second)].map(|thread| thread.join().unwrap())
    });
    assert_eq!(sums, [[2.0]; 2]);
}

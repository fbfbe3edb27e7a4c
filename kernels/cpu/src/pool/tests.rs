use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

#[test]
fn every_task_runs_once_in_every_job() {
    for threads in [1, 2, 5] {
        let mut pool = Pool::new(threads);
        for tasks in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
            pool.run(tasks, &|i, _| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts.iter().all(|c| c.load(Ordering::Relaxed) == 1),
                "{threads} threads, {tasks} tasks"
            );
        }
    }
}

#[test]
fn every_part_is_written_once() {
    let mut pool = Pool::new(3);
    for (len, size) in [(0, 4), (1, 4), (4, 4), (103, 8), (1000, 1)] {
        let mut out = vec![0.0; len];
        pool.run_parts(&mut out, size, &|i, part| part.iter_mut().for_each(|value| *value += 1.0 + i as f32));
        assert!(
            out.iter().enumerate().all(|(at, value)| *value == 1.0 + (at / size) as f32),
            "{len} / {size}"
        );
    }
}

#[test]
fn zeros_are_zeros() {
    for (threads, len) in [(1, 0), (2, 5), (2, 1 << 16), (3, (1 << 17) + 3)] {
        let mut pool = Pool::new(threads);
        let zeros = pool.zeros(len);
        assert!(zeros.len() == len && zeros.iter().all(|x| x.to_bits() == 0));
    }
}

#[test]
fn sleepers_wake_and_scratch_is_kept() {
    let mut pool = Pool::new(3);
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let sum = AtomicU32::new(0);
        pool.run(64, &|i, scratch| {
            scratch.op.reserve(256);
            scratch.op.as_u8_mut()[0] = i as u8;
            sum.fetch_add(u32::from(scratch.op.as_u8()[0]), Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 63 * 64 / 2);
    }
}

#[test]
fn every_thread_has_the_scratch_that_one_needed() {
    let mut pool = Pool::new(3);
    pool.run(2, &|i, scratch| {
        scratch.op.reserve(if i == 0 { 4096 } else { 0 });
        scratch.intermediate.reserve(if i == 1 { 8192 } else { 0 });
    });
    for _ in 0..20 {
        pool.run(64, &|_, scratch| assert!(scratch.op.len() >= 4096 && scratch.intermediate.len() >= 8192));
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let mut pool = Pool::new(2);
    let run = |pool: &mut Pool| pool.run(8, &|i, _| assert_ne!(i, 5, "task five"));
    let payload = catch_unwind(AssertUnwindSafe(|| run(&mut pool))).unwrap_err();
    assert!(payload.downcast_ref::<String>().unwrap().contains("task five"));
    let done = AtomicU32::new(0);
    pool.run(8, &|_, _| {
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 8);
}

#[test]
fn groups_have_their_items_and_their_part_of_every_output() {
    let mut pool = Pool::new(3);
    for (items, each) in [(0, 2), (1, 4), (7, 2), (64, 1)] {
        let (mut pairs, mut single) = (vec![0.0; 2 * items], vec![0.0; items]);
        let mut outs = [Some(&mut pairs[..]), None, Some(&mut single[..])];
        pool.run_groups((items, each), &mut outs, &|group, [pairs, none, single], _| {
            assert!(none.is_none() && group.len() <= each);
            let (pairs, single) = (pairs.unwrap(), single.unwrap());
            for (at, item) in group.enumerate() {
                pairs[2 * at] += item as f32;
                pairs[2 * at + 1] -= item as f32;
                single[at] += 1.0 + item as f32;
            }
        });
        assert!(
            single.iter().enumerate().all(|(item, value)| *value == 1.0 + item as f32),
            "{items} / {each}"
        );
        assert!(
            pairs.iter().enumerate().all(|(at, value)| value.abs() == (at / 2) as f32),
            "{items} / {each}"
        );
    }
}

#[test]
fn pools_borrow_threads_and_give_them_back() {
    let crew = Arc::new(Crew::new(4).unwrap());
    let (mut first, mut second) = (Pool::of(&crew), Pool::of(&crew));
    first.borrow(3);
    second.borrow(3);
    assert_eq!((first.threads(), second.threads()), (3, 2));
    let both = |first: &mut Pool, second: &mut Pool| {
        for pool in [first, second] {
            let threads = Mutex::new(BTreeSet::new());
            let done = AtomicU32::new(0);
            pool.run(50, &|_, scratch| {
                threads.lock().unwrap().insert(scratch.thread);
                std::thread::sleep(Duration::from_micros(50));
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 50);
            let threads = threads.into_inner().unwrap();
            assert!(threads.contains(&0) && threads.len() <= pool.threads(), "{threads:?}");
        }
    };
    for _ in 0..20 {
        both(&mut first, &mut second);
        first.borrow(1);
        second.borrow(4);
        assert_eq!((first.threads(), second.threads()), (1, 4));
        both(&mut first, &mut second);
        second.give_back();
        first.borrow(3);
        second.borrow(2);
        assert_eq!((first.threads(), second.threads()), (3, 2));
    }
    drop(first);
    second.borrow(9);
    assert_eq!(second.threads(), 4);
}

#[test]
fn a_group_inside_of_a_job_borrows_threads_of_the_same_crew() {
    let crew = Arc::new(Crew::new(6).unwrap());
    let mut outer = Pool::of(&crew);
    let inner: Vec<Mutex<Pool>> = (0..3).map(|_| Mutex::new(Pool::of(&crew))).collect();
    for _ in 0..50 {
        outer.borrow(3);
        let done = AtomicU32::new(0);
        outer.run(3, &|i, _| {
            let mut pool = inner[i].lock().unwrap();
            pool.borrow(2);
            pool.run(8, &|_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            pool.give_back();
        });
        outer.give_back();
        assert_eq!(done.into_inner(), 24);
    }
}

/// More threads than cores: threads are late by a job or by many.
#[test]
fn a_late_thread_takes_no_task_of_another_job() {
    let mut pool = Pool::new(8);
    for job in 0..20_000_usize {
        let (tasks, sum) = (2 + job % 11, AtomicUsize::new(0));
        pool.run(tasks, &|i, _| {
            sum.fetch_add((1 << 32) + i + job, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), (tasks << 32) + tasks * (tasks - 1) / 2 + tasks * job);
    }
}

#[test]
fn callers_share_the_threads_of_a_crew() {
    let crew = Crew::new(4).unwrap();
    let alone = crew.turn(9);
    assert_eq!(alone.threads(), 4);
    drop(alone);
    let some = crew.turn(1);
    let half = crew.turn(9);
    assert_eq!((some.threads(), half.threads()), (1, 2));
    drop((some, half));
    // More callers than threads: all get their turn, and never more threads than there are.
    let (used, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..9 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let turn = crew.turn(3);
                    most.fetch_max(
                        used.fetch_add(turn.threads(), Ordering::SeqCst) + turn.threads(),
                        Ordering::SeqCst,
                    );
                    used.fetch_sub(turn.threads(), Ordering::SeqCst);
                }
            });
        }
    });
    assert!((1..=4).contains(&most.into_inner()));
    assert_eq!(crew.turn(9).threads(), 4);
}

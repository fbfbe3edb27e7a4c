use std::sync::atomic::AtomicU32;

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

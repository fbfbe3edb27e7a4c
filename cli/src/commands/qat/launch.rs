//! Starts the other processes of `swinq qat --devices`. This process is rank 0, so that a signal to it stops
//! all.

use std::cell::RefCell;
use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use swinq::qat::job;
use swinq::qat::ranks::RankInfo;

use crate::args::{Device, QatArgs, Usage};
use crate::interrupt;

/// How long the other processes may take to end after this one.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same after a failure; connected ranks learn of it at once.
const PATIENCE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The processes that this one started, by rank from 1. They are ended with this value.
pub struct Others(RefCell<Vec<Child>>);

/// The device of a job for `device`.
pub fn of_job(device: Device) -> job::Device {
    match device {
        Device::Cpu => job::Device::Cpu,
        Device::Gpu(number) => job::Device::Cuda(number),
    }
}

/// Refuses impossible lists of devices.
///
/// # Errors
/// GPUs beside the CPU, and a GPU that is given twice.
pub fn check(devices: &[Device]) -> Result<(), Usage> {
    let gpus: Vec<usize> = devices.iter().filter_map(|device| device.gpu()).collect();
    if !gpus.is_empty() && gpus.len() < devices.len() {
        return Err(Usage("--devices: GPUs would wait for the CPU; give only one of them".to_owned()));
    }
    match (1..gpus.len()).find(|&i| gpus[..i].contains(&gpus[i])) {
        Some(twice) => Err(Usage(format!("--devices: GPU {} is given twice", gpus[twice]))),
        None => Ok(()),
    }
}

/// The command line of the process for `device`.
fn arguments(args: &QatArgs, device: Device) -> Vec<OsString> {
    let QatArgs { job, opts, resume, restart, dry_run: _, devices: _, timeout } = args;
    let mut words: Vec<OsString> =
        vec!["qat".into(), job.into(), "--timeout".into(), timeout.to_string().into()];
    words.extend(resume.then(|| "--resume".into()));
    words.extend(restart.then(|| "--restart".into()));
    words.push("--opts".into());
    words.extend(opts.iter().map(OsString::from));
    words.extend(["device".into(), of_job(device).to_string().into()]);
    words
}

impl Others {
    /// Starts a process for every device of `args` but the first, whose rank is `first`.
    ///
    /// # Errors
    /// A process that cannot be started.
    pub fn start(args: &QatArgs, first: &RankInfo) -> anyhow::Result<Others> {
        let others = Others(RefCell::default());
        for (rank, device) in args.devices.iter().enumerate().skip(1) {
            // The device is given by name, so that it does not depend on the number of the process on its
            // machine.
            let info = RankInfo { rank, local_rank: 0, ..first.clone() };
            let mut command = Command::new(std::env::current_exe().context("starting another process")?);
            command
                .args(arguments(args, *device))
                .envs(info.variables())
                .stdin(Stdio::null())
                .stdout(Stdio::null());
            let child = command.spawn().with_context(|| format!("starting rank {rank}"))?;
            others.0.borrow_mut().push(child);
        }
        Ok(others)
    }

    /// The message about a process that has ended; `None` while all run.
    pub fn ended(&self) -> Option<String> {
        let mut children = self.0.borrow_mut();
        children.iter_mut().enumerate().find_map(|(index, child)| {
            let status = child.try_wait().ok().flatten()?;
            Some(format!("rank {} has ended ({status})", index + 1))
        })
    }

    /// Waits until the processes have ended.
    ///
    /// # Errors
    /// A process that failed, or that did not end in time and is killed.
    pub fn wait(self) -> anyhow::Result<()> {
        for (index, status) in self.statuses(PATIENCE).into_iter().enumerate() {
            let rank = index + 1;
            match status {
                None => bail!("rank {rank} did not end, and was killed"),
                Some(status) if !status.success() && !interrupt::requested() => {
                    bail!("rank {rank} failed ({status})")
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Gives the processes a moment to end, after a failure of this one.
    pub fn end(self) {
        self.statuses(PATIENCE_AFTER_FAILURE);
    }

    /// How the processes ended; `None` for those that still run after `patience`.
    fn statuses(&self, patience: Duration) -> Vec<Option<ExitStatus>> {
        let began = Instant::now();
        let status = |child: &mut Child| loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(20)),
                _ => break None,
            }
        };
        self.0.borrow_mut().iter_mut().map(status).collect()
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in self.0.get_mut() {
            // Nothing is left to do if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

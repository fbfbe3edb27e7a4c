//! Data-parallel training on several processes (ranks), which exchange gradients over TCP.
//!
//! Every rank trains a copy of the model on batches of its own. The gradients of all ranks are added in the
//! order of the ranks, by rank 0, and every rank applies the same update. So all copies keep the same bits.
//! Rank 0 also validates, and writes every file. For a fixed number of ranks the result has the same bits in
//! every run on the CPU.
//!
//! Each rank has one connection, to rank 0. Connections are neither authenticated nor encrypted, as in
//! PyTorch.

mod buckets;
mod connect;
mod connection;
mod error;
mod rank_info;

use std::sync::mpsc::Receiver;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use buckets::{Bucket, Filler, Layout};
pub use connect::Rendezvous;
pub use error::RankError;
pub use rank_info::{RankInfo, TIMEOUT};

use connection::{Connection, Kind};

/// The process group: the processes that train together, as one of them sees them.
#[derive(Debug, Default)]
pub struct ProcessGroup {
    info: RankInfo,
    timeout: Duration,
    /// On rank 0, the connections to ranks 1, 2, and so on. On another rank, the connection to rank 0.
    connections: Vec<Connection>,
}

impl ProcessGroup {
    /// A group without connections, which cannot exchange anything.
    pub(crate) fn at(info: RankInfo) -> ProcessGroup {
        ProcessGroup { info, ..ProcessGroup::default() }
    }

    /// The rank of this process.
    pub fn info(&self) -> &RankInfo {
        &self.info
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.info.size
    }

    /// Whether this process is rank 0.
    pub fn is_first(&self) -> bool {
        self.info.is_first()
    }

    /// Replaces `values` with their sums over all ranks, added in the order of the ranks. Every rank must
    /// call this with the same number of values.
    ///
    /// # Errors
    /// A rank that is gone or silent, or that ended the training.
    pub fn sum<T: Number>(&mut self, values: &mut [T]) -> Result<(), RankError> {
        let mut bytes = vec![0; std::mem::size_of_val(values)];
        if self.is_first() {
            for connection in &mut self.connections {
                connection.receive_into(Kind::Numbers, &mut bytes)?;
                T::read(&bytes, |value, number| *value = number.plus(*value), values);
            }
            T::write(values, &mut bytes);
            return self
                .connections
                .iter_mut()
                .try_for_each(|connection| connection.send(Kind::Numbers, &bytes));
        }
        T::write(values, &mut bytes);
        let connection = &mut self.connections[0];
        connection.send(Kind::Numbers, &bytes)?;
        connection.receive_into(Kind::Numbers, &mut bytes)?;
        T::read(&bytes, |value, number| *value = number, values);
        Ok(())
    }

    /// [`ProcessGroup::sum`] of each of the `count` buckets that come from `buckets`. Ends without a result
    /// if the sender is dropped before it has sent them all.
    ///
    /// # Errors
    /// The errors of [`ProcessGroup::sum`].
    pub fn sum_buckets(&mut self, buckets: Receiver<Bucket>, count: usize) -> Result<Vec<Bucket>, RankError> {
        let mut sums = Vec::with_capacity(count);
        for mut bucket in buckets.into_iter().take(count) {
            self.sum(&mut bucket)?;
            sums.push(bucket);
        }
        Ok(sums)
    }

    /// Runs `work` on rank 0 only, and returns its result on every rank. Meanwhile rank 0 sends the others
    /// heartbeat messages, so that the work may take longer than the time limit. A failure on rank 0 is left
    /// to [`ProcessGroup::end`] to tell.
    ///
    /// # Errors
    /// The error of `work` on rank 0; a rank that is gone or silent, or that ended the training.
    pub fn first<T, E>(&mut self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<RankError>,
    {
        if self.connections.is_empty() {
            return work();
        }
        let document =
            self.share(|| work().map(|result| serde_json::to_vec(&result).expect("a result is plain data")))?;
        serde_json::from_slice(&document).map_err(|error| {
            self.connections[0].protocol(format!("sent a document that cannot be read ({error})")).into()
        })
    }

    /// The bytes that `make` returns on rank 0, on every rank.
    ///
    /// # Errors
    /// The errors of [`ProcessGroup::first`].
    pub fn share<E: From<RankError>>(
        &mut self,
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        if !self.is_first() {
            return Ok(self.connections[0].receive(Kind::Document)?);
        }
        let bytes = self.while_alive(make)?;
        for connection in &mut self.connections {
            connection.send(Kind::Document, &bytes)?;
        }
        Ok(bytes)
    }

    /// Runs `work` while a thread sends the other ranks heartbeat messages, four in each time limit.
    pub(crate) fn while_alive<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (done, waiting) = std::sync::mpsc::channel::<()>();
        let (connections, pause) = (&mut self.connections, self.timeout / 4);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // The channel is closed when the work is done.
                while waiting.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    for connection in connections.iter_mut() {
                        // The next exchange finds a rank that is gone.
                        let _ = connection.send(Kind::Alive, &[]);
                    }
                }
            });
            let result = work();
            drop(done);
            result
        })
    }

    /// Looks, without waiting, whether another rank has ended, or whether this one has waited for `waited`
    /// and thus too long.
    ///
    /// # Errors
    /// The rank that is gone or silent, or its reason for ending the training.
    pub fn check(&mut self, waited: Duration) -> Result<(), RankError> {
        self.connections.iter_mut().try_for_each(Connection::check)?;
        // Rank 0 may be waiting for a third rank, as in an exchange over TCP.
        let limit = if self.is_first() { self.timeout } else { 2 * self.timeout };
        match self.connections.first() {
            Some(connection) if waited > limit => Err(connection.silent()),
            _ => Ok(()),
        }
    }

    /// Tells the other ranks that the training ends for `reason`. They end with this message.
    pub fn end(&mut self, reason: &str) {
        let reason = match self.connections.is_empty() {
            true => return,
            false if reason.starts_with("rank ") => reason.to_owned(),
            false => format!("rank {}: {reason}", self.info.rank),
        };
        self.connections.iter_mut().for_each(|connection| connection.end(&reason));
    }
}

/// A number that ranks add.
pub trait Number: Copy {
    /// The sum of two numbers, `self` first.
    #[must_use]
    fn plus(self, other: Self) -> Self;

    /// Writes `values` as little-endian `bytes`.
    fn write(values: &[Self], bytes: &mut [u8]);

    /// Calls `apply` with each of `values` and the number that stands for it in `bytes`.
    fn read(bytes: &[u8], apply: impl Fn(&mut Self, Self), values: &mut [Self]);
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            fn plus(self, other: $type) -> $type {
                self + other
            }

            fn write(values: &[$type], bytes: &mut [u8]) {
                let (words, _) = bytes.as_chunks_mut();
                words.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
            }

            fn read(bytes: &[u8], apply: impl Fn(&mut $type, $type), values: &mut [$type]) {
                let (words, _) = bytes.as_chunks();
                words
                    .iter()
                    .zip(values)
                    .for_each(|(word, value)| apply(value, <$type>::from_le_bytes(*word)));
            }
        }
    };
}
number!(f32);
number!(f64);

#[cfg(test)]
mod tests;

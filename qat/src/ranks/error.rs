//! The errors of a training on several processes.

/// An error of the connection between the processes (ranks) of a training.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// A variable of the environment, by which launchers describe the ranks, cannot be used.
    #[error("{variable}: {problem}")]
    Environment {
        /// Name of the variable.
        variable: &'static str,
        /// The problem.
        problem: String,
    },
    /// The ranks did not find each other.
    #[error("{address}: {problem}")]
    Connect {
        /// Where rank 0 waits, `host:port`.
        address: String,
        /// The problem, and what to check.
        problem: String,
    },
    /// A rank has ended.
    #[error(
        "rank {rank} ({address}) closed its connection: it was killed, or it ended with an error of its own"
    )]
    Gone {
        /// The rank.
        rank: usize,
        /// Its address.
        address: String,
    },
    /// A rank hangs.
    #[error(
        "rank {rank} ({address}) sent nothing for {seconds} s; if it does not hang, its iterations take longer: raise \
         --timeout"
    )]
    Silent {
        /// The rank.
        rank: usize,
        /// Its address.
        address: String,
        /// The time limit, in seconds.
        seconds: u64,
    },
    /// Another rank has ended the training, for the reason that it gives.
    #[error("{0}")]
    Ended(String),
    /// A rank sent what this rank does not expect.
    #[error(
        "rank {rank} ({address}) {problem}; all ranks must run the same version of swinq with the same job"
    )]
    Protocol {
        /// The rank.
        rank: usize,
        /// Its address.
        address: String,
        /// The problem with its message.
        problem: String,
    },
}

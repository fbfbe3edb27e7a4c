//! The error type of this crate.

use swinq_model::ModelError;

/// An error of an export. The message names the option or site at fault, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The model has no valid plan, or the file cannot be written.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Options contradict each other, or have an impossible value.
    #[error("{option}: {problem}")]
    Option {
        /// The option, as the command line names it.
        option: &'static str,
        /// The problem, and the allowed values.
        problem: String,
    },
    /// The target has no faithful form of a site.
    #[error("site {site} cannot be exported for {target}: {problem}")]
    Site {
        /// The site.
        site: String,
        /// The target.
        target: &'static str,
        /// The reason, and the remedy.
        problem: String,
    },
    /// A value does not fit f16.
    #[error("tensor `{tensor}`: the value {value} does not fit f16; export without --fp16")]
    Float16 {
        /// The initializer.
        tensor: String,
        /// The value.
        value: f32,
    },
    /// The file would exceed the largest size of a protobuf message.
    #[error(
        "the ONNX file would have {bytes} bytes; one file holds at most {most}, and external data is not written"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        most: usize,
    },
    /// A graph that does not pass the structural check.
    #[error("the graph is not valid: node {node}: {problem}")]
    Graph {
        /// Name of the node or value.
        node: String,
        /// The problem.
        problem: String,
    },
}

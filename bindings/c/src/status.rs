//! Status codes, the message of the last error, and the barrier for panics.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use swinq::Error;
use swinq::int8_runtime::RuntimeError;

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// A pointer that must not be null is null.
    Null = 1,
    /// A handle is not that of a live object of its kind.
    Handle = 2,
    /// An argument has a value or a size that the call cannot work with.
    Argument = 3,
    /// A file does not exist, or cannot be read or written.
    File = 4,
    /// A model, its configuration or its recipe cannot be used.
    Model = 5,
    /// An image or a data set cannot be used.
    Data = 6,
    /// An engine cannot be made, or failed.
    Engine = 7,
    /// A calibration failed.
    Calibration = 8,
    /// A callback stopped the call.
    Stopped = 9,
    /// The library has an error of its own.
    Internal = 10,
}

/// A status other than [`Status::Ok`], with its message.
#[derive(Debug)]
pub struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    /// A failure.
    pub fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }

    /// The failure of a null pointer.
    pub fn null(what: impl Display) -> Failure {
        Failure::new(Status::Null, format!("{what}: is null"))
    }

    /// The failure of an argument.
    pub fn argument(what: impl Display, problem: impl Display) -> Failure {
        Failure::new(Status::Argument, format!("{what}: {problem}"))
    }

    /// The failure of a run of an engine.
    pub fn of_run(error: RuntimeError) -> Failure {
        let status = if error.is_of_arguments() { Status::Argument } else { Status::Engine };
        Failure { status, ..Failure::from(Error::from(error)) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::NotFound { .. } | Error::Io { .. } => Status::File,
            Error::Argument { .. } | Error::OverridesWithoutConfig => Status::Argument,
            Error::Open { .. } | Error::Model(_) => Status::Model,
            Error::Data(_) | Error::Labels { .. } | Error::Batch(_) => Status::Data,
            Error::Runtime(_) | Error::Device { .. } => Status::Engine,
            Error::Calib(_) | Error::Float(_) | Error::NothingQuantized { .. } => Status::Calibration,
            Error::Interrupted => Status::Stopped,
            _ => Status::Internal,
        };
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Failure { status, message }
    }
}

thread_local! {
    /// The message of the last call of this thread; `None` if it succeeded, because an empty string would be
    /// allocated.
    static MESSAGE: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// The message of the last call of this thread. The pointer is valid until the thread's next call.
pub fn last_message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_deref().unwrap_or_default().as_ptr())
}

/// Runs `call`, keeps its message and returns its status. A panic becomes [`Status::Internal`] and ends here.
pub fn guard(call: impl FnOnce() -> Result<(), Failure>) -> Status {
    // What `call` shares with others is behind locks, which recover from a panic, and the caller's memory,
    // which only holds numbers.
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            Some(Failure::new(Status::Internal, format!("internal error: {text}")))
        }
    };
    let status = failure.as_ref().map_or(Status::Ok, |failure| failure.status);
    let text = failure.map(|failure| CString::new(failure.message.replace('\0', " ")).unwrap_or_default());
    MESSAGE.with_borrow_mut(|message| *message = text);
    status
}

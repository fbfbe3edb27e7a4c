//! A connection to another rank: messages over TCP.
//!
//! A message is a header of 16 bytes and its content. The header holds the magic number `SWRK`, the kind of
//! the message (one byte), three zero bytes, and the length of the content (u64). All numbers are
//! little-endian.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::error::RankError;

const MAGIC: [u8; 4] = *b"SWRK";
/// The longest reason that a rank gives for the end of the training, in bytes.
const LONGEST_REASON: usize = 1 << 14;
/// How many bytes of a message of unknown length are read at a time, so that a wrong length costs no memory.
const STEP: u64 = 1 << 20;

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The first message of each side of a connection.
    Hello = 1,
    /// Numbers to add, or their sums.
    Numbers = 2,
    /// A document that rank 0 shares.
    Document = 3,
    /// A heartbeat message, without content.
    Alive = 4,
    /// The sender ends the training; the content is the reason.
    End = 5,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Hello, Kind::Numbers, Kind::Document, Kind::Alive, Kind::End]
            .into_iter()
            .find(|k| *k as u8 == byte)
    }
}

/// A connection to another rank.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// The other rank.
    pub(super) rank: usize,
    address: String,
    timeout: Duration,
}

impl Connection {
    /// A connection to `rank`. The other side is taken to hang if it sends nothing, or takes nothing, for
    /// `timeout`.
    pub(super) fn new(stream: TcpStream, rank: usize, timeout: Duration) -> Result<Connection, RankError> {
        let address = stream.peer_addr().map_or_else(|_| "unknown address".to_owned(), |a| a.to_string());
        let mut connection = Connection { stream, rank, address, timeout };
        connection.set_timeout(timeout)?;
        Ok(connection)
    }

    /// Sets the time limit.
    pub(super) fn set_timeout(&mut self, timeout: Duration) -> Result<(), RankError> {
        self.timeout = timeout;
        let set = self
            .stream
            .set_nodelay(true)
            .and_then(|()| self.stream.set_read_timeout(Some(timeout)))
            .and_then(|()| self.stream.set_write_timeout(Some(timeout)));
        set.map_err(|error| self.error(&error))
    }

    /// Sends a message.
    pub(super) fn send(&mut self, kind: Kind, content: &[u8]) -> Result<(), RankError> {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&MAGIC);
        header[4] = kind as u8;
        header[8..].copy_from_slice(&(content.len() as u64).to_le_bytes());
        let sent = self.stream.write_all(&header).and_then(|()| self.stream.write_all(content));
        sent.map_err(|error| self.write_error(&error))
    }

    /// The content of the next message, which must be of the kind `wanted`, into `content`, whose length it
    /// must have.
    pub(super) fn receive_into(&mut self, wanted: Kind, content: &mut [u8]) -> Result<(), RankError> {
        let length = self.header(wanted)?;
        if length != content.len() as u64 {
            let problem = format!("sent {length} bytes where {} belong", content.len());
            return Err(self.protocol(problem));
        }
        let read = self.stream.read_exact(content);
        read.map_err(|error| self.error(&error))
    }

    /// The content of the next message, which must be of the kind `wanted`.
    pub(super) fn receive(&mut self, wanted: Kind) -> Result<Vec<u8>, RankError> {
        let length = self.header(wanted)?;
        let mut content = Vec::new();
        while (content.len() as u64) < length {
            let (start, step) = (content.len(), STEP.min(length - content.len() as u64) as usize);
            content.resize(start + step, 0);
            let read = self.stream.read_exact(&mut content[start..]);
            read.map_err(|error| self.error(&error))?;
        }
        Ok(content)
    }

    /// Reads up to the content of the next message of the kind `wanted`, and returns its length.
    fn header(&mut self, wanted: Kind) -> Result<u64, RankError> {
        loop {
            let mut header = [0; 16];
            let read = self.stream.read_exact(&mut header);
            read.map_err(|error| self.error(&error))?;
            let length = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
            match Kind::of(header[4]).filter(|_| header[..4] == MAGIC) {
                Some(Kind::Alive) if length == 0 => {}
                Some(Kind::End) if wanted != Kind::End => return Err(self.reason(length)),
                Some(kind) if kind == wanted => return Ok(length),
                Some(kind) => return Err(self.protocol(format!("sent {kind:?} where {wanted:?} belongs"))),
                None => return Err(self.protocol("sent something that is not a message of swinq".to_owned())),
            }
        }
    }

    /// Looks, without waiting, whether the other rank has ended.
    pub(super) fn check(&mut self) -> Result<(), RankError> {
        let mut header = [0; 16];
        let seen = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut header));
        self.stream.set_nonblocking(false).map_err(|error| self.error(&error))?;
        match seen {
            Ok(0) => Err(self.error(&ErrorKind::UnexpectedEof.into())),
            Ok(16) if header[..4] == MAGIC && header[4] == Kind::End as u8 => {
                self.header(Kind::Numbers).map(drop)
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(self.error(&error)),
            _ => Ok(()),
        }
    }

    /// The error of a rank that does not come.
    pub(super) fn silent(&self) -> RankError {
        self.error(&ErrorKind::TimedOut.into())
    }

    /// The error that another rank sent, of `length` bytes.
    fn reason(&mut self, length: u64) -> RankError {
        let mut text = vec![0; length.min(LONGEST_REASON as u64) as usize];
        match self.stream.read_exact(&mut text) {
            Ok(()) => RankError::Ended(String::from_utf8_lossy(&text).into_owned()),
            Err(error) => self.error(&error),
        }
    }

    /// Tells the other rank that the training ends, and why. The other rank may be gone.
    pub(super) fn end(&mut self, reason: &str) {
        let mut end = reason.len().min(LONGEST_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let _ = self.send(Kind::End, &reason.as_bytes()[..end]);
    }

    /// The error of a failed write. A rank that ends sends its reason before it closes the connection, so
    /// that the reason may be there to read.
    fn write_error(&mut self, error: &std::io::Error) -> RankError {
        let found = self.error(error);
        if !matches!(found, RankError::Gone { .. }) {
            return found;
        }
        match self.header(Kind::End).map(|length| self.reason(length)) {
            Ok(reason) => reason,
            Err(_) => found,
        }
    }

    fn error(&self, error: &std::io::Error) -> RankError {
        let (rank, address) = (self.rank, self.address.clone());
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                RankError::Silent { rank, address, seconds: self.timeout.as_secs() }
            }
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe => RankError::Gone { rank, address },
            _ => {
                RankError::Connect { address: format!("rank {rank} ({address})"), problem: error.to_string() }
            }
        }
    }

    pub(super) fn protocol(&self, problem: String) -> RankError {
        RankError::Protocol { rank: self.rank, address: self.address.clone(), problem }
    }
}

//! How the ranks find each other: rank 0 listens, the others connect and say who they are.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ProcessGroup;
use super::connection::{Connection, Kind};
use super::error::RankError;
use super::rank_info::RankInfo;
use crate::job::Identity;

/// How long ranks wait for each other at the start at least: they read models and lists of images first.
const START: Duration = Duration::from_secs(300);
/// How long a rank waits before it tries to connect again.
const PAUSE: Duration = Duration::from_millis(50);
/// Version of the messages.
const VERSION: u64 = 1;

/// The first message of a rank when it connects.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: u64,
    rank: usize,
    size: usize,
    job: Identity,
}

/// The rendezvous of the ranks: the address where rank 0 listens, and how long each waits.
#[derive(Debug)]
pub struct Rendezvous {
    info: RankInfo,
    timeout: Duration,
    start: Duration,
    /// On rank 0.
    listener: Option<TcpListener>,
}

impl Rendezvous {
    /// The rendezvous of the rank that `info` describes. Later, a rank is taken to hang if it sends nothing
    /// for `timeout` (rank 0: twice as long, because it may be waiting for another). Rank 0 listens from now
    /// on; with port 0, on a free port, which [`Rendezvous::info`] then states.
    ///
    /// # Errors
    /// [`RankError::Connect`] if the address is unknown or in use.
    pub fn new(info: RankInfo, timeout: Duration) -> Result<Rendezvous, RankError> {
        let mut rendezvous = Rendezvous { info, timeout, start: START.max(timeout), listener: None };
        if rendezvous.info.size > 1 && rendezvous.info.is_first() {
            let (host, port) = &rendezvous.info.address;
            let listener = listen(host, *port).map_err(|e| rendezvous.error(e.to_string()))?;
            rendezvous.info.address.1 =
                listener.local_addr().map_err(|e| rendezvous.error(e.to_string()))?.port();
            rendezvous.listener = Some(listener);
        }
        Ok(rendezvous)
    }

    /// The rank of this process.
    pub fn info(&self) -> &RankInfo {
        &self.info
    }

    /// Waits until all ranks are there, and checks that they train the same `job`. `give_up` is
    /// asked for a reason not to wait any longer.
    ///
    /// # Errors
    /// Ranks that do not come in time, or that have another job.
    pub fn wait(
        self,
        job: &Identity,
        give_up: &dyn Fn() -> Option<String>,
    ) -> Result<ProcessGroup, RankError> {
        let mut group =
            ProcessGroup { info: self.info.clone(), timeout: self.timeout, connections: Vec::new() };
        if self.info.size == 1 {
            return Ok(group);
        }
        let joined = match &self.listener {
            Some(listener) => self.accept_all(listener, job, &mut group.connections, give_up),
            None => self.join(job, give_up).map(|connection| group.connections.push(connection)),
        };
        if let Err(error) = &joined {
            group.end(&error.to_string());
        }
        joined.map(|()| group)
    }

    /// Accepts the other ranks, into `connections` by rank.
    fn accept_all(
        &self,
        listener: &TcpListener,
        job: &Identity,
        connections: &mut Vec<Connection>,
        give_up: &dyn Fn() -> Option<String>,
    ) -> Result<(), RankError> {
        listener.set_nonblocking(true).map_err(|e| self.error(e.to_string()))?;
        let began = Instant::now();
        while connections.len() + 1 < self.info.size {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(|e| self.error(e.to_string()))?;
                    if let Some(connection) = self.greet(stream, job)? {
                        if connections.iter().any(|known| known.rank == connection.rank) {
                            return Err(self
                                .error(format!("two processes say that they are rank {}", connection.rank)));
                        }
                        connections.push(connection);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.pause(began, give_up, || {
                    let absent =
                        |rank: &usize| !connections.iter().any(|connection| connection.rank == *rank);
                    let absent: Vec<String> =
                        (1..self.info.size).filter(absent).map(|rank| rank.to_string()).collect();
                    format!("of {} ranks, these did not connect: {}", self.info.size, absent.join(", "))
                })?,
                Err(e) => return Err(self.error(e.to_string())),
            }
        }
        connections.sort_by_key(|connection| connection.rank);
        let hello = self.hello(job);
        connections.iter_mut().try_for_each(|connection| connection.send(Kind::Hello, &hello))
    }

    /// The connection of a rank that says who it is; `None` for anything else that connects to the port.
    fn greet(&self, stream: TcpStream, job: &Identity) -> Result<Option<Connection>, RankError> {
        let mut connection = Connection::new(stream, 0, self.timeout)?;
        let Ok(hello) = connection.receive(Kind::Hello) else { return Ok(None) };
        let Ok(hello) = serde_json::from_slice::<Hello>(&hello) else { return Ok(None) };
        connection.rank = hello.rank;
        if hello.size != self.info.size || hello.rank == 0 || hello.rank >= self.info.size {
            let problem = format!(
                "says that it is rank {} of {}, and not of {}",
                hello.rank, hello.size, self.info.size
            );
            return Err(self.refuse(&mut connection, problem));
        }
        match check(&hello, job) {
            Ok(()) => Ok(Some(connection)),
            Err(problem) => Err(self.refuse(&mut connection, problem)),
        }
    }

    fn refuse(&self, connection: &mut Connection, problem: String) -> RankError {
        let error = connection.protocol(problem);
        connection.end(&error.to_string());
        error
    }

    /// Connects to rank 0.
    fn join(&self, job: &Identity, give_up: &dyn Fn() -> Option<String>) -> Result<Connection, RankError> {
        let began = Instant::now();
        let stream = loop {
            match self.address().and_then(|addresses| TcpStream::connect(addresses.as_slice())) {
                Ok(stream) => break stream,
                Err(error) => self.pause(began, give_up, || format!("rank 0 cannot be reached: {error}"))?,
            }
        };
        let mut connection = Connection::new(stream, 0, self.start)?;
        connection.send(Kind::Hello, &self.hello(job))?;
        let hello = connection.receive(Kind::Hello)?;
        let hello = serde_json::from_slice::<Hello>(&hello)
            .map_err(|e| connection.protocol(format!("is unreadable: {e}")))?;
        check(&hello, job).map_err(|problem| connection.protocol(problem))?;
        // Rank 0 may be waiting for a third rank, and then tells which.
        connection.set_timeout(self.timeout * 2)?;
        Ok(connection)
    }

    fn hello(&self, job: &Identity) -> Vec<u8> {
        let hello = Hello { version: VERSION, rank: self.info.rank, size: self.info.size, job: job.clone() };
        serde_json::to_vec(&hello).expect("a hello is plain data")
    }

    fn address(&self) -> std::io::Result<Vec<SocketAddr>> {
        let (host, port) = &self.info.address;
        Ok((host.as_str(), *port).to_socket_addrs()?.collect())
    }

    /// Waits a moment; an error with `problem` after the time limit.
    fn pause(
        &self,
        began: Instant,
        give_up: &dyn Fn() -> Option<String>,
        problem: impl FnOnce() -> String,
    ) -> Result<(), RankError> {
        if let Some(reason) = give_up() {
            return Err(self.error(reason));
        }
        if began.elapsed() > self.start {
            let seconds = self.start.as_secs();
            let advice =
                "MASTER_ADDR and MASTER_PORT must name the machine of rank 0 and a port that is reachable";
            return Err(self.error(format!("{} within {seconds} s; {advice}", problem())));
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }

    fn error(&self, problem: String) -> RankError {
        let (host, port) = &self.info.address;
        RankError::Connect { address: format!("{host}:{port}"), problem }
    }
}

fn check(hello: &Hello, job: &Identity) -> Result<(), String> {
    if hello.version != VERSION {
        return Err("is another version of swinq".to_owned());
    }
    hello.job.check_resumes(job).map_err(|error| format!("has another job: {error}"))
}

/// Listens on `port`: for this machine alone if `host` is this machine's loopback address by name or number,
/// else on all of its addresses, because the name of a machine may stand for another of them here than
/// elsewhere.
fn listen(host: &str, port: u16) -> std::io::Result<TcpListener> {
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if loopback {
        return TcpListener::bind((host, port));
    }
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
}

//! How the ranks find each other: rank 0 listens, the others connect and say who they are.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::World;
use super::error::RankError;
use super::link::{Kind, Link};
use super::place::Place;
use crate::job::Identity;

/// How long ranks wait for each other at the start at least: they read models and lists of images first.
const START: Duration = Duration::from_secs(300);
/// How long a rank waits before it tries to connect again.
const PAUSE: Duration = Duration::from_millis(50);
/// Version of the messages.
const VERSION: u64 = 1;

/// What a rank says of itself when it connects.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: u64,
    rank: usize,
    size: usize,
    job: Identity,
}

/// The point where ranks meet.
#[derive(Debug)]
pub struct Meeting {
    place: Place,
    timeout: Duration,
    start: Duration,
    /// On rank 0.
    listener: Option<TcpListener>,
}

impl Meeting {
    /// The meeting of the rank at `place`. Later, a rank is taken to hang if it sends nothing for `timeout` (rank 0: twice
    /// as long, because it may be waiting for another). Rank 0 listens from now on; with port 0, on a free port, which
    /// [`Meeting::place`] then states.
    ///
    /// # Errors
    /// [`RankError::Connect`] if the address is unknown or in use.
    pub fn new(place: Place, timeout: Duration) -> Result<Meeting, RankError> {
        let mut meeting = Meeting { place, timeout, start: START.max(timeout), listener: None };
        if meeting.place.size > 1 && meeting.place.is_first() {
            let (host, port) = &meeting.place.address;
            let listener = listen(host, *port).map_err(|e| meeting.error(e.to_string()))?;
            meeting.place.address.1 = listener.local_addr().map_err(|e| meeting.error(e.to_string()))?.port();
            meeting.listener = Some(listener);
        }
        Ok(meeting)
    }

    /// The place of this process.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Waits until all ranks are there, and checks that they train the same `job`. `give_up` is
    /// asked for a reason not to wait any longer.
    ///
    /// # Errors
    /// Ranks that do not come in time, or that have another job.
    pub fn wait(self, job: &Identity, give_up: &dyn Fn() -> Option<String>) -> Result<World, RankError> {
        let mut world = World { place: self.place.clone(), timeout: self.timeout, links: Vec::new() };
        if self.place.size == 1 {
            return Ok(world);
        }
        let joined = match &self.listener {
            Some(listener) => self.accept_all(listener, job, &mut world.links, give_up),
            None => self.join(job, give_up).map(|link| world.links.push(link)),
        };
        if let Err(error) = &joined {
            world.end(&error.to_string());
        }
        joined.map(|()| world)
    }

    /// Accepts the other ranks, into `links` by rank.
    fn accept_all(
        &self,
        listener: &TcpListener,
        job: &Identity,
        links: &mut Vec<Link>,
        give_up: &dyn Fn() -> Option<String>,
    ) -> Result<(), RankError> {
        listener.set_nonblocking(true).map_err(|e| self.error(e.to_string()))?;
        let began = Instant::now();
        while links.len() + 1 < self.place.size {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(|e| self.error(e.to_string()))?;
                    if let Some(link) = self.greet(stream, job)? {
                        if links.iter().any(|known| known.rank == link.rank) {
                            return Err(
                                self.error(format!("two processes say that they are rank {}", link.rank))
                            );
                        }
                        links.push(link);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.pause(began, give_up, || {
                    let absent = |rank: &usize| !links.iter().any(|link| link.rank == *rank);
                    let absent: Vec<String> =
                        (1..self.place.size).filter(absent).map(|rank| rank.to_string()).collect();
                    format!("of {} ranks, these did not connect: {}", self.place.size, absent.join(", "))
                })?,
                Err(e) => return Err(self.error(e.to_string())),
            }
        }
        links.sort_by_key(|link| link.rank);
        let hello = self.hello(job);
        links.iter_mut().try_for_each(|link| link.send(Kind::Hello, &hello))
    }

    /// The connection of a rank that says who it is; `None` for anything else that connects to the port.
    fn greet(&self, stream: TcpStream, job: &Identity) -> Result<Option<Link>, RankError> {
        let mut link = Link::new(stream, 0, self.timeout)?;
        let Ok(hello) = link.receive(Kind::Hello) else { return Ok(None) };
        let Ok(hello) = serde_json::from_slice::<Hello>(&hello) else { return Ok(None) };
        link.rank = hello.rank;
        if hello.size != self.place.size || hello.rank == 0 || hello.rank >= self.place.size {
            let problem = format!(
                "says that it is rank {} of {}, and not of {}",
                hello.rank, hello.size, self.place.size
            );
            return Err(self.refuse(&mut link, problem));
        }
        match check(&hello, job) {
            Ok(()) => Ok(Some(link)),
            Err(problem) => Err(self.refuse(&mut link, problem)),
        }
    }

    fn refuse(&self, link: &mut Link, problem: String) -> RankError {
        let error = link.protocol(problem);
        link.end(&error.to_string());
        error
    }

    /// Connects to rank 0.
    fn join(&self, job: &Identity, give_up: &dyn Fn() -> Option<String>) -> Result<Link, RankError> {
        let began = Instant::now();
        let stream = loop {
            match self.address().and_then(|addresses| TcpStream::connect(addresses.as_slice())) {
                Ok(stream) => break stream,
                Err(error) => self.pause(began, give_up, || format!("rank 0 cannot be reached: {error}"))?,
            }
        };
        let mut link = Link::new(stream, 0, self.start)?;
        link.send(Kind::Hello, &self.hello(job))?;
        let hello = link.receive(Kind::Hello)?;
        let hello = serde_json::from_slice::<Hello>(&hello)
            .map_err(|e| link.protocol(format!("is unreadable: {e}")))?;
        check(&hello, job).map_err(|problem| link.protocol(problem))?;
        // Rank 0 may be waiting for a third rank, and then tells which.
        link.set_timeout(self.timeout * 2)?;
        Ok(link)
    }

    fn hello(&self, job: &Identity) -> Vec<u8> {
        let hello =
            Hello { version: VERSION, rank: self.place.rank, size: self.place.size, job: job.clone() };
        serde_json::to_vec(&hello).expect("a hello is plain data")
    }

    fn address(&self) -> std::io::Result<Vec<SocketAddr>> {
        let (host, port) = &self.place.address;
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
        let (host, port) = &self.place.address;
        RankError::Connect { address: format!("{host}:{port}"), problem }
    }
}

fn check(hello: &Hello, job: &Identity) -> Result<(), String> {
    if hello.version != VERSION {
        return Err("is another version of swinq".to_owned());
    }
    hello.job.check_resumes(job).map_err(|error| format!("has another job: {error}"))
}

/// Listens on `port`: for this machine alone if `host` is this machine's loopback address by name or number, else on all of
/// its addresses, because the name of a machine may stand for another of them here than elsewhere.
fn listen(host: &str, port: u16) -> std::io::Result<TcpListener> {
    let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if loopback {
        return TcpListener::bind((host, port));
    }
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
}

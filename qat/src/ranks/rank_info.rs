//! The rank of a process, and the variables of the environment in which launchers state it.

use std::time::Duration;

use super::error::RankError;

/// The time limit that applies unless the user sets another.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The rank of a process, and the process group that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankInfo {
    /// The number of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// The number of this process among those of its machine.
    pub local_rank: usize,
    /// Number of processes on this machine.
    pub local_size: usize,
    /// Where rank 0 waits for the others: host name or address, and port.
    pub address: (String, u16),
}

impl Default for RankInfo {
    /// A process that trains alone.
    fn default() -> RankInfo {
        RankInfo { rank: 0, size: 1, local_rank: 0, local_size: 1, address: ("127.0.0.1".to_owned(), 0) }
    }
}

impl RankInfo {
    /// Whether this process is rank 0, which writes files and validates.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// The rank that the environment states by the variables of PyTorch's launcher, torchrun: `RANK`,
    /// `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and, for the GPU, `LOCAL_RANK` and `LOCAL_WORLD_SIZE`.
    /// `None` if neither `RANK` nor `WORLD_SIZE` is set. torchrun itself listens on `MASTER_PORT`, and says
    /// so by `TORCHELASTIC_USE_AGENT_STORE`; rank 0 then waits on the port after it.
    ///
    /// # Errors
    /// [`RankError::Environment`] for a variable that is missing or has an impossible value.
    pub fn from_environment() -> Result<Option<RankInfo>, RankError> {
        RankInfo::from_variables(&|name| std::env::var(name).ok())
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<RankInfo>, RankError> {
        if variable("RANK").is_none() && variable("WORLD_SIZE").is_none() {
            return Ok(None);
        }
        let (rank, size) = (required(variable, "RANK")?, required(variable, "WORLD_SIZE")?);
        below("RANK", rank, "WORLD_SIZE", size)?;
        let local_rank = number(variable, "LOCAL_RANK")?.unwrap_or(0);
        let local_size = number(variable, "LOCAL_WORLD_SIZE")?.unwrap_or(local_rank + 1);
        below("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size)?;
        let mut info = RankInfo { rank, size, local_rank, local_size, ..RankInfo::default() };
        if size > 1 {
            info.address = address(variable)?;
        }
        Ok(Some(info))
    }

    /// The variables that state this rank; the inverse of [`RankInfo::from_environment`].
    pub fn variables(&self) -> [(&'static str, String); 6] {
        [
            ("RANK", self.rank.to_string()),
            ("WORLD_SIZE", self.size.to_string()),
            ("LOCAL_RANK", self.local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", self.local_size.to_string()),
            ("MASTER_ADDR", self.address.0.clone()),
            ("MASTER_PORT", self.address.1.to_string()),
        ]
    }
}

fn address(variable: &dyn Fn(&str) -> Option<String>) -> Result<(String, u16), RankError> {
    let host =
        variable("MASTER_ADDR").filter(|host| !host.is_empty()).ok_or_else(|| missing("MASTER_ADDR"))?;
    let port = required(variable, "MASTER_PORT")?;
    let agent = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    match u16::try_from(port + usize::from(agent)) {
        Ok(port) if port > 0 => Ok((host, port)),
        _ => {
            Err(RankError::Environment { variable: "MASTER_PORT", problem: format!("{port} is not a port") })
        }
    }
}

fn missing(variable: &'static str) -> RankError {
    let problem = "is not set, but RANK or WORLD_SIZE is; a training on several processes needs RANK, WORLD_SIZE, MASTER_ADDR \
                   and MASTER_PORT, and one on a single process none of them";
    RankError::Environment { variable, problem: problem.to_owned() }
}

fn required(variable: &dyn Fn(&str) -> Option<String>, name: &'static str) -> Result<usize, RankError> {
    number(variable, name)?.ok_or_else(|| missing(name))
}

fn number(variable: &dyn Fn(&str) -> Option<String>, name: &'static str) -> Result<Option<usize>, RankError> {
    let Some(text) = variable(name) else { return Ok(None) };
    let problem = format!("`{text}` is not a number from 0 to {}", u32::MAX);
    let number = text.trim().parse::<u32>();
    number.map(|n| Some(n as usize)).map_err(|_| RankError::Environment { variable: name, problem })
}

fn below(variable: &'static str, index: usize, of: &str, count: usize) -> Result<(), RankError> {
    if index < count {
        return Ok(());
    }
    Err(RankError::Environment { variable, problem: format!("{index} is not below {of}, which is {count}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(variables: &[(&str, &str)]) -> Result<Option<RankInfo>, String> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        RankInfo::from_variables(&find).map_err(|error| error.to_string())
    }

    const TWO: [(&str, &str); 4] =
        [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];

    #[test]
    fn variables_of_torchrun_state_a_place() {
        assert_eq!(info(&[("PATH", "x")]), Ok(None));
        let found = info(&TWO).unwrap().unwrap();
        assert_eq!((found.rank, found.size, found.local_rank), (1, 2, 0));
        assert_eq!(found.address, ("node0".to_owned(), 29500));
        let agent = [&TWO[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("LOCAL_RANK", "1")]].concat();
        let found = info(&agent).unwrap().unwrap();
        assert_eq!((found.address.1, found.local_rank, found.local_size), (29501, 1, 2));
        let alone = info(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap().unwrap();
        assert_eq!(alone, RankInfo::default());
    }

    #[test]
    fn a_place_is_what_its_variables_state() {
        let stated =
            RankInfo { rank: 2, size: 4, local_rank: 0, local_size: 2, address: ("10.0.0.1".to_owned(), 7) };
        let variables = stated.variables();
        let found = RankInfo::from_variables(&|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone())
        });
        assert_eq!(found.unwrap(), Some(stated));
    }

    #[test]
    fn impossible_variables_are_named() {
        let with = |name, value| {
            let kept = TWO.iter().filter(|(n, _)| *n != name).copied();
            kept.chain([(name, value)]).collect::<Vec<_>>()
        };
        let without = |name| TWO.iter().filter(|(n, _)| *n != name).copied().collect::<Vec<_>>();
        for (variables, words) in [
            (with("RANK", "2"), ["RANK: 2", "WORLD_SIZE, which is 2"]),
            (with("RANK", "-1"), ["RANK: `-1`", "not a number"]),
            (with("WORLD_SIZE", "two"), ["WORLD_SIZE: `two`", "not a number"]),
            (with("MASTER_PORT", "65536"), ["MASTER_PORT: 65536", "not a port"]),
            (with("MASTER_PORT", "0"), ["MASTER_PORT: 0", "not a port"]),
            (with("MASTER_ADDR", ""), ["MASTER_ADDR: ", "is not set"]),
            (with("LOCAL_WORLD_SIZE", "0"), ["LOCAL_RANK: 0", "LOCAL_WORLD_SIZE, which is 0"]),
            (without("RANK"), ["RANK: ", "is not set"]),
            (without("WORLD_SIZE"), ["WORLD_SIZE: ", "is not set"]),
        ] {
            let error = info(&variables).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{variables:?}: {error}");
        }
    }
}

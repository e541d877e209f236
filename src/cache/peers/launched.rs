//! Place of this process in its job, from the variables that its launcher has set.
//!
//! Names and meanings of the variables: torchrun's from PyTorch's "torchrun (Elastic Launch)", Open MPI's from its FAQ
//! "Running MPI jobs", PMI's from MPICH's Hydra and Intel MPI, Slurm's from srun(1).

use dlfs_base::error::{Result, invalid};

/// The place of this process in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// This rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// The number of ranks on this node, if the launcher provides it.
    pub local_world_size: Option<u32>,
    /// This rank among those of its node, if the launcher provides it.
    pub local_rank: Option<u32>,
    /// The host and port of rank 0's store: `MASTER_ADDR` and `MASTER_PORT`.
    pub master: Option<(String, u16)>,
    /// The unique name of this start of the job; empty if the launcher provides none.
    pub round: String,
}

/// The variables of one launcher.
struct Variables {
    rank: &'static str,
    world_size: &'static str,
    local_world_size: Option<&'static str>,
    local_rank: &'static str,
    /// Variables whose values together name this start of the job.
    round: &'static [&'static str],
    /// The launcher counts as absent without this variable, as without those of rank and world size.
    needs: &'static str,
}

/// In order of precedence, since torchrun may itself run under Slurm.
const LAUNCHERS: &[Variables] = &[
    Variables {
        // torchrun
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_world_size: Some("LOCAL_WORLD_SIZE"),
        local_rank: "LOCAL_RANK",
        round: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
        needs: "RANK",
    },
    Variables {
        // Open MPI
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_world_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        round: &["PMIX_NAMESPACE"],
        needs: "OMPI_COMM_WORLD_RANK",
    },
    Variables {
        // PMI
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_world_size: Some("MPI_LOCALNRANKS"),
        local_rank: "MPI_LOCALRANKID",
        round: &["PMI_JOBID"],
        needs: "PMI_RANK",
    },
    Variables {
        // Slurm
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_world_size: None,
        local_rank: "SLURM_LOCALID",
        round: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
        // A batch script also has the other variables, but it is one process, whatever the number of tasks.
        needs: "SLURM_STEP_ID",
    },
];

impl Launched {
    /// Reads the variables through `get`; `None` if no launcher has set its `needs`, rank and world size.
    ///
    /// # Errors
    /// A variable (or the port of the store) is not a number, or the rank is not below the world size.
    fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let is_there = |launcher: &&Variables| {
            [launcher.needs, launcher.rank, launcher.world_size]
                .iter()
                .all(|name| get(name).is_some())
        };
        let Some(launcher) = LAUNCHERS.iter().find(is_there) else { return Ok(None) };
        let number = |name: &str| {
            let value = get(name).unwrap_or_default();
            let not_one =
                |_| invalid(format!("{name} is {value:?}, and not a whole number below 2^32"));
            value.parse::<u32>().map_err(not_one)
        };
        let rank = number(launcher.rank)?;
        let world_size = number(launcher.world_size)?;
        if rank >= world_size {
            return Err(invalid(format!(
                "{} says {rank} and {} says {world_size}: ranks count from 0",
                launcher.rank, launcher.world_size
            )));
        }
        let local_world_size = launcher.local_world_size.filter(|name| get(name).is_some());
        let local_world_size = local_world_size.map(&number).transpose()?;
        let local_rank = Some(launcher.local_rank).filter(|name| get(name).is_some());
        let local_rank = local_rank.map(&number).transpose()?;
        let master = match (get("MASTER_ADDR"), get("MASTER_PORT")) {
            (Some(host), Some(port)) => {
                let port = port.parse().map_err(|_| {
                    invalid(format!("MASTER_PORT is {port:?}, which is no port number"))
                })?;
                Some((host, port))
            }
            _ => None,
        };
        let named: Vec<String> = launcher.round.iter().filter_map(|name| get(name)).collect();
        let round = named.join(".");
        Ok(Some(Launched { rank, world_size, local_world_size, local_rank, master, round }))
    }

    /// A name of this start of the job among those on the machine.
    pub fn job(&self) -> String {
        let master = self.master.as_ref().map(|(host, port)| format!("{host}:{port}"));
        format!("{} {}", self.round, master.unwrap_or_default())
    }

    /// Reads the environment of this process; `None` if no launcher is found: under Slurm, also in a batch script,
    /// which is one process.
    ///
    /// # Errors
    /// A variable (or the port of the store) is not a number, or the rank is not below the world size.
    pub fn from_env() -> Result<Option<Launched>> {
        Launched::from_variables(|name| std::env::var(name).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched_by(variables: &[(&str, &str)]) -> Result<Option<Launched>> {
        Launched::from_variables(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_launcher_says_rank_and_world_size() {
        let torchrun = [
            ("RANK", "5"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "8"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "job7"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
        ];
        let expected = Launched {
            rank: 5,
            world_size: 16,
            local_world_size: Some(8),
            local_rank: Some(1),
            master: Some(("node0".to_owned(), 29_500)),
            round: "job7.2".to_owned(),
        };
        assert_eq!(launched_by(&torchrun).unwrap(), Some(expected));
        for names in [
            ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
            ["PMI_RANK", "PMI_SIZE"],
            ["SLURM_PROCID", "SLURM_NTASKS"],
        ] {
            let step = ("SLURM_STEP_ID", "0");
            let found = launched_by(&[(names[0], "3"), (names[1], "4"), step]).unwrap().unwrap();
            assert_eq!((found.rank, found.world_size), (3, 4), "{names:?}");
            assert_eq!(found.master, None);
        }
    }

    #[test]
    fn torchrun_under_slurm_counts_and_a_batch_script_does_not() {
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "0")];
        assert_eq!(launched_by(&slurm).unwrap(), None);
        let both =
            [&slurm[..], &[("SLURM_STEP_ID", "1"), ("RANK", "2"), ("WORLD_SIZE", "8")]].concat();
        assert_eq!(launched_by(&both).unwrap().unwrap().rank, 2, "torchrun's");
        assert_eq!(launched_by(&[]).unwrap(), None);
        assert_eq!(launched_by(&[("RANK", "2")]).unwrap(), None, "a rank of an unknown world");
    }

    #[test]
    fn a_variable_without_a_number_is_named() {
        let error = launched_by(&[("RANK", "two"), ("WORLD_SIZE", "8")]).unwrap_err().to_string();
        assert!(error.contains("RANK is \"two\""), "{error}");
        let error = launched_by(&[("RANK", "8"), ("WORLD_SIZE", "8")]).unwrap_err().to_string();
        assert!(error.contains("RANK says 8 and WORLD_SIZE says 8"), "{error}");
        let port = [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "x")];
        assert!(launched_by(&port).unwrap_err().to_string().contains("MASTER_PORT"));
    }
}

//! The four scenarios of the HDMLP thesis (section 5.2) and the times in its tables.

use serde::Serialize;

use crate::environment::{
    Class, Config, ConfigError, Dataset, Environment, Scheme, Sharing, Training,
};
use crate::policy::{Policy, PolicyError, Simulation};

/// A scenario's results and the published times.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// 1 to 4.
    pub scenario: u32,
    /// One row per policy, in the order of the thesis.
    pub rows: Vec<Row>,
}

/// A policy's simulated time and the published time.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: &'static str,
    /// The simulated time; `None` if the policy is not applicable.
    pub seconds: Option<f64>,
    /// The time in the thesis; `None` for "N/A" and for policies that the thesis lacks.
    pub thesis: Option<f64>,
    /// Simulated / published.
    pub ratio: Option<f64>,
}

/// Simulates `policies` on `scenario`.
///
/// # Errors
/// There is no such scenario.
pub fn table(scenario: u32, policies: &[Policy]) -> Result<Table, ConfigError> {
    let simulation = Simulation::new(&config(scenario)?)?;
    let rows = policies.iter().map(|&policy| {
        let seconds = match simulation.run(policy) {
            Ok(outcome) => Some(outcome.seconds),
            Err(PolicyError::NotApplicable(_)) => None,
            Err(PolicyError::Config(error)) => return Err(error),
        };
        let thesis = printed(scenario, policy);
        let ratio = seconds.zip(thesis).map(|(seconds, thesis)| seconds / thesis);
        Ok(Row { policy: policy.name(), seconds, thesis, ratio })
    });
    Ok(Table { scenario, rows: rows.collect::<Result<_, _>>()? })
}

/// The configuration of `scenario`.
///
/// The thesis does not state the number of epochs; these reproduce its lower bound.
///
/// # Errors
/// There is no such scenario.
pub fn config(scenario: u32) -> Result<Config, ConfigError> {
    let (mean_mb, deviation_mb, samples, epochs) = match scenario {
        1 => (0.027, 0.01, 10_000, 10),
        2 => (1.0, 0.1, 150_000, 10),
        3 => (2.0, 0.2, 300_000, 5),
        4 => (3.0, 0.2, 400_000, 5),
        _ => return Err(ConfigError::Empty("the thesis has the scenarios 1 to 4")),
    };
    Ok(Config {
        environment: environment(),
        dataset: Dataset { samples, mean_mb, deviation_mb },
        training: Training {
            epochs,
            batch: 100,
            scheme: Scheme::Uniform,
            drop_last: true,
            seed: u64::from(scenario),
        },
    })
}

/// The machines of section 5.2.1 and listing 4.1.
pub(crate) fn environment() -> Environment {
    let memory = [(2, 21_164.0)];
    Environment {
        nodes: 4,
        compute_mb_s: 100.0,
        preprocess_mb_s: 200.0,
        network_mb_s: 10_000.0,
        origin_link_mb_s: 2_000.0,
        origin_mb_s: vec![(1, 66.0), (2, 86.0), (3, 129.0), (4, 146.0)],
        origin_shared_by: Sharing::Nodes,
        origin_chunks_mb_s: None,
        staging: Class::new(1_024.0, 2, &memory),
        tiers: vec![
            Class::new(51_200.0, 2, &memory),
            // The published times imply that loading this tier takes the same 0.0162 s per MB as memory: the
            // disk does not limit writes there.
            Class { write_mb_s: Some(memory.to_vec()), ..Class::new(102_400.0, 2, &[(2, 86.0)]) },
        ],
    }
}

/// The times in tables 5.1 to 5.4, in seconds.
pub fn printed(scenario: u32, policy: Policy) -> Option<f64> {
    let rows: [f64; 4] = match policy {
        Policy::LowerBound => [7.30, 3_825.66, 7_655.25, 15_204.78],
        Policy::Naive => [27.78, 15_130.54, 30_272.96, 60_526.36],
        Policy::Hdmlp => [7.78, 3_836.12, 7_661.26, 16_795.17],
        Policy::StagingPool => [10.24, 4_982.27, 9_945.29, 19_888.26],
        Policy::DeepioOrdered => [8.41, 4_433.27, 23_948.24, 54_122.52],
        Policy::DeepioOpportunistic => [8.40, 4_432.90, 8_487.42, 16_034.89],
        Policy::ParallelStaging => [10.11, 4_972.65, 9_313.58, 16_861.82],
        Policy::LbannDynamic => [7.71, 4_051.12, f64::NAN, f64::NAN],
        Policy::LbannPreloading => [8.41, 4_433.27, f64::NAN, f64::NAN],
        Policy::LocalityAware => [8.41, 4_433.27, 9_314.33, 19_082.99],
        _ => return None,
    };
    Some(rows[scenario.checked_sub(1)? as usize]).filter(|seconds| !seconds.is_nan())
}

//! The configurations that SC'21 simulates (Dryden and others, section 6, figure 8), which shows
//! bars without numbers.

use crate::environment::{Class, Config, Dataset, Environment, Scheme, Sharing, Training};

/// One of its data sets.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// The name on the command line.
    pub name: &'static str,
    dataset: Dataset,
    nodes: u32,
    batch_of_node: u64,
}

/// All six, smallest first.
pub const SETUPS: [Setup; 6] = [
    setup("mnist", (50_000, 0.000_76, 0.0), 4, 32),
    setup("imagenet-1k", (1_281_167, 0.1077, 0.1), 4, 32),
    setup("openimages", (1_743_042, 0.2937, 0.2), 4, 32),
    setup("imagenet-22k", (14_197_122, 0.1077, 0.2), 4, 32),
    setup("cosmoflow", (262_144, 17.0, 0.0), 4, 16),
    setup("cosmoflow-512", (10_000, 1_000.0, 0.0), 8, 1),
];

const fn setup(
    name: &'static str,
    (samples, mean_mb, deviation_mb): (u64, f64, f64),
    nodes: u32,
    batch_of_node: u64,
) -> Setup {
    Setup { name, dataset: Dataset { samples, mean_mb, deviation_mb }, nodes, batch_of_node }
}

impl Setup {
    /// Its machines, data set and training, for `epochs` epochs: the paper does not state the
    /// number.
    pub fn config(&self, epochs: u32) -> Config {
        Config {
            environment: Environment {
                nodes: self.nodes,
                compute_mb_s: 64.0,
                preprocess_mb_s: 200.0,
                network_mb_s: 24_000.0,
                // The paper's model has no such link.
                origin_link_mb_s: 24_000.0,
                origin_mb_s: vec![(1, 330.0), (2, 730.0), (4, 1_540.0), (8, 2_870.0)],
                origin_shared_by: Sharing::Nodes,
                origin_chunks_mb_s: None,
                staging: Class::new(5_000.0, 8, &[(8, 111_000.0)]),
                tiers: vec![
                    Class::new(120_000.0, 4, &[(4, 85_000.0)]),
                    Class::new(900_000.0, 2, &[(2, 4_000.0)]),
                ],
            },
            dataset: self.dataset,
            training: Training {
                epochs,
                batch: self.batch_of_node * u64::from(self.nodes),
                scheme: Scheme::Uniform,
                drop_last: false,
                seed: 21,
            },
        }
    }
}

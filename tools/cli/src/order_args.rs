//! Checks of the options for order and shares.

use dlfs::options::{Choice, Kind, Order};
use dlfs::order::{OrderSpec, Sharding};

use crate::exit::{Failure, usage};

/// The order for `world_size` ranks, if no weights are given.
///
/// # Errors
/// `Usage`: options exclude each other, or a number is out of range.
pub(crate) fn unweighted(order: &Order, world_size: u32) -> Result<OrderSpec, Failure> {
    if order.order.0 == Kind::Weighted {
        let text = "give --weights, of dlfs read, instead of --order weighted".to_owned();
        return Err(Failure::Usage(text));
    }
    order.spec(world_size).map_err(usage)
}

/// Checks that shares of this kind suit the order and the run.
///
/// # Errors
/// `Usage`: aligned shares in an order that does not read whole chunks; local shares without peers, or in an
/// order that gives each rank its own samples.
pub(crate) fn check_shard(
    order: &Order,
    Choice(shard): Choice<Sharding>,
    has_peers: bool,
) -> Result<(), Failure> {
    let refuse = |text: &str| Err(Failure::Usage(text.to_owned()));
    match shard {
        Sharding::Local if !has_peers => refuse(
            "--shard local goes with --peers only: it gives each rank what its node holds for all",
        ),
        Sharding::Local if matches!(order.order.0, Kind::Local | Kind::Partial) => refuse(
            "--shard local goes with --order global, grouped or sequential: this order gives each \
             rank samples of its own",
        ),
        Sharding::Aligned if order.order.0 != Kind::Grouped => {
            refuse("--shard aligned goes with --order grouped only")
        }
        _ => Ok(()),
    }
}

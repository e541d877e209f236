//! Ports of listeners that have gone.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Binds where another listener was. A connection of another test may have the port for a moment.
pub fn bind_again<T, E: Debug>(bind: impl Fn() -> Result<T, E>) -> T {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match bind() {
            Ok(bound) => return bound,
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

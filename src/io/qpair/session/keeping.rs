//! The turn of the keeper's thread, which passes events and actions between the sessions and their admin queues. The
//! thread runs the turn with the connections of a transport, a simulation with a simulated network.

use std::fmt;
use std::time::Instant;

use super::lifecycle::{Action, Level, NUM_SLOTS};
use super::{AdminEvent, Attached, Failure, Identified, Shared};

/// The environment of a turn: admin queues with their connections, and the log.
pub trait Keeping {
    /// One route to the namespaces.
    type Portal: Clone + fmt::Display;
    /// The data that a queue pair needs in order to join a session.
    type JoinInfo;
    /// An admin queue with its connection.
    type Admin;

    /// Starts to connect an admin queue to the portal of this index.
    fn connect(&mut self, now: Instant, portal: usize) -> Result<Self::Admin, Failure>;

    /// Transfers bytes of an admin queue and advances it. After an error the controller is lost.
    fn poll(&mut self, now: Instant, admin: &mut Self::Admin) -> Result<AdminEvent, Failure>;

    /// Closes the connection of an admin queue, which has failed for this reason.
    fn close(&mut self, now: Instant, admin: Self::Admin, failure: &Failure);

    /// The identified controller and namespaces; complete after [`AdminEvent::Ready`].
    fn identified<'a>(&self, admin: &'a Self::Admin) -> &'a Identified;

    /// The data that queue pairs need to join the session; valid after [`AdminEvent::Ready`].
    fn join_info(&self, admin: &Self::Admin) -> Self::JoinInfo;

    /// The namespaces of `identified`, as queue pairs see them.
    fn describe(&self, identified: &Identified) -> Vec<Attached>;

    /// The name of an admin queue's current step.
    fn stage(&self, admin: &Self::Admin) -> &'static str;

    /// Logs a message.
    fn say(&mut self, level: Level, text: String);
}

/// Runs one turn for the sessions of `shared` and the admin queue of each slot; returns `false` when the sessions
/// have ended for good.
pub fn turn<K: Keeping>(
    now: Instant,
    shared: &Shared<K::Portal, K::JoinInfo>,
    admins: &mut [Option<K::Admin>; NUM_SLOTS],
    keeping: &mut K,
) -> bool {
    for (slot, admin) in admins.iter_mut().enumerate() {
        if let Some(admin) = admin
            && !shared.with(|lifecycle| lifecycle.is_reset(slot))
        {
            poll(now, shared, slot, admin, keeping);
        }
    }
    let stage = |admin: &Option<K::Admin>| {
        admin.as_ref().map_or("connecting", |admin| keeping.stage(admin))
    };
    let stages = [stage(&admins[0]), stage(&admins[1])];
    shared.with(|lifecycle| lifecycle.handle_time(now, stages));
    while let Some(action) = shared.with(|lifecycle| lifecycle.poll_action()) {
        match action {
            Action::Connect { slot, portal } => match keeping.connect(now, portal) {
                Ok(connecting) => admins[slot] = Some(connecting),
                Err(failure) => {
                    shared.with(|lifecycle| lifecycle.handle_failed(now, slot, failure));
                }
            },
            Action::Close { slot, failure } => {
                if let Some(admin) = admins[slot].take() {
                    keeping.close(now, admin, &failure);
                }
            }
            Action::Say { level, text } => keeping.say(level, text),
        }
    }
    !shared.with(|lifecycle| lifecycle.is_dead())
}

/// Polls the admin queue and reports what it found.
fn poll<K: Keeping>(
    now: Instant,
    shared: &Shared<K::Portal, K::JoinInfo>,
    slot: usize,
    admin: &mut K::Admin,
    keeping: &mut K,
) {
    match keeping.poll(now, admin) {
        Ok(AdminEvent::Nothing) => {}
        Ok(AdminEvent::Ready) => {
            let join_info = keeping.join_info(admin);
            let identified = keeping.identified(admin);
            let namespaces = keeping.describe(identified);
            shared.with(|lifecycle| {
                lifecycle.handle_ready(now, slot, join_info, identified, namespaces);
            });
        }
        Ok(AdminEvent::Changed) => {
            let identified = keeping.identified(admin);
            let namespaces = keeping.describe(identified);
            shared.with(|lifecycle| {
                lifecycle.handle_changed(now, slot, identified, namespaces);
            });
        }
        Err(failure) => shared.with(|lifecycle| lifecycle.handle_failed(now, slot, failure)),
    }
}

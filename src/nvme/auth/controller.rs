//! The controller's side of an authentication. `mod.rs` has the exchange, `response.rs` the formulas.

use super::group::{Exponentiation, Power};
use super::host::{NEW_TLS_PSK, sc_c};
use super::response::{Transcript, session_key};
use super::{
    Concatenation, Digest, Explanation, Failed, Group, Hash, Message, Next, OwnNumbers, Randomness,
    Secret, TlsPsk,
};
use crate::nvme::Nqn;

/// Terms that a controller requires of a host.
#[derive(Debug, Clone)]
pub struct ControllerTerms {
    /// The host's NQN, as in Connect.
    pub hostnqn: Nqn,
    /// The subsystem's NQN, as in Connect.
    pub subnqn: Nqn,
    /// The host's secrets; any one is accepted, so that a new secret can replace an old one.
    pub secrets: Vec<Secret>,
    /// The subsystem's secret, for hosts that also authenticate the controller; `None`: such hosts are refused.
    pub ctrl_secret: Option<Secret>,
    /// Permitted hashes, most preferred first.
    pub hashes: Vec<Hash>,
    /// Permitted groups, most preferred first.
    pub groups: Vec<Group>,
    /// Generation of a TLS PSK. A host that requests otherwise is refused.
    pub concatenation: Concatenation,
}

/// The controller's side. It first waits for the host's Negotiate message.
#[derive(Debug)]
pub struct Controller {
    terms: ControllerTerms,
    own: OwnNumbers,
    state: ControllerState,
    /// The TLS PSK, where one is generated.
    psk: Option<TlsPsk>,
}

/// The parameters of this authentication: requested by the host, and chosen by the controller.
#[derive(Debug, Clone, Copy)]
struct Agreed {
    /// The number of the transaction.
    tid: u16,
    /// SC_C: the requested kind of TLS PSK generation; 0 for none.
    sc_c: u8,
    hash: Hash,
    group: Group,
}

/// The fields of the host's Reply that [`Controller::verify`] needs.
struct Answer {
    response: Vec<u8>,
    /// C2.
    challenge: Vec<u8>,
    /// The sequence number of C2, if the host asked for a response.
    sequence: Option<u32>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answer")
    }
}

#[derive(Debug)]
enum ControllerState {
    AwaitingNegotiate,
    ComputingPublic(Agreed),
    SendingChallenge(Agreed),
    AwaitingReply(Agreed),
    ComputingShared(Agreed, Answer),
    SendingSuccess1 { tid: u16, is_mutual: bool },
    AwaitingSuccess2 { tid: u16 },
    SendingFailure1(Failed),
    Ended,
}

impl Controller {
    /// A controller that waits for the host's first message.
    pub fn new(terms: ControllerTerms, randomness: &Randomness) -> Controller {
        let own = OwnNumbers::new(randomness);
        Controller { terms, own, state: ControllerState::AwaitingNegotiate, psk: None }
    }

    /// Notes that the message of [`Next::Send`] has been sent.
    pub fn sent(&mut self) -> Next {
        match std::mem::replace(&mut self.state, ControllerState::Ended) {
            ControllerState::SendingChallenge(agreed) => {
                self.state = ControllerState::AwaitingReply(agreed);
                Next::Receive
            }
            ControllerState::SendingSuccess1 { tid, is_mutual: true } => {
                self.state = ControllerState::AwaitingSuccess2 { tid };
                Next::Receive
            }
            ControllerState::SendingSuccess1 { .. } => Next::Authenticated,
            ControllerState::SendingFailure1(failed) => Next::Failed(failed),
            _ => Next::Failed(Failed::OutOfTurn),
        }
    }

    /// Handles a message from the host.
    pub fn handle(&mut self, bytes: &[u8]) -> Next {
        let state = std::mem::replace(&mut self.state, ControllerState::Ended);
        let tid = match &state {
            ControllerState::AwaitingNegotiate => None,
            ControllerState::AwaitingReply(agreed) => Some(agreed.tid),
            ControllerState::AwaitingSuccess2 { tid } => Some(*tid),
            _ => return Next::Failed(Failed::OutOfTurn),
        };
        let (message_tid, message) = match Message::decode(bytes) {
            Ok((_, Message::Failure2 { explanation })) => {
                return Next::Failed(Failed::There(explanation));
            }
            Ok(decoded) => decoded,
            Err(_) => {
                let tid = tid.unwrap_or_default();
                return self.fail(tid, Explanation::IncorrectPayload, "a message cannot be read");
            }
        };
        if tid.is_some_and(|tid| tid != message_tid) {
            let reason = "the message belongs to another transaction";
            return self.fail(message_tid, Explanation::IncorrectPayload, reason);
        }
        match (state, message) {
            (ControllerState::AwaitingNegotiate, Message::Negotiate { sc_c, hashes, groups }) => {
                self.choose(message_tid, sc_c, &hashes, &groups)
            }
            (
                ControllerState::AwaitingReply(agreed),
                Message::Reply { response, cvalid, sequence, challenge, dh },
            ) => {
                // A challenge with sequence number 0 only serves to derive the TLS PSK.
                let is_as_agreed = match (cvalid, sequence) {
                    (true, 0) => agreed.sc_c != 0,
                    (true, _) => true,
                    (false, _) => agreed.sc_c == 0,
                };
                if !is_as_agreed {
                    let reason = "the host's challenge does not fit what was agreed";
                    return self.fail(agreed.tid, Explanation::IncorrectPayload, reason);
                }
                let sequence = Some(sequence).filter(|number| cvalid && *number != 0);
                self.take_reply(agreed, Answer { response, challenge, sequence }, &dh)
            }
            (ControllerState::AwaitingSuccess2 { .. }, Message::Success2) => Next::Authenticated,
            _ => self.fail(
                message_tid,
                Explanation::IncorrectMessage,
                "another message was expected",
            ),
        }
    }

    /// Handles the result of [`Next::Compute`].
    pub fn computed(&mut self, power: Power) -> Next {
        match std::mem::replace(&mut self.state, ControllerState::Ended) {
            ControllerState::ComputingPublic(agreed) => self.challenge(agreed, power.0.to_vec()),
            ControllerState::ComputingShared(agreed, answer) => {
                let session_key = session_key(agreed.hash, &power);
                self.verify(agreed, &answer, Some(&session_key))
            }
            _ => Next::Failed(Failed::OutOfTurn),
        }
    }

    /// The TLS PSK of an authentication with secure channel concatenation, for use once that has succeeded.
    pub fn generated_psk(&self) -> Option<TlsPsk> {
        self.psk.clone()
    }

    /// The reason for a failure that this side has detected, until the host has been told.
    pub fn failure(&self) -> Option<&Failed> {
        match &self.state {
            ControllerState::SendingFailure1(failed) => Some(failed),
            _ => None,
        }
    }

    /// Chooses a hash and a group from the host's offer.
    fn choose(&mut self, tid: u16, wanted: u8, hashes: &[u8], groups: &[u8]) -> Next {
        let terms = &self.terms;
        if hashes.is_empty() {
            let reason = "the host offers no hash for DH-HMAC-CHAP";
            return self.fail(tid, Explanation::ProtocolNotUsable, reason);
        }
        let is_as_required = match terms.concatenation {
            Concatenation::Optional => wanted == 0 || wanted == NEW_TLS_PSK,
            required => wanted == sc_c(required),
        };
        if !is_as_required {
            let reason = "host and controller disagree on secure channel concatenation";
            return self.fail(tid, Explanation::ConcatenationMismatch, reason);
        }
        // A TLS PSK needs the hash of a cipher suite, and none uses SHA-512.
        let may_be =
            |hash: &Hash| hashes.contains(&hash.id()) && (wanted == 0 || *hash != Hash::Sha512);
        let Some(hash) = terms.hashes.iter().copied().find(may_be) else {
            return self.fail(tid, Explanation::HashNotUsable, "the host offers no allowed hash");
        };
        let fits = |group: &Group| {
            let is_enough = *group != Group::Null || wanted == 0;
            groups.contains(&group.id()) && is_enough
        };
        let Some(group) = terms.groups.iter().copied().find(fits) else {
            return self.fail(tid, Explanation::GroupNotUsable, "the host offers no allowed group");
        };
        let agreed = Agreed { tid, sc_c: wanted, hash, group };
        if group == Group::Null {
            return self.challenge(agreed, Vec::new());
        }
        self.state = ControllerState::ComputingPublic(agreed);
        Next::Compute(Exponentiation::public(group, &self.own.exponent))
    }

    /// Challenges the host; `dh` is this side's public value.
    fn challenge(&mut self, agreed: Agreed, dh: Vec<u8>) -> Next {
        let Agreed { tid, hash, group, .. } = agreed;
        let challenge = Message::Challenge {
            hash: hash.id(),
            group: group.id(),
            sequence: self.own.sequence,
            challenge: self.own.challenge[..hash.len_bytes()].to_vec(),
            dh,
        };
        self.state = ControllerState::SendingChallenge(agreed);
        Next::Send(challenge.encode(tid))
    }

    /// Checks the host's reply, and goes on to the shared secret.
    fn take_reply(&mut self, agreed: Agreed, answer: Answer, peer: &[u8]) -> Next {
        let Agreed { tid, hash, group, .. } = agreed;
        if answer.response.len() != hash.len_bytes() {
            let reason = "the response is not as long as the hash";
            return self.fail(tid, Explanation::IncorrectPayload, reason);
        }
        // Otherwise the controller would answer the challenge that it has sent itself.
        if answer.challenge == self.own.challenge[..hash.len_bytes()] {
            let reason = "the host's challenge is the controller's own";
            return self.fail(tid, Explanation::AuthenticationFailed, reason);
        }
        if group == Group::Null {
            return if peer.is_empty() {
                self.verify(agreed, &answer, None)
            } else {
                let reason = "a public value came without a group";
                self.fail(tid, Explanation::IncorrectPayload, reason)
            };
        }
        if !group.is_public_value(peer) {
            let reason = "the host's public value does not belong to its group";
            return self.fail(tid, Explanation::IncorrectPayload, reason);
        }
        let shared = Exponentiation::shared(group, peer, &self.own.exponent);
        self.state = ControllerState::ComputingShared(agreed, answer);
        Next::Compute(shared)
    }

    /// Verifies the host's response; if it is right, answers the host's challenge.
    fn verify(&mut self, agreed: Agreed, answer: &Answer, session_key: Option<&Digest>) -> Next {
        let ControllerTerms { hostnqn, subnqn, secrets, ctrl_secret, .. } = &self.terms;
        let Agreed { tid, hash, sc_c, .. } = agreed;
        let transcript = Transcript { hash, tid, sc_c, hostnqn, subnqn, session_key };
        let c1 = &self.own.challenge[..hash.len_bytes()];
        let is_right = |secret: &Secret| {
            transcript.of_host(secret, c1, self.own.sequence).is(&answer.response)
        };
        // Tries all secrets, so that the time does not reveal which one matched.
        if secrets.iter().filter(|secret| is_right(secret)).count() == 0 {
            let reason = "the host's response is wrong";
            return self.fail(tid, Explanation::AuthenticationFailed, reason);
        }
        let response = match (answer.sequence, ctrl_secret) {
            (None, _) => None,
            (Some(sequence), Some(secret)) => {
                let response = transcript.of_controller(secret, &answer.challenge, sequence);
                Some(response.as_ref().to_vec())
            }
            (Some(_), None) => {
                let reason = "the host asks the controller to authenticate, and the controller has no \
                              secret";
                return self.fail(tid, Explanation::AuthenticationFailed, reason);
            }
        };
        if sc_c == NEW_TLS_PSK {
            self.psk = transcript.tls_psk(c1, &answer.challenge);
        }
        self.state = ControllerState::SendingSuccess1 { tid, is_mutual: response.is_some() };
        Next::Send(Message::Success1 { hl: hash.len_bytes() as u8, response }.encode(tid))
    }

    /// Ends the authentication, and tells the host.
    fn fail(&mut self, tid: u16, explanation: Explanation, reason: &'static str) -> Next {
        self.psk = None;
        self.state = ControllerState::SendingFailure1(Failed::Here(explanation, reason));
        Next::Send(Message::Failure1 { explanation }.encode(tid))
    }
}

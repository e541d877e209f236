//! The host's side of an authentication. `mod.rs` has the exchange, `response.rs` the formulas.

use super::group::{Exponentiation, Power};
use super::response::{Transcript, session_key};
use super::{
    Concatenation, Digest, Explanation, Failed, Group, Hash, Message, Next, OwnNumbers, Randomness,
    Refusal, Secret, TlsPsk,
};
use crate::nvme::Nqn;

/// A host's keys and requirements.
#[derive(Debug, Clone)]
pub struct HostTerms {
    /// The host's NQN, as in Connect.
    pub hostnqn: Nqn,
    /// The subsystem's NQN, as in Connect.
    pub subnqn: Nqn,
    /// The host's secret.
    pub secret: Secret,
    /// The subsystem's secret, if the controller must authenticate, too.
    pub ctrl_secret: Option<Secret>,
    /// Permitted hashes, most preferred first.
    pub hashes: Vec<Hash>,
    /// Permitted groups, most preferred first.
    pub groups: Vec<Group>,
    /// Generation of a TLS PSK; `Optional` counts as `No`.
    pub concatenation: Concatenation,
}

/// The host's side. Start with [`Host::new`], and do each [`Next`] that it returns.
#[derive(Debug)]
pub struct Host {
    terms: HostTerms,
    /// The number of the transaction.
    tid: u16,
    own: OwnNumbers,
    state: HostState,
    /// The TLS PSK, where one is generated.
    psk: Option<TlsPsk>,
}

/// The controller's choice.
#[derive(Debug)]
struct Chosen {
    hash: Hash,
    group: Group,
    /// SEQ1.
    sequence: u32,
    /// C1.
    challenge: Vec<u8>,
    /// The controller's public value; empty without a group.
    peer: Vec<u8>,
}

#[derive(Debug)]
enum HostState {
    SendingNegotiate,
    AwaitingChallenge,
    ComputingPublic(Chosen),
    /// With this side's public value.
    ComputingShared(Chosen, Power),
    /// The response expected from the controller; `None` if it need not authenticate.
    SendingReply(Option<Digest>),
    /// As above.
    AwaitingSuccess1(Option<Digest>),
    SendingSuccess2,
    SendingFailure2(Failed),
    Ended,
}

impl Host {
    /// Starts an authentication; `tid` is its number on the queue.
    ///
    /// # Panics
    /// If the terms name no hash or no group. `Group::Null` and SHA-512 do not count with [`Concatenation::Required`].
    pub fn new(mut terms: HostTerms, randomness: &Randomness, tid: u16) -> (Host, Next) {
        if terms.concatenation == Concatenation::Required {
            // The PSK is derived from a shared secret, which needs a group, and no cipher suite has SHA-512.
            terms.groups.retain(|group| *group != Group::Null);
            terms.hashes.retain(|hash| *hash != Hash::Sha512);
        }
        let HostTerms { hashes, groups, concatenation, .. } = &terms;
        assert!(!hashes.is_empty() && !groups.is_empty(), "something can be used");
        let groups = groups.iter().map(|group| group.id()).collect();
        let hashes = hashes.iter().map(|hash| hash.id()).collect();
        let negotiate = Message::Negotiate { sc_c: sc_c(*concatenation), hashes, groups };
        let own = OwnNumbers::new(randomness);
        let host = Host { terms, tid, own, state: HostState::SendingNegotiate, psk: None };
        (host, Next::Send(negotiate.encode(tid)))
    }

    /// Notes that the message of [`Next::Send`] has been sent.
    pub fn sent(&mut self) -> Next {
        match std::mem::replace(&mut self.state, HostState::Ended) {
            HostState::SendingNegotiate => {
                self.state = HostState::AwaitingChallenge;
                Next::Receive
            }
            HostState::SendingReply(expected) => {
                self.state = HostState::AwaitingSuccess1(expected);
                Next::Receive
            }
            HostState::SendingSuccess2 => Next::Authenticated,
            HostState::SendingFailure2(failed) => Next::Failed(failed),
            _ => Next::Failed(Failed::OutOfTurn),
        }
    }

    /// Handles a message from the controller.
    pub fn handle(&mut self, bytes: &[u8]) -> Next {
        let state = std::mem::replace(&mut self.state, HostState::Ended);
        if !matches!(state, HostState::AwaitingChallenge | HostState::AwaitingSuccess1(_)) {
            return Next::Failed(Failed::OutOfTurn);
        }
        let next = match Message::decode(bytes) {
            Ok((_, Message::Failure1 { explanation })) => {
                return Next::Failed(Failed::There(explanation));
            }
            Err(_) => Err((Explanation::IncorrectPayload, "a message cannot be read")),
            Ok((tid, _)) if tid != self.tid => {
                Err((Explanation::IncorrectPayload, "the message belongs to another transaction"))
            }
            Ok((_, message)) => self.handle_message(state, message),
        };
        next.unwrap_or_else(|(explanation, reason)| {
            self.psk = None;
            self.state = HostState::SendingFailure2(Failed::Here(explanation, reason));
            Next::Send(Message::Failure2 { explanation }.encode(self.tid))
        })
    }

    /// Handles a message of this transaction.
    fn handle_message(&mut self, state: HostState, message: Message) -> Result<Next, Refusal> {
        match (state, message) {
            (
                HostState::AwaitingChallenge,
                Message::Challenge { hash, group, sequence, challenge, dh },
            ) => self.accept_choice(hash, group, sequence, challenge, dh),
            (HostState::AwaitingSuccess1(expected), Message::Success1 { response, .. }) => {
                self.verify(expected, response)
            }
            _ => Err((Explanation::IncorrectMessage, "another message was expected")),
        }
    }

    /// Handles the result of [`Next::Compute`].
    pub fn computed(&mut self, power: Power) -> Next {
        match std::mem::replace(&mut self.state, HostState::Ended) {
            HostState::ComputingPublic(chosen) => {
                let shared = Exponentiation::shared(chosen.group, &chosen.peer, &self.own.exponent);
                self.state = HostState::ComputingShared(chosen, power);
                Next::Compute(shared)
            }
            HostState::ComputingShared(chosen, public) => {
                let session_key = session_key(chosen.hash, &power);
                self.reply(&chosen, Some(&session_key), public.0.to_vec())
            }
            _ => Next::Failed(Failed::OutOfTurn),
        }
    }

    /// The TLS PSK of an authentication with [`Concatenation::Required`], for use once that has succeeded.
    pub fn generated_psk(&self) -> Option<TlsPsk> {
        self.psk.clone()
    }

    /// The current step, for log lines.
    pub fn stage(&self) -> &'static str {
        match self.state {
            HostState::SendingNegotiate => "sending Negotiate",
            HostState::AwaitingChallenge => "waiting for the controller's challenge",
            HostState::ComputingPublic(_) | HostState::ComputingShared(..) => "Diffie-Hellman",
            HostState::SendingReply(_) => "sending Reply",
            HostState::AwaitingSuccess1(_) => "waiting for the controller's verdict",
            HostState::SendingSuccess2 => "sending Success2",
            HostState::SendingFailure2(_) => "sending Failure2",
            HostState::Ended => "authentication has ended",
        }
    }

    /// Checks the controller's choice and goes on with it.
    fn accept_choice(
        &mut self,
        hash: u8,
        group: u8,
        sequence: u32,
        challenge: Vec<u8>,
        peer: Vec<u8>,
    ) -> Result<Next, Refusal> {
        use Explanation::{GroupNotUsable, HashNotUsable, IncorrectPayload};
        let hash = Hash::from_id(hash).filter(|hash| self.terms.hashes.contains(hash));
        let hash =
            hash.ok_or((HashNotUsable, "the controller chose a hash that was not offered"))?;
        let group = Group::from_id(group).filter(|group| self.terms.groups.contains(group));
        let group =
            group.ok_or((GroupNotUsable, "the controller chose a group that was not offered"))?;
        if challenge.len() != hash.len_bytes() {
            return Err((IncorrectPayload, "the challenge is not as long as the hash"));
        }
        let chosen = Chosen { hash, group, sequence, challenge, peer };
        if group == Group::Null {
            if !chosen.peer.is_empty() {
                return Err((IncorrectPayload, "a public value came without a group"));
            }
            return Ok(self.reply(&chosen, None, Vec::new()));
        }
        if !group.is_public_value(&chosen.peer) {
            let reason = "the controller's public value does not belong to its group";
            return Err((IncorrectPayload, reason));
        }
        let public = Exponentiation::public(group, &self.own.exponent);
        self.state = HostState::ComputingPublic(chosen);
        Ok(Next::Compute(public))
    }

    /// Answers the challenge, and challenges the controller if it must authenticate.
    fn reply(&mut self, chosen: &Chosen, session_key: Option<&Digest>, dh: Vec<u8>) -> Next {
        let HostTerms { hostnqn, subnqn, secret, ctrl_secret, concatenation, .. } = &self.terms;
        let hash = chosen.hash;
        let mut c2 = self.own.challenge[..hash.len_bytes()].to_vec();
        if c2 == chosen.challenge {
            c2[0] ^= 1; // controllers refuse their own challenge
        }
        let transcript = Transcript {
            hash,
            tid: self.tid,
            sc_c: sc_c(*concatenation),
            hostnqn,
            subnqn,
            session_key,
        };
        let response = transcript.of_host(secret, &chosen.challenge, chosen.sequence);
        let expected = ctrl_secret
            .as_ref()
            .map(|secret| transcript.of_controller(secret, &c2, self.own.sequence));
        let is_mutual = expected.is_some();
        let concatenates = *concatenation == Concatenation::Required;
        if concatenates {
            self.psk = transcript.tls_psk(&chosen.challenge, &c2);
        }
        let reply = Message::Reply {
            response: response.as_ref().to_vec(),
            cvalid: is_mutual || concatenates,
            sequence: if is_mutual { self.own.sequence } else { 0 },
            challenge: c2,
            dh,
        };
        self.state = HostState::SendingReply(expected);
        Next::Send(reply.encode(self.tid))
    }

    /// Verifies the controller's response, if one was required.
    fn verify(
        &mut self,
        expected: Option<Digest>,
        response: Option<Vec<u8>>,
    ) -> Result<Next, Refusal> {
        let Some(expected) = expected else { return Ok(Next::Authenticated) };
        let reason = match response {
            Some(response) if expected.is(&response) => {
                self.state = HostState::SendingSuccess2;
                return Ok(Next::Send(Message::Success2.encode(self.tid)));
            }
            Some(_) => "the controller's response is wrong",
            None => "the controller does not authenticate itself: it may have no secret",
        };
        Err((Explanation::AuthenticationFailed, reason))
    }
}

/// Secure channel concatenation with a new TLS PSK (NEWTLSPSK).
pub(super) const NEW_TLS_PSK: u8 = 2;

/// The SC_C field of a host.
pub(super) fn sc_c(concatenation: Concatenation) -> u8 {
    match concatenation {
        Concatenation::No | Concatenation::Optional => 0,
        Concatenation::Required => NEW_TLS_PSK,
    }
}

//! The host's side of an authentication. `mod.rs` has the exchange, `response.rs` the formulas.

use super::group::{Exponentiation, Power};
use super::response::{Transcript, generated_psk, session_key};
use super::{
    Concatenation, Digest, Explanation, Failed, Group, Hash, Message, Next, Own, Randomness,
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
    tid: u16,
    own: Own,
    state: State,
    psk: Option<(Digest, Hash)>,
}

/// The controller's choice.
#[derive(Debug)]
struct Chosen {
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    /// The controller's public value; empty without a group.
    peer: Vec<u8>,
}

#[derive(Debug)]
enum State {
    SendingNegotiate,
    AwaitingChallenge,
    ComputingPublic(Chosen),
    ComputingShared(Chosen, Power),
    /// The response expected from the controller; `None` if it need not authenticate.
    SendingReply(Option<Digest>),
    AwaitingSuccess1(Option<Digest>),
    SendingSuccess2,
    SendingFailure2(Failed),
    Ended,
}

impl Host {
    /// Starts an authentication; `tid` is its number on the queue.
    ///
    /// # Panics
    /// If the terms name no hash or no group. `Group::Null` does not count with [`Concatenation::Required`].
    pub fn new(terms: HostTerms, randomness: &Randomness, tid: u16) -> (Host, Next) {
        let HostTerms { hashes, groups, concatenation, .. } = &terms;
        let groups: Vec<u8> = match concatenation {
            Concatenation::No | Concatenation::Optional => {
                groups.iter().map(|group| group.id()).collect()
            }
            // The PSK is derived from a shared secret, which needs a group.
            Concatenation::Required => groups
                .iter()
                .filter(|group| **group != Group::Null)
                .map(|group| group.id())
                .collect(),
        };
        assert!(!hashes.is_empty() && !groups.is_empty(), "something can be used");
        let hashes = hashes.iter().map(|hash| hash.id()).collect();
        let negotiate = Message::Negotiate { sc_c: sc_c(*concatenation), hashes, groups };
        let own = Own::new(randomness);
        let host = Host { terms, tid, own, state: State::SendingNegotiate, psk: None };
        (host, Next::Send(negotiate.encode(tid)))
    }

    /// Notes that the message of [`Next::Send`] has been sent.
    pub fn sent(&mut self) -> Next {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::SendingNegotiate => {
                self.state = State::AwaitingChallenge;
                Next::Receive
            }
            State::SendingReply(expected) => {
                self.state = State::AwaitingSuccess1(expected);
                Next::Receive
            }
            State::SendingSuccess2 => Next::Authenticated,
            State::SendingFailure2(failed) => Next::Failed(failed),
            _ => Next::Failed(Failed::OutOfTurn),
        }
    }

    /// Handles a message from the controller.
    pub fn handle(&mut self, bytes: &[u8]) -> Next {
        let state = std::mem::replace(&mut self.state, State::Ended);
        if !matches!(state, State::AwaitingChallenge | State::AwaitingSuccess1(_)) {
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
            Ok((_, message)) => self.take(state, message),
        };
        next.unwrap_or_else(|(explanation, reason)| {
            self.psk = None;
            self.state = State::SendingFailure2(Failed::Here(explanation, reason));
            Next::Send(Message::Failure2 { explanation }.encode(self.tid))
        })
    }

    fn take(&mut self, state: State, message: Message) -> Result<Next, Refusal> {
        match (state, message) {
            (
                State::AwaitingChallenge,
                Message::Challenge { hash, group, sequence, challenge, dh },
            ) => self.choose(hash, group, sequence, challenge, dh),
            (State::AwaitingSuccess1(expected), Message::Success1 { response, .. }) => {
                self.judge(expected, response)
            }
            _ => Err((Explanation::IncorrectMessage, "another message was expected")),
        }
    }

    /// Handles the result of [`Next::Compute`].
    pub fn computed(&mut self, power: Power) -> Next {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::ComputingPublic(chosen) => {
                let shared = Exponentiation::shared(chosen.group, &chosen.peer, &self.own.exponent);
                self.state = State::ComputingShared(chosen, power);
                Next::Compute(shared)
            }
            State::ComputingShared(chosen, public) => {
                let session_key = session_key(chosen.hash, &power);
                self.reply(&chosen, Some(&session_key), public.0.to_vec())
            }
            _ => Next::Failed(Failed::OutOfTurn),
        }
    }

    /// The TLS PSK, once authenticated with [`Concatenation::Required`].
    pub fn generated_psk(&self) -> Option<TlsPsk> {
        let (psk, hash) = self.psk.as_ref()?;
        TlsPsk::generated(psk, *hash, &self.terms.hostnqn, &self.terms.subnqn)
    }

    /// The current step, for log lines.
    pub fn stage(&self) -> &'static str {
        match self.state {
            State::SendingNegotiate => "sending Negotiate",
            State::AwaitingChallenge => "waiting for the controller's challenge",
            State::ComputingPublic(_) | State::ComputingShared(..) => "Diffie-Hellman",
            State::SendingReply(_) => "sending Reply",
            State::AwaitingSuccess1(_) => "waiting for the controller's verdict",
            State::SendingSuccess2 => "sending Success2",
            State::SendingFailure2(_) => "sending Failure2",
            State::Ended => "authentication has ended",
        }
    }

    /// Checks the controller's choice and goes on with it.
    fn choose(
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
        let is_offered = |group: &Group| {
            let fits = *group != Group::Null || sc_c(self.terms.concatenation) == 0;
            self.terms.groups.contains(group) && fits
        };
        let group = Group::from_id(group).filter(is_offered);
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
        self.state = State::ComputingPublic(chosen);
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
        let response = transcript.of_host(&secret.key(hostnqn), &chosen.challenge, chosen.sequence);
        let expected = ctrl_secret
            .as_ref()
            .map(|secret| transcript.of_controller(&secret.key(subnqn), &c2, self.own.sequence));
        let is_mutual = expected.is_some();
        let concatenates = *concatenation == Concatenation::Required;
        self.psk = session_key
            .filter(|_| concatenates)
            .map(|key| (generated_psk(hash, key, &chosen.challenge, &c2), hash));
        let reply = Message::Reply {
            response: response.as_ref().to_vec(),
            cvalid: is_mutual || concatenates,
            sequence: if is_mutual { self.own.sequence } else { 0 },
            challenge: c2,
            dh,
        };
        self.state = State::SendingReply(expected);
        Next::Send(reply.encode(self.tid))
    }

    /// Verifies the controller's response, if one was required.
    fn judge(
        &mut self,
        expected: Option<Digest>,
        response: Option<Vec<u8>>,
    ) -> Result<Next, Refusal> {
        let Some(expected) = expected else { return Ok(Next::Authenticated) };
        let reason = match response {
            Some(response) if expected.is(&response) => {
                self.state = State::SendingSuccess2;
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

pub(super) fn sc_c(concatenation: Concatenation) -> u8 {
    match concatenation {
        Concatenation::No | Concatenation::Optional => 0,
        Concatenation::Required => NEW_TLS_PSK,
    }
}

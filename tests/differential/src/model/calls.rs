//! What a call is answered: T05 to T09, T11, T13, T14 and T17 in one reading.

use std::collections::BTreeMap;

use super::faults::Fault;
use super::rows::{Intent, Key};
use super::{Model, State, THIEF, Token, WorkState};
use crate::history::{Answer, BINDINGS, BUILTINS, Bearer, Body, Call, End, Happened, Kind, Request, place};

/// What the calls came to.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    pub calls: u64,
    pub allowed: u64,
    /// By the rule, or the code where a rule is none of the authorization's.
    pub refused: BTreeMap<String, u64>,
}

/// A handler that runs.
#[derive(Debug)]
pub(super) struct Pending {
    token: usize,
    key: Key,
    body: Body,
    kind: Kind,
    idempotent: bool,
    host: usize,
}

/// Refused, by a rule of the authorization.
fn forbidden(rule: &'static str) -> Answer {
    Answer::refused("forbidden", Some(rule))
}

fn refused(code: &str) -> Answer {
    Answer::refused(code, None)
}

/// A delivery's content: what tells two Events under one ID apart.
const fn content(body: Body) -> u8 {
    match body {
        Body::Plain(n) | Body::Delivered(n) => n,
        Body::DeliveredAsRequest => 1,
        Body::Foreign | Body::Malformed => u8::MAX,
    }
}

/// The request ID of a call.
pub fn request_id(request: Request) -> Option<String> {
    match request {
        Request::None => None,
        Request::Named(n) => Some(format!("r{n}")),
        Request::Malformed => Some("no request ID".into()),
    }
}

/// The delivery ID that the body names, if it names one.
pub const fn delivery_id(body: Body) -> Option<&'static str> {
    match body {
        Body::Delivered(_) => Some("d0"),
        Body::DeliveredAsRequest => Some("r0"),
        _ => None,
    }
}

impl Model {
    pub(super) fn call(
        &mut self,
        call: &Call,
        answer: &Answer,
        wrote: bool,
        between: Option<&Happened>,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let (said, writes) = match self.decide(call) {
            Ok(token) if BUILTINS.contains(&call.operation.as_str()) => self.builtin(call, token),
            Ok(token) => self.hosted(call, token, between)?,
            Err(refusal) => (refusal, false),
        };
        tally.calls += 1;
        match &said {
            Answer::Refused { code, rule } => {
                *tally.refused.entry(rule.map_or_else(|| code.clone(), str::to_owned)).or_default() += 1;
            }
            _ => tally.allowed += 1,
        }
        if !said.agrees(answer) {
            return Err(format!("the model says {said:?}, and it was {answer:?}"));
        }
        if between.is_none() && writes != wrote {
            return Err(format!("{said:?}: by the model it writes: {writes}; it did: {wrote}"));
        }
        Ok(())
    }

    /// Checks 1 to 5; the token that speaks.
    fn decide(&self, call: &Call) -> Result<usize, Answer> {
        let at = match call.bearer {
            Bearer::Operator => return Err(refused("wrong_credential_class")),
            Bearer::Unknown => None,
            Bearer::Newest => place(usize::MAX, self.tokens.len()),
            Bearer::Token(n) => place(n, self.tokens.len()),
        };
        let at = at.ok_or_else(|| forbidden("the token is unknown"))?;
        let token = &self.tokens[at];
        self.live(token)?;
        let socket = call.socket.and_then(|n| place(n, self.executions.len())).unwrap_or(token.execution);
        if socket != token.execution && !self.has(Fault::ForgetsTheSocket) {
            return Err(forbidden("the token is of another execution than the socket"));
        }
        if !self.has(Fault::ForgetsNarrowing) {
            if call.scope.is_some_and(|scope| scope != token.scope) {
                return Err(forbidden("the call asserts another scope"));
            }
            // The place past the last is one that nobody has.
            if call.work.is_some_and(|n| n % (self.works.len() + 1) != token.work) {
                return Err(forbidden("the call asserts another Work"));
            }
            if call.execution.is_some_and(|n| n % (self.executions.len() + 1) != token.execution) {
                return Err(forbidden("the call asserts another execution"));
            }
        }
        self.permitted(token, &call.operation)?;
        self.fenced(token)?;
        Ok(at)
    }

    /// What was decided before a handler, or before what it translates to, is decided once more.
    fn decides_again(&self, token: usize, operation: &str) -> Result<(), Answer> {
        if self.has(Fault::DecidesOnce) {
            return Ok(());
        }
        let token = &self.tokens[token];
        self.live(token).and_then(|()| self.permitted(token, operation)).and_then(|()| self.fenced(token))
    }

    fn live(&self, token: &Token) -> Result<(), Answer> {
        if token.revoked && !self.has(Fault::ForgetsRevocation) {
            return Err(forbidden("the token is revoked"));
        }
        if (token.boot != self.boot || self.now >= token.expires) && !self.has(Fault::ForgetsExpiry) {
            return Err(forbidden("the token has expired"));
        }
        Ok(())
    }

    fn permitted(&self, token: &Token, operation: &str) -> Result<(), Answer> {
        if !self.known.declares(&self.active, token.scope, operation) {
            return Err(forbidden("the operation is not declared in the scope"));
        }
        if !token.operations.contains(operation) && !self.has(Fault::ForgetsTheAllowlist) {
            return Err(forbidden("the operation is not in the token's allowlist"));
        }
        let allowed = self.active.scopes[token.scope].enabled && self.ceilings[token.scope].contains(operation);
        if !allowed && !self.has(Fault::ForgetsTheCeiling) {
            return Err(forbidden("the configuration does not allow the operation now"));
        }
        Ok(())
    }

    /// Check 5.
    fn fenced(&self, token: &Token) -> Result<(), Answer> {
        let execution = &self.executions[token.execution];
        let work = &self.works[execution.work];
        if !self.has(Fault::ForgetsTheFence) {
            if execution.epoch != token.epoch {
                return Err(forbidden("the epoch was superseded"));
            }
            if execution.owner != Some(token.owner) || token.owner == THIEF {
                return Err(forbidden("another owner holds the lease"));
            }
            if execution.state != State::Running {
                return Err(forbidden("the execution is not running"));
            }
            let over = execution.lease_boot != self.boot || self.now >= execution.lease_end;
            if over && !self.has(Fault::ForgetsTheLeasesEnd) {
                return Err(forbidden("the lease has expired"));
            }
            if work.state != WorkState::Running {
                return Err(forbidden("the Work is not running"));
            }
            if work.scope != token.scope {
                return Err(forbidden("the Work is in another scope"));
            }
        }
        if execution.declared && !self.has(Fault::ForgetsTheDeclaration) {
            return Err(Answer::refused("authority_released", Some("the segment has declared")));
        }
        Ok(())
    }

    /// What is asked after the authorization: the answer, and whether a row is written.
    fn builtin(&mut self, call: &Call, at: usize) -> (Answer, bool) {
        let no = |code: &str| (refused(code), false);
        if call.request == Request::Malformed {
            return no("invalid_request");
        }
        let request = request_id(call.request);
        let replayable = request.filter(|_| matches!(call.operation.as_str(), "emit" | "create_work"));
        if let Some(known) = replayable.as_ref().and_then(|id| self.answered(at, &call.operation, id, call.body)) {
            return (known, false);
        }
        if call.body == Body::Malformed && !self.has(Fault::SkipsTheSchema) {
            return no("invalid_request");
        }
        match call.operation.as_str() {
            "read_context" => (Answer::Done, false),
            "emit" => self.emit(at, call.body, replayable),
            "create_work" => {
                let token = &self.tokens[at];
                let binding = match call.body {
                    Body::Plain(n) | Body::Delivered(n) => usize::from(n) % BINDINGS.len(),
                    Body::DeliveredAsRequest => 0,
                    Body::Foreign | Body::Malformed => usize::MAX,
                };
                if !token.delegates.contains(&binding) {
                    return no("unknown_binding");
                }
                let (scope, execution) = (token.scope, token.execution);
                self.create(scope, binding);
                if let Some(request) = replayable {
                    let key = ("create_work".to_owned(), request);
                    self.executions[execution].rows.answers.insert(key, call.body);
                }
                (Answer::Done, true)
            }
            _ => {
                let execution = self.tokens[at].execution;
                self.executions[execution].declared = true;
                self.executions[execution].rows.declarations += 1;
                (Answer::Done, true)
            }
        }
    }

    /// The answer that a request has already.
    fn answered(&self, token: usize, operation: &str, request: &str, body: Body) -> Option<Answer> {
        if self.has(Fault::ForgetsRequests) {
            return None;
        }
        let kept = &self.executions[self.tokens[token].execution].rows;
        let asked = kept.answers.get(&(operation.to_owned(), request.to_owned()))?;
        let same = *asked == body || self.has(Fault::ForgetsWhatWasAsked);
        Some(if same { Answer::Replayed } else { refused("request_conflict") })
    }

    fn may_emit(&self, token: &Token, body: Body) -> bool {
        let scope = &self.active.scopes[token.scope];
        self.has(Fault::EmitsWhatever) || (token.events && scope.events && scope.enabled && body != Body::Foreign)
    }

    fn emit(&mut self, at: usize, body: Body, request: Option<String>) -> (Answer, bool) {
        let may = self.may_emit(&self.tokens[at], body);
        let execution = self.tokens[at].execution;
        let kept = &mut self.executions[execution].rows;
        let named = delivery_id(body).map(str::to_owned).or_else(|| request.clone());
        // An Event that is delivered under its request ID is the record of that request.
        let recorded = named == request;
        if let Some(request) = &request
            && !recorded
            && kept.deliveries.contains_key(request)
        {
            return (refused("request_conflict"), false);
        }
        let known = named.as_ref().and_then(|name| kept.deliveries.get(name));
        let answer = match known {
            Some(told) if *told == content(body) => Answer::Replayed,
            Some(_) => return (refused("request_conflict"), false),
            None if !may => return (refused("event_not_allowed"), false),
            None => Answer::Done,
        };
        if answer == Answer::Done {
            kept.events += 1;
            if let Some(name) = named {
                kept.deliveries.insert(name, content(body));
            }
        }
        let mut writes = answer == Answer::Done;
        if let Some(request) = request.filter(|_| !recorded) {
            kept.answers.insert(("emit".to_owned(), request), body);
            writes = true;
        }
        (answer, writes)
    }

    /// An extension's operation, up to its handler and through it.
    fn hosted(&mut self, call: &Call, at: usize, between: Option<&Happened>) -> Result<(Answer, bool), String> {
        let no = |code: &str| Ok((refused(code), false));
        if call.request == Request::Malformed {
            return no("invalid_request");
        }
        let request = request_id(call.request);
        let (kind, idempotent) = match self.known.operations.get(&call.operation) {
            Some((_, operation)) => (operation.kind, operation.idempotent),
            None => return Err("the model has no such operation".into()),
        };
        if let Some(known) = request.as_ref().and_then(|id| self.answered(at, &call.operation, id, call.body)) {
            return Ok((known, false));
        }
        let execution = self.tokens[at].execution;
        // A request that nobody named cannot be asked for again.
        self.unnamed += usize::from(request.is_none());
        let key = (call.operation.clone(), request.unwrap_or_else(|| format!("unnamed {}", self.unnamed)));
        let host = self.host;
        let forgets = (self.has(Fault::ForgetsDoubts), self.has(Fault::ForgetsWhatWasAsked));
        if let Some(intent) = self.executions[execution].rows.intents.get_mut(&key) {
            if intent.body != call.body && !forgets.1 {
                return no("request_conflict");
            }
            if intent.host == host && !intent.in_doubt {
                return Ok((Answer::UnderWay, false));
            }
            if !idempotent && !forgets.0 {
                let first = !intent.in_doubt;
                intent.in_doubt = true;
                return Ok((refused("in_doubt"), first));
            }
        }
        if call.body == Body::Malformed && !self.has(Fault::SkipsTheSchema) {
            return no("invalid_request");
        }
        if kind == Kind::Read {
            return Ok((Answer::Done, false));
        }
        if let (Some(step), Some(happened)) = (&call.between, between) {
            self.step(step, happened, &mut Tally::default())?;
        }
        if let Err(refusal) = self.decides_again(at, &call.operation) {
            return Ok((refusal, false));
        }
        let intent = Intent { body: call.body, host, in_doubt: false };
        self.executions[execution].rows.intents.insert(key.clone(), intent);
        self.pending.push(Pending { token: at, key, body: call.body, kind, idempotent, host });
        if call.end == End::Leave {
            return Ok((Answer::Begun, true));
        }
        Ok((self.settle(usize::MAX, call.end), true))
    }

    /// What an operator says about a request that is in doubt: its answer, or that it may be made again.
    pub(super) fn resolve(&mut self, execution: usize, operation: &str, request: u8, done: bool) -> bool {
        let Some(at) = place(execution, self.executions.len()) else { return false };
        let Some(request) = request_id(Request::Named(request)) else { return false };
        let lives = self.executions[at].state != State::Ended;
        let kept = &mut self.executions[at].rows;
        let key = (operation.to_owned(), request);
        let Some(intent) = kept.intents.get(&key).filter(|intent| intent.in_doubt).copied() else { return false };
        kept.intents.remove(&key);
        if done && lives {
            kept.answers.insert(key, intent.body);
        }
        true
    }

    /// The end of a handler that runs.
    pub(super) fn settle(&mut self, running: usize, end: End) -> Answer {
        let Some(at) = place(running, self.pending.len()) else { return Answer::Done };
        let pending = self.pending.remove(at);
        let token = &self.tokens[pending.token];
        let execution = token.execution;
        let answer = match (end, pending.kind) {
            (End::Refuse, _) => refused("refused_by_handler"),
            (End::Fail | End::Leave, _) if pending.idempotent => refused("extension_unavailable"),
            (End::Fail | End::Leave, _) => refused("in_doubt"),
            (End::Finish, Kind::Handler | Kind::Read) => Answer::Done,
            (End::Finish, _) => match self.decides_again(pending.token, &pending.key.0) {
                Ok(()) if pending.kind == Kind::Emission && !self.may_emit(token, pending.body) => {
                    refused("event_not_allowed")
                }
                Ok(()) => Answer::Done,
                Err(refusal) => refusal,
            },
        };
        let ended = self.executions[execution].state == State::Ended;
        let running = &mut self.executions[execution];
        let kept = &mut running.rows;
        if answer == refused("in_doubt") {
            if let Some(intent) = kept.intents.get_mut(&pending.key) {
                intent.in_doubt = true;
            }
            return answer;
        }
        let ours = kept.intents.get(&pending.key).is_some_and(|it| it.host == pending.host && !it.in_doubt);
        if ours {
            kept.intents.remove(&pending.key);
        }
        if answer == Answer::Done {
            match pending.kind {
                Kind::Wait => {
                    running.declared = true;
                    kept.declarations += 1;
                }
                kind => {
                    kept.events += usize::from(kind == Kind::Emission);
                    if ours && !(ended && kind == Kind::Handler) {
                        kept.answers.insert(pending.key, pending.body);
                    }
                }
            }
        }
        answer
    }
}

//! A call on the real path: builtins through `Toolbelt`, extensions' operations through `Hosted`, as the worker and the host
//! take them.

use std::rc::Rc;

use conduit_api::host::HostCall;
use conduit_api::toolbelt::{CallRequest, EmitInput, WaitInput};
use conduit_api::views::{DoubtOutcome, DoubtResolveRequest};
use conduit_api::{ExecutionId, WorkId};
use conduit_store::digest::hex;
use conduit_toolbelt::hosted::{Admission, Admitted, RequestKey};
use conduit_toolbelt::registry::OperationKind;
use conduit_toolbelt::{Error, Toolbelt, doubts, token};
use serde_json::{Map, Value, json};

use super::{OPERATOR, Play};
use crate::history::{Answer, BINDINGS, Bearer, Body, Call, End, Happened, Request, SCOPES, place};
use crate::model::calls::{delivery_id, request_id};

/// A handler that runs.
pub(super) struct Running {
    admitted: Box<Admitted>,
    body: Body,
}

/// The input that asks `operation` for `body`.
fn input(operation: &str, body: Body) -> Map<String, Value> {
    let n = match body {
        Body::Plain(n) | Body::Delivered(n) => n,
        Body::DeliveredAsRequest => 1,
        Body::Foreign => 7,
        Body::Malformed => 0,
    };
    let mut input = match (operation, body) {
        (_, Body::Malformed) => json!({"stray": true}),
        ("emit", _) => event(body, n),
        ("create_work", Body::Foreign) => json!({"binding": "nobody's"}),
        ("create_work", Body::DeliveredAsRequest) => json!({"binding": BINDINGS[0], "title": "another"}),
        ("create_work", Body::Delivered(_)) => json!({"binding": BINDINGS[usize::from(n)], "title": "a title"}),
        ("create_work", _) => json!({"binding": BINDINGS[usize::from(n)]}),
        ("wait", _) => wait(),
        ("declare_outcome", _) => json!({"status": "succeeded"}),
        ("read_context", _) => json!({}),
        // Every body but the malformed one is another input.
        (_, Body::Delivered(n)) => json!({"n": 10 + n}),
        (_, Body::DeliveredAsRequest) => json!({"n": 20}),
        _ => json!({"n": n}),
    };
    input.as_object_mut().map(std::mem::take).unwrap_or_default()
}

fn event(body: Body, n: u8) -> Value {
    let kind = if body == Body::Foreign { "other.seen" } else { "demo.seen" };
    match delivery_id(body) {
        Some(delivery) => json!({"type": kind, "data": {"n": n}, "delivery_id": delivery}),
        None => json!({"type": kind, "data": {"n": n}}),
    }
}

fn wait() -> Value {
    json!({"mode": "any", "predicates": [{"type": "demo.never"}]})
}

fn refused(error: &Error) -> Answer {
    Answer::refused(error.to_api().code_text(), error.rule())
}

impl Play<'_> {
    pub(super) fn call(&mut self, call: &Call) -> Happened {
        let last = self.tokens.len().wrapping_sub(1);
        let token = match call.bearer {
            Bearer::Token(n) => place(n, self.tokens.len()),
            Bearer::Newest => self.tokens.get(last).map(|_| last),
            Bearer::Unknown | Bearer::Operator => None,
        };
        let bearer = match (call.bearer, token) {
            (Bearer::Operator, _) => OPERATOR.to_owned(),
            (_, Some(at)) => self.tokens[at].text.clone(),
            (_, None) => "nobody's".to_owned(),
        };
        let own = token.map(|at| self.tokens[at].execution);
        let socket = call.socket.and_then(|n| place(n, self.executions.len())).or(own);
        let request = self.request(call);
        // Before there is an execution, a socket that belongs to none.
        let id = match socket {
            Some(at) => self.executions[at].claimed.execution.clone(),
            None => ExecutionId::from_parts(9, 9),
        };
        let before = self.world.version();
        let state = self.world.state_path();
        let registry = Rc::clone(&self.release.registry);
        let open = || Toolbelt::open(&state, id.clone(), registry).expect("a toolbelt");
        let toolbelt = self.toolbelts.entry(socket).or_insert_with(open);
        let (answer, between) = if toolbelt.is_hosted(&call.operation) {
            self.hosted(call, &bearer, id, request)
        } else {
            let called = toolbelt.call_at(&bearer, &request, None, self.now);
            let answer = match &called {
                Ok(called) if called.response.replayed => Answer::Replayed,
                Ok(_) => Answer::Done,
                Err(error) => Answer::refused(error.code_text(), None),
            };
            if let (Ok(called), Answer::Done, "create_work") = (called, &answer, call.operation.as_str()) {
                let work: WorkId = serde_json::from_value(called.response.output["work_id"].clone()).expect("a Work");
                self.works.push(work);
            }
            (answer, None)
        };
        Happened::Called { answer, wrote: self.world.version() != before, between: between.map(Box::new) }
    }

    fn request(&self, call: &Call) -> CallRequest {
        let work = |n: usize| self.works.get(n % (self.works.len() + 1)).cloned();
        let execution = |n: usize| self.executions.get(n % (self.executions.len() + 1));
        CallRequest {
            operation: call.operation.clone(),
            request_id: request_id(call.request),
            input: input(&call.operation, call.body),
            scope_id: call.scope.map(|at| SCOPES[at].parse().expect("a scope")),
            work_id: call.work.map(|n| work(n).unwrap_or_else(|| WorkId::from_parts(9, 9))),
            execution_id: call.execution.map(|n| match execution(n) {
                Some(execution) => execution.claimed.execution.clone(),
                None => ExecutionId::from_parts(9, 9),
            }),
        }
    }

    /// An extension's operation, as the extension host carries it out where there is no gate.
    fn hosted(
        &mut self,
        call: &Call,
        bearer: &str,
        socket: ExecutionId,
        mut request: CallRequest,
    ) -> (Answer, Option<Happened>) {
        if request.request_id.is_none() {
            self.unnamed += 1;
            request.request_id = Some(format!("unnamed-{}-{}", self.world.ran, self.unnamed));
        }
        let call_of_host = HostCall { bearer_digest: hex(&token::digest(bearer)), execution_id: socket, request };
        let running = &self.running;
        let under_way = |key: &RequestKey| running.iter().any(|one| one.admitted.key() == key);
        let admitted = match self.release.hosted.admit(&call_of_host, under_way, self.now) {
            Ok(Admission::Admitted(admitted)) => admitted,
            Ok(Admission::Done(..)) => return (Answer::Replayed, None),
            Ok(Admission::UnderWay(..)) => return (Answer::UnderWay, None),
            Err(error) => return (refused(&error), None),
        };
        if admitted.kind() == OperationKind::Read {
            return (Answer::Done, None);
        }
        let between = call.between.as_deref().map(|step| self.step(step));
        if let Err(error) = self.release.hosted.begin(&admitted, self.now, |_| Ok(true)) {
            return (refused(&error), between);
        }
        self.running.push(Running { admitted, body: call.body });
        let answer = match call.end {
            End::Leave => Answer::Begun,
            end => self.settle(self.running.len() - 1, end),
        };
        (answer, between)
    }

    /// An operator's word about a request that may be in doubt.
    pub(super) fn resolve(&mut self, execution: usize, operation: &str, request: u8, done: bool) -> bool {
        let Some(at) = place(execution, self.executions.len()) else { return false };
        let asked = DoubtResolveRequest {
            execution_id: self.executions[at].claimed.execution.clone(),
            operation: operation.to_owned(),
            request_id: request_id(Request::Named(request)).unwrap_or_default(),
            outcome: if done { DoubtOutcome::Done } else { DoubtOutcome::NotDone },
            output: None,
        };
        let now = self.now;
        self.world.store.write(|tx| doubts::resolve(tx, &asked, "operator:o", now)).is_ok()
    }

    /// The end of a handler that runs: what the extension host does about each.
    pub(super) fn settle(&mut self, at: usize, end: End) -> Answer {
        let Running { admitted, body } = self.running.remove(at);
        let hosted = &mut self.release.hosted;
        let key = admitted.key().clone();
        let code = match (end, admitted.kind()) {
            (End::Refuse, _) => "refused_by_handler",
            (End::Fail | End::Leave, _) if admitted.idempotent() => "extension_unavailable",
            (End::Fail | End::Leave, _) => {
                hosted.doubt(&key).expect("a doubt");
                return Answer::refused("in_doubt", None);
            }
            (End::Finish, kind) => {
                let done = match kind {
                    OperationKind::Wait => {
                        let wait: WaitInput = serde_json::from_value(wait()).expect("a sound Wait");
                        hosted.park(&admitted, wait, Value::Null, self.now, |_| Ok(())).map(drop)
                    }
                    OperationKind::Emission => {
                        let event: EmitInput =
                            serde_json::from_value(event(body, 1)).expect("an Event as extensions tell it");
                        hosted.emit(&admitted, &event, self.now).map(drop)
                    }
                    _ => {
                        return hosted
                            .finish(&admitted, json!({"done": true}))
                            .map_or_else(|e| refused(&e), |_| Answer::Done);
                    }
                };
                match done {
                    Ok(()) => return Answer::Done,
                    Err(error) => {
                        hosted.withdraw(&admitted, |_| Ok(())).expect("an intent that is taken away");
                        return refused(&error);
                    }
                }
            }
        };
        hosted.withdraw(&admitted, |_| Ok(())).expect("an intent that is taken away");
        Answer::refused(code, None)
    }
}

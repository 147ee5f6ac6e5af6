//! The extension itself: its gate and its start gate.

use std::cell::RefCell;
use std::rc::Rc;

use conduit_api::error::Diagnostic;
use conduit_api::toolbelt::{Predicate, WaitInput, WaitMode};
use conduit_api::{ApprovalId, UnixMicros, WorkId};
use conduit_config::Snapshot;
use conduit_coordination::events::source;
use conduit_extension::desk::{Desk, Fault};
use conduit_extension::{
    Answer, Extension, Failure, GateAnswer, GateCall, Invocation, Invoked, Pass, StartCall, WaitPlan,
};
use conduit_store::digest::{Sha256Digest, sha256_parts};
use conduit_store::{Clock, Write};
use conduit_toolbelt::registry::Registration;
use serde_json::{Map, Value, json};

use crate::approvals::{Asked, AskedCall, Met, close, give_back, meet, pass};
use crate::rules::{self, Rules};
use crate::{DECIDED, NAME, input};

/// The extension `human`, in the daemon's process.
#[derive(Debug)]
pub struct Human {
    desk: Rc<Desk>,
    /// The rules of the generation that was active last.
    rules: RefCell<Option<(i64, Rc<Rules>)>>,
}

impl Human {
    pub const fn new(desk: Rc<Desk>) -> Self {
        Self { desk, rules: RefCell::new(None) }
    }

    /// The rules of the active generation. Error: its settings have faults, so that nobody knows what they guard.
    fn rules(&self) -> Result<Rc<Rules>, Failure> {
        let (generation, config) = self.desk.read(|_, snapshot| {
            let known = matches!(&*self.rules.borrow(), Some((known, _)) if *known == snapshot.generation);
            Ok((snapshot.generation, (!known).then(|| settings(snapshot))))
        })?;
        if let Some(config) = config {
            let (rules, faults) = rules::read(&config, "", self.desk.registry().catalogue(), None);
            if let Some(fault) = faults.first() {
                let Diagnostic { pointer, code, remedy } = fault;
                return Err(Failure::Failed(format!("its settings have a fault at {pointer}: {code}; {remedy}")));
            }
            self.rules.replace(Some((generation, Rc::new(rules))));
        }
        let rules = self.rules.borrow();
        rules.as_ref().map(|(_, rules)| Rc::clone(rules)).ok_or_else(|| Failure::Failed("it has no rules".into()))
    }

    fn judge_call(&self, call: &GateCall) -> Result<GateAnswer, Failure> {
        match self.asked(call)? {
            Some(asked) => self.judge(&asked),
            None => Ok(GateAnswer::LetThrough),
        }
    }

    /// What is asked about `call`; nothing where no rule names it.
    fn asked<'c>(&self, call: &'c GateCall) -> Result<Option<Asked<'c>>, Failure> {
        let who = &call.authority;
        let Some(timeout_s) = self.rules()?.of_call(&who.scope_id, &call.operation) else { return Ok(None) };
        let digest = bytes_of(&call.call_digest).ok_or_else(|| Failure::Failed("the call has no digest".into()))?;
        Ok(Some(Asked {
            digest,
            work: &who.work_id,
            scope: &who.scope_id,
            binding: &who.binding,
            call: Some(AskedCall {
                execution: &who.execution_id,
                operation: &call.operation,
                request_id: &call.request_id,
                input: input::shown(&call.input),
            }),
            timeout_s,
        }))
    }

    fn judge_start(&self, call: &StartCall) -> Result<GateAnswer, Failure> {
        let Some(timeout_s) = self.rules()?.of_start(&call.scope_id, &call.binding) else {
            return Ok(GateAnswer::LetThrough);
        };
        let parts = [call.work_id.as_str().as_bytes(), call.binding.as_bytes()];
        self.judge(&Asked {
            digest: sha256_parts("gated-start-1", &parts),
            work: &call.work_id,
            scope: &call.scope_id,
            binding: &call.binding,
            call: None,
            timeout_s,
        })
    }

    fn judge(&self, asked: &Asked<'_>) -> Result<GateAnswer, Failure> {
        let now = Clock.now();
        Ok(match self.desk.write(|tx, snapshot| meet(tx, asked, snapshot, now))? {
            Met::Through => GateAnswer::LetThrough,
            Met::Refuse(refusal) => GateAnswer::Refuse(refusal),
            Met::Wait { approval, expires_at } => GateAnswer::Park(plan(asked.work, &approval, expires_at, now.wall)),
        })
    }
}

/// The settings that the configuration has for this extension.
fn settings(snapshot: &Snapshot) -> Value {
    let said = snapshot.config.extensions.get(NAME);
    said.map_or_else(|| json!({}), |said| said.config.clone())
}

/// A Wait for the decision about one request. Only an operator's action is listened to.
fn plan(work: &WorkId, approval: &ApprovalId, expires_at: Option<UnixMicros>, now: UnixMicros) -> WaitPlan {
    let predicate = Predicate {
        kind: DECIDED.to_owned(),
        correlation_key: None,
        work_id: Some(work.clone()),
        source: Some(source::ACTION.to_owned()),
        data: Map::from_iter([("/approval_id".to_owned(), Value::from(approval.as_str()))]),
    };
    // Rounded up: the Wait never ends before the request does.
    let left = expires_at.map(|end| u64::try_from((end.0 - now.0).max(0) / 1_000_000 + 1).unwrap_or(u64::MAX));
    let timeout_s = left.map(|seconds| seconds.min(366 * 86_400));
    let output = json!({"approval_id": approval, "state": "pending", "expires_at": expires_at});
    WaitPlan {
        wait: WaitInput { predicates: vec![predicate], mode: WaitMode::Any, timeout_s, watermark: None },
        output,
    }
}

fn bytes_of(hex: &str) -> Option<Sha256Digest> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

impl Extension for Human {
    fn registration(&self) -> Registration {
        crate::registration()
    }

    fn invoke<'a>(&'a self, _call: &'a Invocation) -> Answer<'a, Result<Invoked, Failure>> {
        Box::pin(async { Err(Failure::Failed("it has no operations".into())) })
    }

    fn gate<'a>(&'a self, call: &'a GateCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        Box::pin(async move { self.judge_call(call) })
    }

    fn pass(&self, call: &GateCall, tx: &Write<'_>) -> Result<Pass, Fault> {
        match self.asked(call) {
            Ok(Some(asked)) => pass(tx, &asked, Clock.now()),
            Ok(None) => Ok(Pass::Free),
            // The gate says why, when it is asked anew.
            Err(_) => Ok(Pass::Over),
        }
    }

    fn give_back(&self, call: &GateCall, tx: &Write<'_>) -> Result<(), Fault> {
        match bytes_of(&call.call_digest) {
            Some(digest) => give_back(tx, &call.authority.execution_id, &digest, &call.request_id),
            None => Ok(()), // it used nothing up
        }
    }

    fn close(&self, call: &GateCall, tx: &Write<'_>) -> Result<(), Fault> {
        match bytes_of(&call.call_digest) {
            Some(digest) => close(tx, &call.authority.execution_id, &digest, &call.request_id),
            None => Ok(()), // it used nothing up
        }
    }

    fn start_gate<'a>(&'a self, call: &'a StartCall) -> Answer<'a, Result<GateAnswer, Failure>> {
        Box::pin(async move { self.judge_start(call) })
    }
}

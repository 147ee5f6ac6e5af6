//! A toolbelt of its own, put together from the public parts of the real one: token records, snapshots, the rules of
//! `check`, the lease guard, the registry. It keeps answers in memory and knows just enough of the builtins for the cases.
//!
//! Complete, it keeps every case. With one part left out it is the toolbelt that somebody could have written by mistake,
//! and it has to fail the cases that are about that part, and no others. (A stolen operation alone goes astray in every case
//! that calls it.)

use std::collections::HashMap;
use std::rc::Rc;

use conduit_api::id::in_family;
use conduit_api::toolbelt::{CallResponse, operation};
use conduit_api::{ApiError, Code, ExecutionId};
use conduit_config::{Snapshot, SnapshotCache};
use conduit_extension::{
    Answer, Authority, Extension, Failure, GateAnswer, GateCall, Invocation, Invoked, OperationError,
};
use conduit_store::digest::{Sha256Digest, canonical_json, sha256_parts};
use conduit_store::lease::Demand;
use conduit_store::{Clock, Fence, StateDir, Store, named_params};
use conduit_toolbelt::check::{Assertions, Facts, RULES, rule};
use conduit_toolbelt::registry::Registry;
use conduit_toolbelt::token::{self, TokenRecord};
use serde_json::{Map, Value, json};

use crate::call::{Answered, Call, Implementation};
use crate::support::{Scripted, World, registry};

/// A part that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The lease guard.
    Fence,
    /// The assertions of scope, Work and execution.
    Narrowing,
    /// The execution that the socket asserts.
    Socket,
    Allowlist,
    /// What the configuration allows now.
    Ceiling,
    /// That an operation belongs to the registration whose namespace it is in.
    Namespaces,
    /// What was answered before.
    Replay,
    /// What was asked before.
    RequestDigest,
    Schema,
    /// That a gate which fails has not let through.
    FailClosed,
    /// The event families of the grant.
    Families,
}

impl Part {
    pub const ALL: [Self; 11] = [
        Self::Fence,
        Self::Narrowing,
        Self::Socket,
        Self::Allowlist,
        Self::Ceiling,
        Self::Namespaces,
        Self::Replay,
        Self::RequestDigest,
        Self::Schema,
        Self::FailClosed,
        Self::Families,
    ];

    /// The cases that are about it, by how they begin.
    pub const fn cases(self) -> &'static [&'static str] {
        match self {
            Self::Fence => &["T05: an expired lease", "T06: after a declaration", "T17: a translated Wait"],
            Self::Narrowing => &["T05: an assertion"],
            Self::Socket => &["E03: a token is refused on the socket"],
            Self::Allowlist => &["T05: an operation outside"],
            Self::Ceiling => &["T07: a denial"],
            Self::Namespaces => &["T16: a registration"],
            Self::Replay => &["T14: the same request", "T14: a changed request"],
            Self::RequestDigest => &["T14: a changed request"],
            Self::Schema => &["M07: an input"],
            Self::FailClosed => &["G04: a gate that fails"],
            Self::Families => &["T08: an Event"],
        }
    }

    /// Whether its absence shows wherever an operation is called.
    pub const fn shows_everywhere(self) -> bool {
        matches!(self, Self::Namespaces)
    }

    /// The rules of `check` that are this part.
    const fn rules(self) -> &'static [&'static str] {
        match self {
            Self::Narrowing => &[rule::SCOPE, rule::WORK, rule::EXECUTION],
            Self::Socket => &[rule::SOCKET],
            Self::Allowlist => &[rule::NOT_GRANTED],
            Self::Ceiling => &[rule::CEILING],
            _ => &[],
        }
    }
}

type Key = (ExecutionId, String, String);

pub struct Composed {
    without: Option<Part>,
    state: StateDir,
    store: Store,
    snapshots: SnapshotCache,
    registry: Registry,
    /// In the order in which they are loaded.
    extensions: Vec<Rc<Scripted>>,
    answers: HashMap<Key, (Sha256Digest, Value)>,
}

/// A caller whose call passed the checks.
struct Caller {
    token: TokenRecord,
    snapshot: Rc<Snapshot>,
}

fn told(error: &conduit_store::Error) -> ApiError {
    error.to_api()
}

fn unavailable() -> ApiError {
    ApiError::new(Code::ExtensionUnavailable, "the extension did not answer")
}

impl Composed {
    pub fn new(world: &World, without: Option<Part>) -> Self {
        let state = StateDir::open(&world.state()).unwrap();
        let registry = registry(&world.extensions);
        Self {
            without,
            store: Store::open(&state).unwrap(),
            snapshots: SnapshotCache::new(registry.catalogue().clone()),
            state,
            registry,
            extensions: world.extensions.clone(),
            answers: HashMap::new(),
        }
    }

    fn lacks(&self, part: Part) -> bool {
        self.without == Some(part)
    }

    /// Who carries the operation out; without namespaces, whoever came first.
    fn owner(&self, operation: &str) -> Option<Rc<Scripted>> {
        let claims = |one: &&Rc<Scripted>| one.registration().operations.iter().any(|own| own.name == operation);
        let registered = |one: &&Rc<Scripted>| self.registry.registration(&one.registration().name).is_some();
        let mut claimants = self.extensions.iter().filter(claims);
        if self.lacks(Part::Namespaces) { claimants.next() } else { claimants.find(registered) }.cloned()
    }

    fn decide(&mut self, call: &Call) -> Result<Caller, ApiError> {
        let digest = token::digest(&call.token);
        let Self { store, snapshots, state, .. } = self;
        let looked = store.read(|r| {
            let token = token::lookup(r, &digest).map_err(|error| error.to_api())?;
            Ok::<_, Fault>((token, snapshots.active(r, state).map_err(|error| error.to_api())?))
        });
        let (token, snapshot) = looked.map_err(|Fault(error)| error)?;
        let name = call.request.operation.as_str();
        let declared = operation::BUILTINS.contains(&name)
            || self.registry.operation(name).and_then(|known| known.registration).is_some_and(|owner| {
                token.as_ref().is_some_and(|token| snapshot.registers_in(&owner.name, &token.scope))
            });
        let facts = Facts {
            token: token.as_ref(),
            assertions: &Assertions::of(&call.request, &call.socket),
            operation: name,
            declared,
            ceiling: &|scope, operation| snapshot.authorize_operation(scope, operation),
            now: Clock.now(),
        };
        let left_out = self.without.map_or(&[][..], Part::rules);
        if !RULES.iter().filter(|rule| !left_out.contains(&rule.name)).all(|rule| rule.holds(&facts)) {
            return Err(ApiError::forbidden());
        }
        let caller = Caller { token: token.ok_or_else(ApiError::forbidden)?, snapshot };
        if !self.lacks(Part::Fence) {
            let (fence, demand) = caller.held();
            self.store.read(|r| r.guard(&fence, &demand, Clock.now())).map_err(|error| told(&error))?;
        }
        Ok(caller)
    }

    async fn answer(&mut self, call: Call) -> Answered {
        let caller = self.decide(&call)?;
        let Call { request, .. } = call;
        let id = request.request_id.clone().unwrap_or_default();
        let key: Key = (caller.token.execution.clone(), request.operation.clone(), id.clone());
        let digest = sha256_parts("asked", &[&canonical_json(&Value::Object(request.input.clone()))]);
        let kept = self.answers.get(&key).filter(|_| !self.lacks(Part::Replay));
        match kept {
            Some((asked, _)) if *asked != digest && !self.lacks(Part::RequestDigest) => {
                return Err(ApiError::new(Code::RequestConflict, "the request ID was used for another request"));
            }
            Some((_, output)) => return Ok(CallResponse::replayed(output.clone())),
            None => {}
        }
        let output = match self.owner(&request.operation) {
            None => self.builtin(&caller, &request.operation, &request.input)?,
            Some(extension) => self.hosted(&caller, &extension, &request.operation, id, request.input).await?,
        };
        self.answers.insert(key, (digest, output.clone()));
        Ok(CallResponse::new(output))
    }

    fn builtin(&mut self, caller: &Caller, name: &str, input: &Map<String, Value>) -> Result<Value, ApiError> {
        match name {
            operation::EMIT => self.emit(caller, input.get("type").and_then(Value::as_str).unwrap_or_default()),
            operation::WAIT | operation::DECLARE_OUTCOME => self.declare(caller, name),
            _ => Ok(json!({})),
        }
    }

    fn emit(&self, caller: &Caller, kind: &str) -> Result<Value, ApiError> {
        let granted = caller.token.grants.events.iter().any(|family| in_family(kind, family));
        let allowed = granted && caller.snapshot.authorize_event(&caller.token.scope, kind);
        if !allowed && !self.lacks(Part::Families) {
            return Err(ApiError::new(Code::EventNotAllowed, "the event type is outside the families"));
        }
        Ok(json!({"emitted": self.answers.len()}))
    }

    /// The row that the lease guard reads.
    fn declare(&mut self, caller: &Caller, name: &str) -> Result<Value, ApiError> {
        const DECLARE: &str = "
            INSERT INTO declaration (execution_id, epoch, kind, body, declared_at_us)
            VALUES (:execution, :epoch, :kind, '{}', 1)";
        let kind = if name == operation::DECLARE_OUTCOME { "outcome" } else { "wait" };
        let TokenRecord { execution, epoch, .. } = &caller.token;
        let declared = self.store.write(|tx| {
            let params = named_params! { ":execution": execution.as_str(), ":epoch": epoch, ":kind": kind };
            tx.execute("declaring", DECLARE, params)
        });
        declared.map(|_| Value::Null).map_err(|error| told(&error))
    }

    async fn hosted(
        &mut self,
        caller: &Caller,
        extension: &Rc<Scripted>,
        name: &str,
        request_id: String,
        input: Map<String, Value>,
    ) -> Result<Value, ApiError> {
        let known = self.registry.operation(name).ok_or_else(ApiError::forbidden)?;
        let sound = known.violations(&Value::Object(input.clone())).is_ok_and(|found| found.is_empty());
        if !sound && !self.lacks(Part::Schema) {
            return Err(ApiError::new(Code::InvalidRequest, "the input breaks the operation's schema"));
        }
        let authority = caller.authority();
        for gate in &self.extensions {
            let registration = gate.registration();
            let judges = registration.gate && registration.name != extension.registration().name;
            if !judges || !caller.snapshot.registers_in(&registration.name, &caller.token.scope) {
                continue;
            }
            let call = GateCall {
                operation: name.to_owned(),
                request_id: request_id.clone(),
                input: input.clone(),
                authority: authority.clone(),
                call_digest: String::new(),
                settings: Value::Null,
            };
            match gate.gate(&call).await {
                Ok(GateAnswer::LetThrough) => {}
                Ok(GateAnswer::Refuse(OperationError { code, message })) => {
                    return Err(ApiError::of_extension(code, message));
                }
                Ok(GateAnswer::Park(plan)) => {
                    self.declare(caller, operation::WAIT)?;
                    return Ok(plan.output);
                }
                Err(_) if self.lacks(Part::FailClosed) => {}
                Err(_) => return Err(ApiError::new(Code::GateFailed, "a gate did not decide")),
            }
        }
        let call = Invocation { operation: name.to_owned(), request_id, input, authority, settings: Value::Null };
        match extension.invoke(&call).await {
            Ok(Invoked::Output(output)) => Ok(output),
            Ok(Invoked::Wait(plan)) => self.declare(caller, operation::WAIT).map(|_| plan.output),
            Ok(Invoked::Emission(event)) => self.emit(caller, &event.kind),
            Err(Failure::Refused(OperationError { code, message })) => Err(ApiError::of_extension(code, message)),
            Err(Failure::Unavailable(_) | Failure::Failed(_)) => Err(unavailable()),
        }
    }
}

/// What a look at the store can come to.
struct Fault(ApiError);

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<conduit_store::Error> for Fault {
    fn from(error: conduit_store::Error) -> Self {
        Self(told(&error))
    }
}

impl Caller {
    fn held(&self) -> (Fence, Demand) {
        let TokenRecord { execution, epoch, owner, scope, .. } = self.token.clone();
        (Fence { execution, epoch, owner }, Demand::Authority { scope })
    }

    fn authority(&self) -> Authority {
        let TokenRecord { execution, work, scope, binding, epoch, generation, .. } = self.token.clone();
        Authority { execution_id: execution, work_id: work, scope_id: scope, binding, epoch, generation }
    }
}

impl Implementation for Composed {
    fn call(&mut self, arrived: Call) -> Answer<'_, Answered> {
        Box::pin(self.answer(arrived))
    }
}

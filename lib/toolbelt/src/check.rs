//! The choke point: the decision that a call may go on to its transaction, and the type that proves it (T05).
//!
//! [`decide`] is pure and total. What it cannot see, the lease, is guarded inside the call's own transaction by
//! `conduit_store`, with the [`Fence`] and the [`Demand`] that the authorization carries; an operation takes both
//! proofs, an [`Authorized`] and a fenced transaction.

use std::marker::PhantomData;

use conduit_api::toolbelt::{CallRequest, operation};
use conduit_api::{ExecutionId, ScopeId, WorkId};
use conduit_config::Snapshot;
use conduit_store::lease::Demand;
use conduit_store::{Fence, Now};

use crate::error::{Error, Result};
use crate::token::TokenRecord;

/// What the caller asserts, and what the socket asserts in its name (E03). Each can only narrow.
#[derive(Debug, Clone, Default)]
pub struct Assertions {
    pub scope: Option<ScopeId>,
    pub work: Option<WorkId>,
    pub execution: Option<ExecutionId>,
    /// The execution that the socket belongs to.
    pub socket: Option<ExecutionId>,
}

impl Assertions {
    /// What `request` asserts, and the execution of the socket that it came through.
    pub fn of(request: &CallRequest, socket: &ExecutionId) -> Self {
        Self {
            scope: request.scope_id.clone(),
            work: request.work_id.clone(),
            execution: request.execution_id.clone(),
            socket: Some(socket.clone()),
        }
    }
}

/// An operation that can be authorized: a type of its own, so that the proof for one never serves another.
pub trait Operation {
    const NAME: &'static str;
}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $text:path;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;
        impl Operation for $name {
            const NAME: &'static str = $text;
        }
    )*};
}
operations! {
    Emit = operation::EMIT;
    CreateWork = operation::CREATE_WORK;
    Wait = operation::WAIT;
    DeclareOutcome = operation::DECLARE_OUTCOME;
    ReadContext = operation::READ_CONTEXT;
}

/// Proof that a token may call `O` as far as the token and the configuration go. Only [`authorize`] makes one.
#[derive(Debug)]
pub struct Authorized<O> {
    token: TokenRecord,
    fence: Fence,
    demand: Demand,
    _operation: PhantomData<O>,
}

impl<O> Authorized<O> {
    pub const fn token(&self) -> &TokenRecord {
        &self.token
    }
    /// The token alone; the proof is gone.
    pub fn into_token(self) -> TokenRecord {
        self.token
    }
    /// What the call's transaction has to be guarded with.
    pub const fn fence(&self) -> &Fence {
        &self.fence
    }
    pub const fn demand(&self) -> &Demand {
        &self.demand
    }
}

/// The rules, in the order in which they are asked. The names are for records; callers never see them (T06).
pub mod rule {
    pub const UNKNOWN_TOKEN: &str = "the token is unknown";
    pub const REVOKED: &str = "the token is revoked";
    pub const EXPIRED: &str = "the token has expired";
    pub const SOCKET: &str = "the token is of another execution than the socket";
    pub const SCOPE: &str = "the call asserts another scope";
    pub const WORK: &str = "the call asserts another Work";
    pub const EXECUTION: &str = "the call asserts another execution";
    pub const UNDECLARED: &str = "the operation is not declared in the scope";
    pub const NOT_GRANTED: &str = "the operation is not in the token's allowlist";
    pub const CEILING: &str = "the configuration does not allow the operation now";

    /// Those that say what a grant lacks; the others are about the token and what it was used for.
    pub const OF_GRANTS: [&str; 3] = [UNDECLARED, NOT_GRANTED, CEILING];
}

/// What checks 1 to 4 look at.
#[derive(Clone, Copy)]
pub struct Facts<'f> {
    pub token: Option<&'f TokenRecord>,
    pub assertions: &'f Assertions,
    pub operation: &'f str,
    /// Whether the toolbelt of the active generation has the operation.
    pub declared: bool,
    /// Whether the configuration allows an operation in a scope now.
    pub ceiling: &'f dyn Fn(&ScopeId, &str) -> bool,
    pub now: Now,
}

/// One rule: what it says when it fails, its check of T05, and whether the facts break it. A rule is asked only when those
/// before it held; only the first can be without a token, and so the others let one that is not there pass.
#[derive(Clone, Copy)]
pub struct Rule {
    pub check: u8,
    pub name: &'static str,
    breaks: fn(&Facts<'_>, &TokenRecord) -> bool,
}

impl Rule {
    /// Whether the facts keep the rule.
    pub fn holds(&self, facts: &Facts<'_>) -> bool {
        match facts.token {
            Some(token) => !(self.breaks)(facts, token),
            None => self.name != rule::UNKNOWN_TOKEN,
        }
    }
}

const fn one(check: u8, name: &'static str, breaks: fn(&Facts<'_>, &TokenRecord) -> bool) -> Rule {
    Rule { check, name, breaks }
}

fn differs<T: PartialEq>(asserted: Option<&T>, own: &T) -> bool {
    asserted.is_some_and(|asserted| asserted != own)
}

/// Checks 1 to 4 of T05, rule by rule. [`decide`] asks them in this order, and so does whoever explains a decision.
#[rustfmt::skip]
pub static RULES: &[Rule] = &[
    one(1, rule::UNKNOWN_TOKEN, |_, _| false),
    one(1, rule::REVOKED,       |_, token| token.revoked),
    one(1, rule::EXPIRED,       |facts, token| token.expired(facts.now)),
    one(2, rule::SOCKET,        |facts, token| differs(facts.assertions.socket.as_ref(), &token.execution)),
    one(2, rule::SCOPE,         |facts, token| differs(facts.assertions.scope.as_ref(), &token.scope)),
    one(2, rule::WORK,          |facts, token| differs(facts.assertions.work.as_ref(), &token.work)),
    one(2, rule::EXECUTION,     |facts, token| differs(facts.assertions.execution.as_ref(), &token.execution)),
    one(3, rule::UNDECLARED,    |facts, _| !facts.declared),
    one(3, rule::NOT_GRANTED,   |facts, token| !token.grants.operations.iter().any(|granted| granted == facts.operation)),
    one(4, rule::CEILING,       |facts, token| !(facts.ceiling)(&token.scope, facts.operation)),
];

/// Decides checks 1 to 4 of T05. `declared`: whether the toolbelt of the active generation has the operation. `Err` names
/// the first rule that failed.
pub fn decide(
    token: Option<&TokenRecord>,
    assertions: &Assertions,
    operation: &str,
    declared: bool,
    ceiling: impl Fn(&ScopeId, &str) -> bool,
    now: Now,
) -> std::result::Result<(), &'static str> {
    first_broken(RULES.iter(), &Facts { token, assertions, operation, declared, ceiling: &ceiling, now })
}

fn first_broken<'r>(
    mut rules: impl Iterator<Item = &'r Rule>,
    facts: &Facts<'_>,
) -> std::result::Result<(), &'static str> {
    rules.find(|rule| !rule.holds(facts)).map_or(Ok(()), |broken| Err(broken.name))
}

/// Check 1: the token exists, is not revoked, and has not expired.
pub(crate) fn live(token: Option<&TokenRecord>, now: Now) -> std::result::Result<(), &'static str> {
    of_token(token, &Assertions::default(), now)
}

/// Checks 1 and 2: the token is live, and every assertion names what it names.
fn of_token(token: Option<&TokenRecord>, assertions: &Assertions, now: Now) -> std::result::Result<(), &'static str> {
    let facts = Facts { token, assertions, operation: "", declared: false, ceiling: &|_, _| false, now };
    first_broken(RULES.iter().take_while(|rule| rule.check <= 2), &facts)
}

/// Takes a call of `O` through checks 1 to 4. Error: `forbidden`, with the rule for the record.
pub fn authorize<O: Operation>(
    token: Option<TokenRecord>,
    assertions: &Assertions,
    snapshot: &Snapshot,
    now: Now,
) -> Result<Authorized<O>> {
    let ceiling = |scope: &ScopeId, operation: &str| snapshot.authorize_operation(scope, operation);
    decide(token.as_ref(), assertions, O::NAME, true, ceiling, now).map_err(|rule| Error::Refused { rule })?;
    let token = token.ok_or(Error::Refused { rule: rule::UNKNOWN_TOKEN })?;
    Ok(prove(token))
}

/// The marker of an authorization for an operation that an extension carries out.
#[derive(Debug)]
pub struct Registered;

/// Takes a call of an extension's operation through checks 1 to 4. Error: `forbidden`, with the rule for the record.
pub(crate) fn authorize_registered(
    token: Option<TokenRecord>,
    assertions: &Assertions,
    operation: &str,
    declared: bool,
    snapshot: &Snapshot,
    now: Now,
) -> Result<Authorized<Registered>> {
    let ceiling = |scope: &ScopeId, operation: &str| snapshot.authorize_operation(scope, operation);
    decide(token.as_ref(), assertions, operation, declared, ceiling, now).map_err(|rule| Error::Refused { rule })?;
    token.map(prove).ok_or(Error::Refused { rule: rule::UNKNOWN_TOKEN })
}

/// What a transaction is guarded with in which a token speaks.
pub(crate) fn authority(token: &TokenRecord) -> (Fence, Demand) {
    let fence = Fence { execution: token.execution.clone(), epoch: token.epoch, owner: token.owner.clone() };
    (fence, Demand::Authority { scope: token.scope.clone() })
}

/// The proof for a token that was checked.
fn prove<O>(token: TokenRecord) -> Authorized<O> {
    let (fence, demand) = authority(&token);
    Authorized { token, fence, demand, _operation: PhantomData }
}

/// Looking at what the token allows, without calling any of it: checks 1 and 2, and the lease like every call (E02).
#[derive(Debug)]
pub struct Look;

pub(crate) fn authorize_look(
    token: Option<TokenRecord>,
    assertions: &Assertions,
    now: Now,
) -> Result<Authorized<Look>> {
    of_token(token.as_ref(), assertions, now).map_err(|rule| Error::Refused { rule })?;
    token.map(prove).ok_or(Error::Refused { rule: rule::UNKNOWN_TOKEN })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Grants;
    use conduit_api::{TokenId, UnixMicros};

    const NOW: Now = Now { wall: UnixMicros(0), boot_us: 99, boot_id: "this boot" };

    fn token() -> TokenRecord {
        TokenRecord {
            id: TokenId::from_parts(1, 1),
            execution: ExecutionId::from_parts(1, 1),
            work: WorkId::from_parts(1, 1),
            scope: "demo".parse().unwrap(),
            epoch: 1,
            owner: "a".into(),
            binding: "b".into(),
            generation: 1,
            grants: Grants { operations: vec!["emit".into()], ..Grants::default() },
            boot_id: "this boot".into(),
            expires_boot_us: 100,
            revoked: false,
        }
    }

    fn ask(
        token: Option<&TokenRecord>,
        assertions: &Assertions,
        operation: &str,
        ceiling: bool,
    ) -> std::result::Result<(), &'static str> {
        decide(token, assertions, operation, operation::BUILTINS.contains(&operation), |_, _| ceiling, NOW)
    }

    /// T05
    #[test]
    fn the_first_rule_in_order_refuses_when_everything_is_wrong_at_once() {
        let wrong = Assertions {
            scope: Some("other".parse().unwrap()),
            work: Some(WorkId::from_parts(2, 2)),
            execution: Some(ExecutionId::from_parts(2, 2)),
            socket: Some(ExecutionId::from_parts(3, 3)),
        };
        let mut bad = TokenRecord { revoked: true, expires_boot_us: 0, ..token() };
        let mut assertions = wrong;
        let mut order = vec![ask(None, &assertions, "nothing", false)];
        order.push(ask(Some(&bad), &assertions, "nothing", false));
        bad.revoked = false;
        order.push(ask(Some(&bad), &assertions, "nothing", false));
        bad.expires_boot_us = 100;
        order.push(ask(Some(&bad), &assertions, "nothing", false));
        assertions.socket = None;
        order.push(ask(Some(&bad), &assertions, "nothing", false));
        assertions.scope = None;
        order.push(ask(Some(&bad), &assertions, "nothing", false));
        assertions.work = None;
        order.push(ask(Some(&bad), &assertions, "nothing", false));
        assertions.execution = None;
        order.push(ask(Some(&bad), &assertions, "nothing", false));
        order.push(ask(Some(&bad), &assertions, "wait", false));
        order.push(ask(Some(&bad), &assertions, "emit", false));
        let rules = [
            rule::UNKNOWN_TOKEN,
            rule::REVOKED,
            rule::EXPIRED,
            rule::SOCKET,
            rule::SCOPE,
            rule::WORK,
            rule::EXECUTION,
            rule::UNDECLARED,
            rule::NOT_GRANTED,
            rule::CEILING,
        ];
        assert_eq!(order, rules.map(Err));
        assert_eq!(ask(Some(&bad), &assertions, "emit", true), Ok(()));
    }

    /// A call that keeps every rule, and the means to break each of them.
    struct Asked {
        token: Option<TokenRecord>,
        assertions: Assertions,
        operation: &'static str,
        declared: bool,
        ceiling: bool,
    }

    impl Asked {
        fn sound() -> Self {
            let assertions = Assertions::default();
            Self { token: Some(token()), assertions, operation: "emit", declared: true, ceiling: true }
        }

        fn broken(&mut self, rule: &str) {
            match rule {
                rule::UNKNOWN_TOKEN => self.token = None,
                rule::REVOKED => self.of_token(|token| token.revoked = true),
                rule::EXPIRED => self.of_token(|token| token.expires_boot_us = 99),
                rule::SOCKET => self.assertions.socket = Some(ExecutionId::from_parts(2, 2)),
                rule::SCOPE => self.assertions.scope = Some("other".parse().unwrap()),
                rule::WORK => self.assertions.work = Some(WorkId::from_parts(2, 2)),
                rule::EXECUTION => self.assertions.execution = Some(ExecutionId::from_parts(2, 2)),
                rule::UNDECLARED => self.declared = false,
                rule::NOT_GRANTED => self.of_token(|token| token.grants.operations.clear()),
                rule::CEILING => self.ceiling = false,
                unknown => panic!("{unknown} is no rule of checks 1 to 4"),
            }
        }

        fn of_token(&mut self, change: impl FnOnce(&mut TokenRecord)) {
            if let Some(token) = &mut self.token {
                change(token);
            }
        }

        fn said(&self) -> std::result::Result<(), &'static str> {
            decide(self.token.as_ref(), &self.assertions, self.operation, self.declared, |_, _| self.ceiling, NOW)
        }
    }

    /// T05: the order in which the rules are listed is the order in which they decide.
    #[test]
    fn each_rule_wins_over_every_later_one_that_is_broken_too() {
        assert_eq!(Asked::sound().said(), Ok(()));
        assert!(RULES.is_sorted_by_key(|rule| rule.check));
        for (at, earlier) in RULES.iter().enumerate() {
            for later in &RULES[at..] {
                let mut asked = Asked::sound();
                asked.broken(later.name);
                asked.broken(earlier.name);
                assert_eq!(asked.said(), Err(earlier.name), "{} is broken as well", later.name);
            }
        }
    }

    /// T03
    #[test]
    fn a_token_is_expired_at_its_instant_and_after_its_boot() {
        let at = |boot_us, boot_id| {
            decide(Some(&token()), &Assertions::default(), "emit", true, |_, _| true, Now { boot_us, boot_id, ..NOW })
        };
        assert_eq!(at(99, "this boot"), Ok(()));
        assert_eq!(at(100, "this boot"), Err(rule::EXPIRED));
        assert_eq!(at(0, "another boot"), Err(rule::EXPIRED));
    }

    /// T05
    #[test]
    fn an_assertion_can_only_narrow() {
        let own = token();
        let right = Assertions {
            scope: Some(own.scope.clone()),
            work: Some(own.work.clone()),
            execution: Some(own.execution.clone()),
            socket: Some(own.execution.clone()),
        };
        assert_eq!(ask(Some(&own), &right, "emit", true), Ok(()));
        assert_eq!(ask(Some(&own), &right, "wait", true), Err(rule::NOT_GRANTED));
    }
}

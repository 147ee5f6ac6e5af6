//! Decisions for operators: why a call ended as it did, and whether one would be allowed now.
//!
//! Nothing is decided here. The rules are those of [`RULES`] and of the lease, asked in their order: what is shown of
//! a call that was made follows from the rule in its record, what is shown beforehand from the same facts as a call's.

use conduit_api::views::{CanIView, CheckOutcome, CheckView, DecisionView};
use conduit_api::{Code, ExecutionId, ScopeId, TokenId, WorkId};
use conduit_config::Snapshot;
use conduit_store::digest::Sha256Digest;
use conduit_store::history::Remembered;
use conduit_store::lease::{Demand, rule as lease};
use conduit_store::{Fence, Now, Read, named_params};

use crate::budget;
use crate::check::{Assertions, Facts, RULES, Rule};
use crate::error::Result;
use crate::hosted::judges;
use crate::registry::{BREAK_GLASS, Registry};
use crate::token::{self, Grants, TokenRecord};

/// What is looked at without an operation: checks 3 and 4 are not asked.
const LOOKS: [&str; 3] = ["guidance", "serving", "unreadable"];
/// The check that the lease is, the one that gates are, and the one that the budget is.
const LEASE: u8 = 5;
const GATES: u8 = 6;
const BUDGET: u8 = 7;
/// The results of a call that its budget refused; the record's rule has the figures.
const OVER_BUDGET: [&str; 2] = [Code::BudgetExceeded.as_str(), Code::CallRateExceeded.as_str()];

/// What the record of a call says of its decision.
pub fn of_record(record: Remembered) -> DecisionView {
    DecisionView {
        checks: checks_of(&record),
        at: record.at,
        operation: record.operation,
        result: record.result,
        rule: record.rule,
        refusal: record.refusal,
        gate: record.gate,
        execution_id: record.execution_id,
        work_id: record.work_id,
        scope_id: record.scope_id,
        generation: record.generation,
    }
}

fn checks_of(record: &Remembered) -> Vec<CheckView> {
    let looks = LOOKS.contains(&record.operation.as_str());
    let rules = RULES.iter().filter(|rule| !looks || rule.check <= 2).map(|rule| (rule.check, rule.name));
    let rules: Vec<_> = rules.chain(lease::OF_AUTHORITY.map(|name| (LEASE, name))).collect();
    let refused = record.rule.as_deref().and_then(|rule| rules.iter().position(|(_, name)| *name == rule));
    let over_budget = record.rule.as_deref().filter(|_| OVER_BUDGET.contains(&record.result.as_str()));
    if refused.is_none() && over_budget.is_none() && !was_decided(record) {
        return Vec::new();
    }
    let mut checks: Vec<CheckView> = rules
        .iter()
        .enumerate()
        .map(|(at, (check, name))| {
            let outcome = match refused {
                Some(refused) if at == refused => CheckOutcome::Refused,
                Some(refused) if at > refused => CheckOutcome::NotAsked,
                _ => CheckOutcome::Passed,
            };
            view(*check, *name, outcome)
        })
        .collect();
    if let Some(rule) = over_budget {
        checks.push(view(BUDGET, rule, CheckOutcome::Refused));
    }
    if let Some(gate) = &record.gate {
        checks.push(match gate.as_str() {
            BREAK_GLASS => view(GATES, "a gate does not let the call through", CheckOutcome::Bypassed),
            gate if record.called => view(GATES, by_gate(gate), CheckOutcome::Parked),
            gate => view(GATES, by_gate(gate), CheckOutcome::Refused),
        });
    }
    checks
}

/// Whether the call was decided at all. A fault of the host may have come before, and so does the look at the credential's
/// kind; an extension that fails is asked after every check.
fn was_decided(record: &Remembered) -> bool {
    let code = conduit_api::Code::ALL.iter().find(|code| code.as_str() == record.result);
    let before = |code: &Code| *code != Code::ExtensionUnavailable && (code.status() >= 500 || code.status() == 403);
    record.called || (record.rule.is_none() && !code.is_some_and(before))
}

fn view(check: u8, refuses_when: impl Into<String>, outcome: CheckOutcome) -> CheckView {
    CheckView { check, refuses_when: refuses_when.into(), outcome }
}

fn by_gate(gate: &str) -> String {
    format!("the gate `{gate}` does not let the call through")
}

/// What a decision is made from beforehand.
pub struct Ground<'g> {
    pub snapshot: &'g Snapshot,
    pub registry: &'g Registry,
    pub operation: &'g str,
    pub now: Now,
}

/// The decision about a call that the execution would make now, through its own socket, asserting nothing. `None`: there is
/// no such execution.
pub fn can_execution(r: &Read<'_>, execution: &ExecutionId, ground: &Ground<'_>) -> Result<Option<CanIView>> {
    const TOKEN: &str = "
        SELECT e.scope_id, e.binding,
               (SELECT digest FROM token t WHERE t.execution_id = e.id ORDER BY t.epoch DESC LIMIT 1) AS digest
          FROM execution e WHERE e.id = :id";
    let found = r.optional("looking a token up", TOKEN, named_params! { ":id": execution.as_str() }, |row| {
        let scope: ScopeId = conduit_store::column_id(row, "scope_id")?;
        Ok((scope, row.get::<_, String>("binding")?, row.get::<_, Option<Sha256Digest>>("digest")?))
    })?;
    let Some((scope_id, binding, digest)) = found else { return Ok(None) };
    let token = digest.map(|digest| token::lookup(r, &digest)).transpose()?.flatten();
    let mut checks = asked(RULES.iter(), token.as_ref(), &scope_id, ground);
    let lost = match token.filter(|_| passes(&checks)) {
        Some(token) => {
            let fence = Fence { execution: token.execution, epoch: token.epoch, owner: token.owner };
            let demand = Demand::Authority { scope: token.scope };
            match r.guard(&fence, &demand, ground.now).map_err(crate::Error::from) {
                Ok(()) => Some(None),
                Err(error) => Some(Some(error.rule().ok_or(error)?)),
            }
        }
        None => None,
    };
    let mut over = lost.is_none();
    for name in lease::OF_AUTHORITY {
        let refuses = lost == Some(Some(name));
        let outcome = match (over, refuses) {
            (true, _) => CheckOutcome::NotAsked,
            (false, true) => CheckOutcome::Refused,
            (false, false) => CheckOutcome::Passed,
        };
        over = over || refuses;
        checks.push(view(LEASE, name, outcome));
    }
    let mut view = shown(checks, scope_id, binding, Some(execution.clone()), ground);
    for (text, room) in budget::outlook(r, execution, ground.operation)? {
        let outcome = match room {
            Some(true) if view.allowed => CheckOutcome::Passed,
            Some(false) if view.allowed => CheckOutcome::Refused,
            _ => CheckOutcome::NotAsked,
        };
        view.allowed = view.allowed && outcome != CheckOutcome::Refused;
        view.checks.push(self::view(BUDGET, text, outcome));
    }
    Ok(Some(view))
}

/// The decision about a call that an execution of the binding would make, as far as the configuration decides it. `None`:
/// there is no such binding.
pub fn can_binding(scope: &ScopeId, binding: &str, ground: &Ground<'_>) -> Option<CanIView> {
    let granted = &ground.snapshot.binding(scope, binding)?.operations;
    // What a claim would pin; the rest of it nobody looks at.
    let token = TokenRecord {
        id: TokenId::from_parts(0, 0),
        execution: ExecutionId::from_parts(0, 0),
        work: WorkId::from_parts(0, 0),
        scope: scope.clone(),
        epoch: 0,
        owner: String::new(),
        binding: binding.to_owned(),
        generation: ground.snapshot.generation,
        grants: Grants { operations: granted.granted().map(str::to_owned).collect(), ..Grants::default() },
        boot_id: String::new(),
        expires_boot_us: 0,
        revoked: false,
    };
    let checks = asked(RULES.iter().filter(|rule| rule.check >= 3), Some(&token), scope, ground);
    Some(shown(checks, scope.clone(), binding.to_owned(), None, ground))
}

/// Asks the rules in their order, and none after one that refuses.
fn asked<'r>(
    rules: impl Iterator<Item = &'r Rule>,
    token: Option<&TokenRecord>,
    scope: &ScopeId,
    ground: &Ground<'_>,
) -> Vec<CheckView> {
    let Ground { snapshot, registry, operation, now } = *ground;
    let known = registry.operation(operation);
    let declared =
        known.is_some_and(|known| known.registration.is_none_or(|owner| snapshot.registers_in(&owner.name, scope)));
    let assertions = Assertions::default();
    let ceiling = |scope: &ScopeId, operation: &str| snapshot.authorize_operation(scope, operation);
    let facts = Facts { token, assertions: &assertions, operation, declared, ceiling: &ceiling, now };
    let mut over = false;
    rules
        .map(|rule| {
            let outcome = match over {
                true => CheckOutcome::NotAsked,
                false if rule.holds(&facts) => CheckOutcome::Passed,
                false => CheckOutcome::Refused,
            };
            over = over || outcome == CheckOutcome::Refused;
            view(rule.check, rule.name, outcome)
        })
        .collect()
}

fn passes(checks: &[CheckView]) -> bool {
    checks.iter().all(|check| check.outcome == CheckOutcome::Passed)
}

fn shown(
    mut checks: Vec<CheckView>,
    scope_id: ScopeId,
    binding: String,
    execution_id: Option<ExecutionId>,
    ground: &Ground<'_>,
) -> CanIView {
    let allowed = passes(&checks);
    let owner = ground.registry.operation(ground.operation).and_then(|known| known.registration);
    if let Some(owner) = owner {
        let gates = ground.registry.registrations().iter();
        let gates = gates.filter(|gate| judges(gate, Some(&owner.name), ground.snapshot, &scope_id));
        checks.extend(gates.map(|gate| view(GATES, by_gate(&gate.name), CheckOutcome::NotAsked)));
    }
    let (operation, generation) = (ground.operation.to_owned(), ground.snapshot.generation);
    CanIView { allowed, operation, scope_id, binding, execution_id, generation, checks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_api::UnixMicros;

    fn record(operation: &str, result: &str, rule: Option<&str>) -> Remembered {
        Remembered {
            at: UnixMicros(1),
            called: result == "ok",
            execution_id: None,
            work_id: None,
            scope_id: None,
            operation: operation.into(),
            result: result.into(),
            rule: rule.map(str::to_owned),
            refusal: None,
            gate: None,
            generation: None,
        }
    }

    fn outcomes(record: &Remembered) -> Vec<CheckOutcome> {
        checks_of(record).into_iter().map(|check| check.outcome).collect()
    }

    /// T05
    #[test]
    fn the_rule_in_a_record_tells_what_passed_before_it_and_what_was_not_asked_after() {
        let names = RULES.iter().map(|rule| rule.name).chain(lease::OF_AUTHORITY);
        for (at, name) in names.clone().enumerate() {
            let outcomes = outcomes(&record("emit", "forbidden", Some(name)));
            assert_eq!(outcomes.len(), names.clone().count());
            assert!(outcomes[..at].iter().all(|outcome| *outcome == CheckOutcome::Passed), "{name}");
            assert_eq!(outcomes[at], CheckOutcome::Refused, "{name}");
            assert!(outcomes[at + 1..].iter().all(|outcome| *outcome == CheckOutcome::NotAsked), "{name}");
        }
        assert!(outcomes(&record("emit", "ok", None)).iter().all(|outcome| *outcome == CheckOutcome::Passed));
        // The operation's own refusal comes when every check has passed.
        assert!(outcomes(&record("emit", "event_not_allowed", None)).iter().all(|o| *o == CheckOutcome::Passed));
        assert!(outcomes(&record("lab.do", "a_code_of_its_own", None)).iter().all(|o| *o == CheckOutcome::Passed));
    }

    /// G05
    #[test]
    fn a_gate_in_a_record_is_the_last_check() {
        let gated = |result, gate: &str| {
            let record = Remembered { gate: Some(gate.into()), ..record("lab.do", result, None) };
            checks_of(&record).pop().map(|check| (check.check, check.outcome))
        };
        assert_eq!(gated("ok", "door"), Some((6, CheckOutcome::Parked)));
        assert_eq!(gated("gate_refused", "door"), Some((6, CheckOutcome::Refused)));
        assert_eq!(gated("ok", BREAK_GLASS), Some((6, CheckOutcome::Bypassed)));
    }

    #[test]
    fn a_look_asks_for_no_operation_and_what_was_not_decided_shows_no_check() {
        assert!(checks_of(&record("guidance", "ok", None)).iter().all(|check| ![3, 4].contains(&check.check)));
        for result in ["internal", "unavailable", "wrong_credential_class"] {
            assert_eq!(checks_of(&record("emit", result, None)), [], "{result}");
        }
    }
}

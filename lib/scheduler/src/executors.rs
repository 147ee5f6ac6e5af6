//! The executors that bindings name: those of this release, and those that extensions provide.

use std::rc::Rc;

use conduit_api::{ApiError, Code};
use conduit_config::Snapshot;
use conduit_executor_shell::Shell;
use conduit_extension::{Executor, Provided};
use conduit_kernel::BaseEnvironment;

use crate::host::Host;

/// The executors of this release.
#[derive(Clone)]
pub struct Executors {
    own: Vec<Rc<dyn Executor>>,
    base: BaseEnvironment,
}

impl Executors {
    /// `base` is what every process is given.
    pub fn of_this_release(base: &BaseEnvironment) -> Self {
        Self { own: vec![Rc::new(Shell::new(base.clone()))], base: base.clone() }
    }

    fn get(&self, name: &str) -> Option<Rc<dyn Executor>> {
        self.own.iter().find(|executor| executor.name() == name).cloned()
    }
}

/// The executor `name`, as the generation of `snapshot` has it. An extension of it that does not run is no fault here: it is
/// found out when it is asked.
///
/// Error: `executor_unavailable` for one that nobody registers now. It was there when the generation was validated.
pub fn executor(host: &Host, name: &str, snapshot: &Snapshot) -> Result<Rc<dyn Executor>, ApiError> {
    if let Some(own) = host.executors.get(name) {
        return Ok(own);
    }
    let registry = Rc::clone(host.known.borrow().registry());
    let Some((registration, spec)) = registry.executor(name) else {
        return Err(ApiError::new(
            Code::ExecutorUnavailable,
            format!("nothing that is installed has the executor {name}"),
        ));
    };
    let extension = host.extensions.get().and_then(|extensions| extensions.extension(&registration.name));
    let settings = snapshot.settings(&registration.name);
    Ok(Rc::new(Provided::new(spec.clone(), extension, settings, host.executors.base.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_config::Registry;
    use serde_json::json;

    /// C01
    #[test]
    fn every_executor_of_this_release_is_one_that_a_configuration_may_name() {
        let references = conduit_release::references(&conduit_release::registry());
        let executors = Executors::of_this_release(&BaseEnvironment::of_home("/".as_ref()));
        for executor in &executors.own {
            assert!(references.validate_executor(executor.name(), &json!({}), "/c").is_some(), "{}", executor.name());
        }
    }
}

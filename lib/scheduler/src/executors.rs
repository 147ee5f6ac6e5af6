//! The executors that this release has, by the name that bindings use.

use std::rc::Rc;

use conduit_executor_shell::Shell;
use conduit_extension::Executor;
use conduit_kernel::BaseEnvironment;

/// Every executor; a binding that names another is refused by validation.
#[derive(Clone)]
pub struct Executors(Vec<Rc<dyn Executor>>);

impl Executors {
    /// `base` is what every process is given.
    pub fn of_this_release(base: &BaseEnvironment) -> Self {
        Self(vec![Rc::new(Shell::new(base.clone()))])
    }

    pub fn get(&self, name: &str) -> Option<Rc<dyn Executor>> {
        self.0.iter().find(|executor| executor.name() == name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_config::Registry;
    use serde_json::json;

    /// C01
    #[test]
    fn every_executor_is_one_that_a_configuration_may_name_and_is_checked_alike() {
        let references = conduit_release::references(&conduit_release::registry());
        let executors = Executors::of_this_release(&BaseEnvironment::of_home("/".as_ref()));
        let config = json!({"playbook": 1});
        for executor in &executors.0 {
            let named = references.validate_executor(executor.name(), &config, "/c");
            assert_eq!(named, Some(executor.validate(&config, "/c")), "{}", executor.name());
        }
    }
}

//! The executors that this release has, by the name that bindings use.

use std::rc::Rc;

use conduit_config::Registered;
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

    /// What a configuration may refer to.
    pub fn registry(&self) -> Registered {
        self.0.iter().fold(Registered::builtins(), |registry, executor| {
            let name = executor.name().to_owned();
            let executor = Rc::clone(executor);
            registry.executor(&name, move |config, pointer| executor.validate(config, pointer))
        })
    }
}

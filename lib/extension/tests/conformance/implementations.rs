//! The toolbelts that there are: the worker's checks and operations, and the extension host behind them.

use std::path::PathBuf;
use std::rc::Rc;

use conduit_extension::host::ExtensionHost;
use conduit_extension::{Answer, Extension};
use conduit_toolbelt::Toolbelt;
use conduit_toolbelt::hosted::Hosted;
use conduit_toolbelt::reader::{Reader, Readers};

use crate::call::{Answered, Call, Implementation};
use crate::support::{Scripted, World, registry};

/// One extension host for all calls, and a toolbelt for each.
pub struct Kept {
    state: PathBuf,
    extensions: Vec<Rc<Scripted>>,
    host: Rc<ExtensionHost>,
}

/// Nothing is kept in memory from one call to the next.
pub struct Reopened {
    state: PathBuf,
    extensions: Vec<Rc<Scripted>>,
    instances: u32,
}

fn host(state: &std::path::Path, extensions: &[Rc<Scripted>], instance: String) -> Rc<ExtensionHost> {
    let toolbelt = Hosted::open(state, Rc::new(registry(extensions)), instance).unwrap();
    let extensions = extensions.iter().map(|e| Rc::clone(e) as Rc<dyn Extension>).collect();
    Rc::new(ExtensionHost::new(toolbelt, extensions, Box::new(|| ())))
}

async fn call(state: &std::path::Path, extensions: &[Rc<Scripted>], host: &Rc<ExtensionHost>, call: Call) -> Answered {
    let Call { token, socket, request } = call;
    let look: Reader = |look| Ok(look.input.get("n").cloned().unwrap_or_default());
    let toolbelt = Toolbelt::open(state, socket, Rc::new(registry(extensions))).unwrap();
    let mut toolbelt = toolbelt.with_readers(Readers::new([("lab.look", look)]));
    if !toolbelt.is_hosted(&request.operation) {
        return toolbelt.call(&token, &request, None).map(|called| called.response);
    }
    if let Some(response) = toolbelt.read(&token, &request, None)? {
        return Ok(response);
    }
    let call = toolbelt.forward(&token, &request, None)?;
    host.call(call).await
}

impl Kept {
    pub fn new(world: &World) -> Self {
        let host = host(&world.state(), &world.extensions, "kept".into());
        Self { state: world.state(), extensions: world.extensions.clone(), host }
    }
}

impl Implementation for Kept {
    fn call(&mut self, arrived: Call) -> Answer<'_, Answered> {
        Box::pin(async { call(&self.state, &self.extensions, &self.host, arrived).await })
    }
}

impl Reopened {
    pub fn new(world: &World) -> Self {
        Self { state: world.state(), extensions: world.extensions.clone(), instances: 0 }
    }
}

impl Implementation for Reopened {
    fn call(&mut self, arrived: Call) -> Answer<'_, Answered> {
        self.instances += 1;
        let host = host(&self.state, &self.extensions, format!("instance {}", self.instances));
        Box::pin(async move { call(&self.state, &self.extensions, &host, arrived).await })
    }
}

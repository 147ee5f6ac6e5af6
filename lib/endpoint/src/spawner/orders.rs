//! The control socket: what the scheduler may ask of the spawner. Served to this user alone.
//!
//! | request | does |
//! |---|---|
//! | `PUT /v1/endpoints/{execution_id}` with `{}` | serves the endpoint; answers `{"socket": path}` |
//! | `DELETE /v1/endpoints/{execution_id}` | closes it; answers 204 |
//! | `GET /v1/endpoints` | lists the executions that have one |

use std::rc::Rc;

use conduit_api::limits::BODY_BYTES_MAX;
use conduit_api::{ApiError, Code, ExecutionId, json};
use conduit_daemon::http::{Method, Reply, Request, Service};
use serde::Deserialize;

use super::Spawner;
use crate::control::{ENDPOINTS, Endpoints, Served};

/// Answers the scheduler.
#[derive(Debug)]
pub struct Orders {
    spawner: Rc<Spawner>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Orders {
    pub fn new(spawner: Rc<Spawner>) -> Self {
        Self { spawner }
    }

    async fn answer(&self, request: &mut Request) -> Result<Reply, ApiError> {
        let below = request.path.strip_prefix(ENDPOINTS).ok_or_else(no_route)?;
        match below.strip_prefix('/') {
            None if below.is_empty() => match request.method {
                Method::GET => Ok(Reply::json(200, &Endpoints { executions: self.spawner.executions() })),
                _ => Err(wrong_method("GET")),
            },
            None => Err(no_route()),
            Some(id) => {
                let execution: ExecutionId =
                    id.parse().map_err(|e| ApiError::new(Code::InvalidRequest, format!("in the path: {e}")))?;
                match request.method {
                    Method::PUT => {
                        let body = request.json_bytes().await?;
                        let Nothing {} = json::read(&body, BODY_BYTES_MAX)
                            .map_err(|refused| ApiError::new(Code::InvalidRequest, refused.0))?;
                        Ok(Reply::json(200, &Served { socket: self.spawner.serve(&execution)? }))
                    }
                    Method::DELETE => self.spawner.close(&execution).map(|()| Reply::Empty(204)),
                    _ => Err(wrong_method("PUT or DELETE")),
                }
            }
        }
    }
}

impl Service for Orders {
    async fn handle(&self, mut request: Request) -> Reply {
        self.answer(&mut request).await.unwrap_or_else(|error| {
            tracing::info!(request_id = request.request_id, code = %error.code, "{}", error.message);
            Reply::Refused(error)
        })
    }
}

fn no_route() -> ApiError {
    ApiError::new(Code::NotFound, "there is no such route on this socket")
}

fn wrong_method(right: &str) -> ApiError {
    ApiError::new(Code::MethodNotAllowed, format!("this route takes {right}"))
}

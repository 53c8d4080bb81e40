//! QMP responses: the result or error of a request as JSON, with its `id`.

use serde_json::{Value, json};

use crate::Error;

/// The response as JSON, with the `id` of the request if it had one.
pub(crate) fn to_json(outcome: Result<Value, Error>, id: Option<Value>) -> Value {
    let mut response = match outcome {
        Ok(result) => json!({"return": result}),
        Err(error) => json!({"error": error.to_json()}),
    };
    if let Some(id) = id {
        response["id"] = id;
    }
    response
}
